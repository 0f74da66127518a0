"""A scaling law over finished runs: expected validation loss of a larger one, with the error of saying so.

L(N, D) = E + A / N^alpha + B / D^beta (Hoffmann et al. 2022, arXiv:2203.15556), N scaling parameters, D training tokens, fitted
by least squares of log losses with Huber's loss, as there. Few runs cannot fix five numbers: then the exponents are those
that Besiroglu et al. 2024 (arXiv:2404.10102) found in Chinchilla's runs, and the runs fix the rest. Of the forms that
the runs can fix, the one is taken that best predicts each run from the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from windtunnel.recipe import Recipe, UserError
from windtunnel.rig import Rig

from .plan import make_plan
from .types import Plan

ALPHA, BETA = 0.3478, 0.3658
# B / A there.
RATIO = 2085.43 / 482.01
HUBER = 1e-3  # of log losses, as Hoffmann et al.
LEAST_RUNS = 2
# Repetitions after which data have given two thirds of what they can (Muennighoff et al. 2023, arXiv:2305.16264, R*_D).
WORN_OUT = 15.39
QUANTILE = 0.9
DIGITS = 4  # of a loss that is written
# Error added for each factor of ten of compute beyond the largest run: 9 in 10 of the larger runs of Li et al. 2025
# (arXiv:2502.18969) lay within it when predicted from 4 to 10 of the smaller half; Chinchilla's, on which it was not fitted,
# nearly all (benchmarks/results/scaling-fit-*.json).
BEYOND = 0.12
_STARTS = tuple((a, b) for a in (0.2, 0.35, 0.6) for b in (0.2, 0.35, 0.6))


@dataclass(frozen=True)
class TrainedPoint:
    """A finished run: scaling parameters, training tokens, best validation loss (nats a token)."""

    name: str
    parameters: float
    tokens: float
    loss: float

    @property
    def flops(self) -> float:
        """6 N D, as such laws count."""
        return 6.0 * self.parameters * self.tokens


@dataclass(frozen=True)
class Law:
    """The fitted law.

    Attributes:
        form: which of its numbers the runs fixed, in words; fixed: how many.
        error: relative error of predicting a run from the others, 9 in 10 within it (of few: the largest); None: too few to tell.
        largest: relative error at the run of most compute, predicted from the others; None: likewise.
        reach: most compute (6 N D) among the runs.
    """

    floor: float
    a: float
    alpha: float
    b: float
    beta: float
    form: str
    fixed: int
    runs: int
    error: float | None
    largest: float | None
    reach: float

    def loss(self, parameters: float, tokens: float) -> float:
        """Return the expected validation loss."""
        return float(self.floor + self.a / parameters**self.alpha + self.b / tokens**self.beta)

    def error_at(self, flops: float) -> float | None:
        """Return the relative error of a prediction at so much compute; None where no run was left to test the law on."""
        return None if self.error is None else self.error + BEYOND * max(0.0, math.log10(flops / self.reach))

    def to_json(self) -> dict[str, Any]:
        """Return all fields."""
        return asdict(self)


@dataclass(frozen=True)
class _Form:
    """Which numbers are fitted: `spread` turns the fitted vector into (log E, log A, alpha, log B, beta)."""

    words: str
    starts: tuple[tuple[float, ...], ...]
    spread: Callable[[Any], tuple[Any, Any, Any, Any, Any]]


def fit_law(points: Sequence[TrainedPoint]) -> Law:
    """Fit the law to finished runs.

    Raises:
        UserError: fewer than two runs, or runs that all have the same size and length.
    """
    points = list(points)
    if len(points) < LEAST_RUNS or len({(p.parameters, p.tokens) for p in points}) < LEAST_RUNS:
        raise UserError(
            f"a scaling law needs {LEAST_RUNS} runs of different size or length; there {'is' if len(points) == 1 else 'are'} "
            f"{len({(p.parameters, p.tokens) for p in points})}",
            "train the same recipe at other depths, such as --set model.depth=4, 6 and 8",
        )
    tried = []
    for form in _forms(points):
        found = _fitted(form, points, form.starts)
        errors = _left_out(form, points, found)
        tried.append((math.inf if errors is None else float(np.median(np.abs(errors))), form, found, errors))
    _, form, found, errors = min(tried, key=lambda item: item[0])
    floor, a, alpha, b, beta = _numbers(form, found)
    largest = max(range(len(points)), key=lambda i: points[i].flops)
    return Law(
        floor, a, alpha, b, beta, form.words, len(form.starts[0]), len(points),
        None if errors is None else float(np.quantile(np.abs(errors), QUANTILE, method="higher")),
        None if errors is None else float(errors[largest]),
        points[largest].flops,
    )  # fmt: skip


@dataclass(frozen=True)
class Bought:
    """What a plan's budget buys by the law: its model, tokens, expected loss and the error of that.

    `fresh` is what the tokens are worth, repeated ones counting less; `ends` says which limit ends the run.
    """

    depth: int | None
    parameters: float
    tokens: float
    fresh: float
    epochs: float | None
    hours: float
    dollars: float | None
    loss: float
    error: float | None
    flops: float
    ends: str


def what_budget_buys(law: Law, recipe: Recipe, rig: Rig) -> list[Bought]:
    """Return what the recipe's budget buys on a rig: at each depth that fits, best first; of other models as it is.

    Of losses that are written alike, the one of the least compute comes first.
    """
    if recipe.model.kind != "gpt":
        plans = [make_plan(recipe, rig, suggest=False)]
    else:
        from .pretrain import DEPTHS, at_depth

        plans = [make_plan(at_depth(recipe, depth), rig, suggest=False) for depth in DEPTHS]
    bought = [_bought(law, recipe, plan) for plan in plans if plan.fits]
    return sorted(bought, key=lambda item: (round(item.loss, DIGITS), item.flops))


def _bought(law: Law, recipe: Recipe, plan: Plan) -> Bought:
    own = plan.method == "pretrain"
    parameters = plan.derived_tokens / recipe.pretrain.tokens_per_parameter if own else float(plan.params)
    fresh = plan.tokens
    if plan.epochs is not None and plan.epochs > 1:
        once = plan.tokens / plan.epochs
        fresh = once * (1 + WORN_OUT * (1 - math.exp(-(plan.epochs - 1) / WORN_OUT)))
    loss, flops = law.loss(parameters, fresh), 6 * parameters * plan.tokens
    error = law.error_at(flops)
    cost = (plan.hours, plan.dollars)
    return Bought(plan.depth, parameters, plan.tokens, fresh, plan.epochs, *cost, loss, error, flops, plan.ends)


def _forms(points: Sequence[TrainedPoint]) -> list[_Form]:
    """Return the forms that so many runs, of so many sizes and lengths, can fix; the leanest always."""
    sizes, lengths = len({p.parameters for p in points}), len({p.tokens for p in points})
    low = math.log(min(p.loss for p in points))
    # What is lost to size and data at the middle run, as a start.
    n = math.exp(np.mean([math.log(p.parameters) for p in points]))
    d = math.exp(np.mean([math.log(p.tokens) for p in points]))
    part = math.log(0.2) + low
    a0, b0 = part + ALPHA * math.log(n), part + BETA * math.log(d)
    chinchilla = "exponents as in Chinchilla's runs (arXiv:2404.10102)"
    forms = [
        _Form(
            f"E and a common scale fitted; {chinchilla}, and so is B / A",
            tuple((low + shift, a0) for shift in (-0.1, -0.7, -3.0)),
            lambda x: (x[0], x[1], ALPHA, x[1] + math.log(RATIO), BETA),
        )
    ]
    if len(points) > 3 and sizes > 1 and lengths > 1:
        starts = tuple((low + shift, a0, b0) for shift in (-0.1, -0.7, -3.0))
        forms.append(_Form(f"E, A and B fitted; {chinchilla}", starts, lambda x: (x[0], x[1], ALPHA, x[2], BETA)))
    if len(points) > 6 and sizes > 2 and lengths > 2:
        whole = tuple((low - 0.3, part + p * math.log(n), p, part + q * math.log(d), q) for p, q in _STARTS)
        forms.append(_Form("all five numbers fitted", whole, lambda x: (x[0], x[1], x[2], x[3], x[4])))
    return forms


def _numbers(form: _Form, x: Any) -> tuple[float, float, float, float, float]:
    """Return (E, A, alpha, B, beta) of a fitted vector."""
    floor, a, alpha, b, beta = form.spread(x)
    return math.exp(floor), math.exp(a), float(alpha), math.exp(b), float(beta)


def _fitted(form: _Form, points: Sequence[TrainedPoint], starts: Sequence[Sequence[float]]) -> Any:
    """Return the vector with the least Huber loss of log losses, of those that the starts lead to."""
    from scipy.optimize import least_squares

    n, d = (np.log([getattr(p, name) for p in points]) for name in ("parameters", "tokens"))
    seen = np.log([p.loss for p in points])

    def residuals(x: Any) -> Any:
        floor, a, alpha, b, beta = form.spread(x)
        return np.logaddexp(np.logaddexp(floor + 0 * n, a - alpha * n), b - beta * d) - seen

    # Bounded, or a term that does not matter runs away: logs of E, A and B, exponents between 0.01 and 3.
    whole = len(form.starts[0]) == 5
    low = [0.01 if whole and i in (2, 4) else -30.0 for i in range(len(form.starts[0]))]
    high = [3.0 if whole and i in (2, 4) else 80.0 for i in range(len(form.starts[0]))]
    found = [
        least_squares(residuals, np.clip(start, low, high), loss="huber", f_scale=HUBER, bounds=(low, high)) for start in starts
    ]
    return min(found, key=lambda tried: tried.cost).x


def _left_out(form: _Form, points: Sequence[TrainedPoint], whole: Any) -> np.ndarray | None:
    """Return relative errors of each run predicted from the others; None where the others cannot fix the form."""
    if len(points) <= len(form.starts[0]):
        return None
    errors = []
    for i, point in enumerate(points):
        others = [p for j, p in enumerate(points) if j != i]
        floor, a, alpha, b, beta = _numbers(form, _fitted(form, others, [whole]))
        errors.append((floor + a / point.parameters**alpha + b / point.tokens**beta) / point.loss - 1)
    return np.array(errors)
