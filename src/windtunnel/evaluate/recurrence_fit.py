"""How much a recurrence is worth: the exponent phi of arXiv:2604.21106, fitted from losses.

There a looped model loses L = E + A (N_once + r^phi N_rec)^-alpha + B D^-beta nats: blocks applied r times count as
r^phi times their parameters. phi = 1 means that applying a block again is as good as having another block, phi = 0 that it
is worth nothing, less than 0 that it does harm. At the same tokens D the plain models of several sizes draw the curve
E' + A N^-alpha; the loss of a recurrent model read off that curve gives the parameters it is equivalent to, and those give
phi. Nothing is read off beyond the plain models' own sizes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

LEAST_SIZES = 3  # a power law with a floor has three numbers
TAIL = 0.025  # share of draws beyond each end of an interval
# Exponents that are tried for the plain models' curve; the least is a straight line over log N.
ALPHAS = np.geomspace(0.01, 4.0, 600)
UNDEFINED = 0.1  # share of resamples without a value from which no interval is given


@dataclass(frozen=True)
class Plain:
    """A plain model: its parameters (matrices and head) and nats (units,), the sum in each held-out unit."""

    parameters: float
    nats: np.ndarray


@dataclass(frozen=True)
class Recurrent:
    """A model whose blocks are applied `recurrences` times.

    Attributes:
        once, recurrent: parameters applied once (the head), and those applied again and again.
        nats: (units,), of the same held-out units as the plain models'.
    """

    recurrences: int
    once: float
    recurrent: float
    nats: np.ndarray


@dataclass(frozen=True)
class Phi:
    """The exponent, or a bound of it.

    Attributes:
        value: None where the data tell nothing. bound: '=', or '<=' or '>=' where recurrent models are worse than the
            smallest or better than the largest plain model, so that only one side is known.
        low, high: 95 % interval by bootstrap over held-out units; None where that side is not known.
        equivalent: recurrences -> parameters of the plain model with the same loss; at the end of the range if outside.
        words: what could not be told, or empty.
    """

    value: float | None
    bound: str
    low: float | None
    high: float | None
    equivalent: dict[int, float]
    words: str

    def to_json(self) -> dict[str, Any]:
        """Return all fields; recurrences as text."""
        return asdict(self) | {"equivalent": {str(r): n for r, n in self.equivalent.items()}}


@dataclass(frozen=True)
class _Estimate:
    value: float
    below: tuple[int, ...]
    above: tuple[int, ...]
    equivalent: dict[int, float]


def fit_phi(plain: Sequence[Plain], recurrent: Sequence[Recurrent], targets: np.ndarray, draws: np.ndarray) -> Phi:
    """Return phi by least squares of log((N_eff - N_once) / N_rec) on log r through the origin.

    Args:
        plain: at least three sizes, trained on the same tokens as the recurrent models.
        recurrent: those with more than one recurrence are used.
        targets: (units,) targets in each held-out unit.
        draws: (resamples, units) how often each unit is drawn; see `draw_clusters`.
    """
    used = [r for r in recurrent if r.recurrences > 1]
    ordered = sorted(plain, key=lambda p: p.parameters)
    sizes = np.array([p.parameters for p in ordered])
    if len(set(sizes.tolist())) < LEAST_SIZES or not used:
        return Phi(None, "=", None, None, {}, f"phi needs {LEAST_SIZES} plain sizes and a model that recurs more than once")
    nats = np.stack([p.nats for p in ordered] + [r.nats for r in used], axis=1)
    found = _estimate(sizes, nats.sum(0) / targets.sum(), used)
    if isinstance(found, str):
        return Phi(None, "=", None, None, {}, found)
    # One draw of units for all models: a hard document is hard for each of them, and drops out of their differences.
    each = (draws @ nats) / (draws @ targets)[:, None]
    again = [_estimate(sizes, losses, used) for losses in each]
    low, high, doubt = _interval([e for e in again if not isinstance(e, str)], len(again))
    words = [doubt, _outside(found.below, "worse than the smallest"), _outside(found.above, "better than the largest")]
    if found.below and found.above:
        return Phi(None, "=", None, None, found.equivalent, "; ".join(filter(None, words)))
    bound = "<=" if found.below else ">=" if found.above else "="
    return Phi(found.value, bound, low, high, found.equivalent, "; ".join(filter(None, words)))


def _outside(recurrences: tuple[int, ...], what: str) -> str:
    if not recurrences:
        return ""
    several = len(recurrences) > 1
    return f"r = {', '.join(map(str, recurrences))} {'are' if several else 'is'} {what} plain model: a bound, no value"


def _interval(values: Sequence[_Estimate], count: int) -> tuple[float | None, float | None, str]:
    """Quantiles; a side on which resamples are bounds only is not known."""
    # An interval over the draws that went well alone would be too narrow.
    if len(values) < (1 - UNDEFINED) * count:
        return None, None, "in too many resamples larger plain models are not better: no interval"
    low, high = np.quantile([e.value for e in values], [TAIL, 1 - TAIL])
    below, above = (sum(bool(getattr(e, side)) for e in values) / len(values) for side in ("below", "above"))
    return (None if below > TAIL else float(low)), (None if above > TAIL else float(high)), ""


def _estimate(sizes: np.ndarray, losses: np.ndarray, recurrent: Sequence[Recurrent]) -> _Estimate | str:
    """Estimate phi from the losses of the plain and then of the recurrent models; a sentence where the plain ones draw no curve.

    A loss outside the plain models' counts as the nearest end's. The fit grows with every log share, so that it is
    then a bound.
    """
    plain, others = losses[: len(sizes)], losses[len(sizes) :]
    # Noise, or models too large for so few tokens: a curve through them would run the wrong way.
    if np.any(np.diff(plain) >= 0):
        return "larger plain models are not better here: there is no curve to read parameters off"
    curve = fit_curve(sizes, plain)
    ends = curve.loss(sizes[0]), curve.loss(sizes[-1])
    x, y, below, above, equivalent = [], [], [], [], {}
    for model, loss in zip(recurrent, others, strict=True):
        if loss > ends[0]:
            below.append(model.recurrences)
        elif loss < ends[1]:
            above.append(model.recurrences)
        size = curve.parameters(float(np.clip(loss, ends[1], ends[0])))
        if size <= model.once:
            return f"r = {model.recurrences} is equivalent to a plain model that is smaller than its head alone"
        equivalent[model.recurrences] = size
        x.append(math.log(model.recurrences))
        y.append(math.log((size - model.once) / model.recurrent))
    # Through the origin, since one application is the plain model itself.
    return _Estimate(float(np.dot(x, y) / np.dot(x, x)), tuple(below), tuple(above), equivalent)


@dataclass(frozen=True)
class Curve:
    """loss(N) = floor + scale (N / unit)^-alpha."""

    floor: float
    scale: float
    alpha: float
    unit: float

    def loss(self, parameters: float) -> float:
        """Nats of a plain model of this size."""
        return float(self.floor + self.scale * (parameters / self.unit) ** -self.alpha)

    def parameters(self, loss: float) -> float:
        """Size of the plain model with this loss, which must be above the floor."""
        return float(self.unit * ((loss - self.floor) / self.scale) ** (-1 / self.alpha))


def fit_curve(sizes: np.ndarray, losses: np.ndarray) -> Curve:
    """Least squares of the power law through plain models, sizes ascending; through three exactly where they bend as one."""
    # With alpha given the rest is linear: a grid over it needs no starting point and cannot end in a wrong valley. Sizes count
    # in units of the smallest, since 1e9 ** -4 beside a column of ones is nothing to a pseudo-inverse.
    unit = float(sizes[0])
    inverse, residual = _solutions(tuple((sizes / unit).tolist()))
    best = int(((residual @ losses) ** 2).sum(1).argmin())
    floor, scale = inverse[best] @ losses
    return Curve(float(floor), float(scale), float(ALPHAS[best]), unit)


@functools.cache
def _solutions(sizes: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return for each of ALPHAS what takes losses to (floor, scale), (2, K), and to what the fit leaves over, (K, K)."""
    powers = np.array(sizes)[None, :] ** -ALPHAS[:, None]
    design = np.stack([np.ones_like(powers), powers], axis=2)
    inverse = np.linalg.pinv(design)
    return inverse, np.eye(len(sizes)) - design @ inverse
