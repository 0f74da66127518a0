"""A recursive model beside FLOPs-matched baselines on the same held-out data: what each loses, and the verdict in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from windtunnel.run import apart

from .bootstrap import Interval, draw_clusters
from .flop_matched import CLOSE, SAME_FLOPS, WHOLE_BATCHES, Member
from .held_out import Measured
from .recurrence_fit import Phi, Plain, Recurrent, fit_phi
from .refinement_check import Spoilt, spoilt

FORMAT = 1
FEW_UNITS = 30  # with fewer the percentile interval is some percents too narrow
RESAMPLES = 1000  # each has a fit of the exponent
ONE_TRAINING = (
    "intervals are over held-out data, of one training of each model: another seed moves losses too, and by how much is not known"
)


@dataclass(frozen=True)
class Trained:
    """How a member was trained.

    Attributes:
        run: its folder. step: of the checkpoint that is measured, the best by validation loss. seconds: training took.
        losses: training loss after each supervision step (one of a plain model), median over the last tenth of the run.
        rates: peak learning rates that differ between members, in words.
    """

    run: str
    step: int
    seconds: float | None
    losses: tuple[float, ...]
    rates: str = ""


@dataclass(frozen=True)
class Row:
    """A member as measured.

    Attributes:
        flops: training FLOPs a token, of the run's. loss: nats a target, of the last supervision step.
        behind: how much its loss is above the run's; paired. step_losses: after each supervision step.
        solved: share of puzzles; solved_behind: the run's share less its own, paired. refinement: percent.
        updates: of the weights in its training, in batches of `batch_tokens`. trained: None where nobody tells.
    """

    name: str
    role: str
    kind: str
    layers: int
    dim: int
    parameters: int
    recurrences: int
    flops: float
    loss: Interval
    behind: Interval
    bits_per_byte: float | None
    step_losses: tuple[float, ...]
    refinement: float | None
    solved: Interval | None
    solved_behind: Interval | None
    trained: Trained | None
    updates: int
    batch_tokens: int


@dataclass(frozen=True)
class ComparisonReport:
    """A recursive run beside its FLOPs-matched baselines.

    Attributes:
        rows: the run's model first. units: what the bootstrap draws, such as 'documents'. targets: held-out targets scored.
        uniform: nats of a model that knows nothing. preset: of the run. spoilt: refinement that is bought or means
            nothing, on held-out data and in training. notes: what limits the comparison.
    """

    run: str
    preset: str
    verdict: str
    rows: tuple[Row, ...]
    phi: Phi
    spoilt: tuple[Spoilt, ...]
    uniform: float
    units: str
    unit_count: int
    targets: int
    steps: int
    batch_tokens: int
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Stable keys; what is written to flop_matched.json."""
        return {
            "format": FORMAT,
            "run": self.run,
            "preset": self.preset,
            "verdict": self.verdict,
            "spoilt": [item.to_json() for item in self.spoilt],
            "models": [asdict(row) for row in self.rows],
            "phi": self.phi.to_json(),
            "uniform": self.uniform,
            "held_out": {"targets": self.targets, "units": self.units, "unit_count": self.unit_count},
            "steps": self.steps,
            "batch_tokens": self.batch_tokens,
            "notes": list(self.notes),
        }


def weigh(
    members: Sequence[Member],
    measured: Mapping[str, Measured],
    *,
    run: str,
    units: str,
    trained: Mapping[str, Trained] | None = None,
    preset: str,
    uniform: float,
    length: tuple[int, int] = (0, 0),
    notes: Sequence[str] = (),
) -> ComparisonReport:
    """Return the report on members that have been measured on the same held-out units.

    Args:
        members: as from `flop_matched_members`: the run's own first, with 'same-parameters' and 'same-flops' among them.
        measured: losses, by the member's name.
        run: name of the run.
        units: what a loss is measured on: tokens or documents.
        trained: by the member's name, how its training went.
        preset: name of the run's recursion preset.
        uniform: nats a token of a model that knows nothing.
        length: optimizer steps, and tokens a step.
        notes: sentences to add to the report.
    """
    own, told = members[0], trained or {}
    ours = measured[own.name]
    draws = draw_clusters(len(ours.targets), RESAMPLES, seed=0)
    rows = tuple(_row(m, measured[m.name], own, ours, draws, told.get(m.name)) for m in members)
    # The curve of sizes is one of models trained alike: the twin with fewer, larger updates lies on another.
    sizes = [m for m in members if m.kind == "plain" and m.name != WHOLE_BATCHES]
    plain = [Plain(m.shape.scaling_parameters, measured[m.name].nats[-1]) for m in sizes]
    again = [
        Recurrent(m.recurrences, m.shape.head_parameters, m.shape.matrix_parameters, measured[m.name].nats[-1])
        for m in members
        if m.kind != "plain"
    ]
    same = best_twin(rows)
    found = [spoilt("held-out data", ours.losses, measured["same-parameters"].loss, uniform, preset)]
    if told and told[own.name].losses and (plain_loss := told["same-parameters"].losses):
        equal = same.trained.losses if same.trained is not None else ()
        found.append(
            spoilt(
                "the training batches", told[own.name].losses, plain_loss[-1], uniform, preset,
                held_out=ours.loss, same_flops=equal[-1] if equal else None,
            )
        )  # fmt: skip
    return ComparisonReport(
        run=run,
        preset=preset,
        verdict=verdict(rows[0], same, uniform, max(1, round(own.updates / same.updates)) if same.updates else 1),
        rows=rows,
        phi=fit_phi(plain, again, ours.targets, draws),
        spoilt=tuple(item for item in found if item is not None),
        uniform=uniform,
        units=units,
        unit_count=len(ours.targets),
        targets=int(ours.targets.sum()),
        steps=length[0],
        batch_tokens=length[1],
        notes=(*notes, *_few(len(ours.targets), units), ONE_TRAINING),
    )


def _few(count: int, units: str) -> tuple[str, ...]:
    if count >= FEW_UNITS:
        return ()
    words = f"only {count} {units} held out: intervals this small a number gives are too narrow"
    return (f"{words}; raise data.validation or stages.evaluate.bits_per_byte_tokens",)


def best_twin(rows: Sequence[Row]) -> Row:
    """Return the plain model of the same FLOPs; the better one where it was trained in two ways."""
    found = [row for row in rows if row.name in (SAME_FLOPS, WHOLE_BATCHES)]
    return min(found, key=lambda row: (0.0 if row.solved is None else -row.solved.value, row.loss.value))


def verdict(own: Row, same: Row, uniform: float, updates: int = 1) -> str:
    """Return one sentence on the plain model of the same FLOPs against the run's, which made `updates` for each of its."""
    # Differences between models that know less than nothing say nothing about recursion.
    if min(own.loss.value, same.loss.value) >= uniform:
        return (
            f"No verdict: on held-out data both lose more than knowing nothing does ({own.loss.value:.2f} and "
            f"{same.loss.value:.2f} against {uniform:.2f} nats): they have memorised, or learnt nothing."
            + _in_training(own, same)
        )
    equal = "equal FLOPs" if abs(same.flops - 1) <= CLOSE else f"{100 * same.flops:.0f} % of the run's FLOPs"
    if same.solved_behind is not None and same.solved is not None:
        d, unit, form = same.solved_behind, "percentage points of puzzles solved", "{:.1f}"
        d = Interval(100 * d.value, 100 * d.low, 100 * d.high)
    else:
        d, unit, form = same.behind, "nats a token", _form(same.behind)
    if d.sign == 0:
        return (
            f"At {equal} the plain model cannot be told from the recursive one: {_signed(form, d.value)} {unit} "
            f"(95 % {_signed(form, d.low)} to {_signed(form, d.high)}): here recursion does not show that it pays."
        )
    low, high = sorted((abs(d.low), abs(d.high)))
    size = f"by {form.format(abs(d.value))} {unit} (95 % {form.format(low)} to {form.format(high)})"
    if d.sign > 0:
        pays = (
            "here recursion pays"
            if updates == 1
            else f"here recursion, or its {updates} updates for each of the plain one's, pays"
        )
        return f"At {equal} the recursive model is better {size}: {pays}."
    return f"At {equal} the plain model is better {size}: here recursion does not pay."


def _in_training(own: Row, same: Row) -> str:
    """Say what is left to compare where held-out data say nothing."""
    if own.trained is None or same.trained is None or not (own.trained.losses and same.trained.losses):
        return ""
    ours, theirs = apart([own.trained.losses[-1], same.trained.losses[-1]])
    return f" On its training batches the plain model loses {theirs} nats, the recursive one {ours}."


def _form(interval: Interval) -> str:
    """Return as many decimals as tell the interval's ends apart."""
    width = interval.high - interval.low
    return "{:.2f}" if width >= 0.01 else "{:.3f}" if width >= 0.001 else "{:.4f}"


def _signed(form: str, value: float) -> str:
    return form.replace(":", ":+").format(value)


def _row(member: Member, found: Measured, own: Member, ours: Measured, draws: np.ndarray, trained: Trained | None) -> Row:
    nats, base, targets = found.nats[-1], ours.nats[-1], ours.targets
    steps = tuple(found.losses)
    refinement = 100 * (steps[0] - steps[-1]) / steps[0] if len(steps) > 1 and steps[0] else None
    solved = behind = None
    if found.solved is not None and ours.solved is not None:
        ones = np.ones(len(targets))
        solved = ratio(found.solved, ones, draws)
        behind = ratio(ours.solved - found.solved, ones, draws)
    shape = member.shape
    return Row(
        name=member.name,
        role=member.role,
        kind=member.kind,
        layers=shape.layers,
        dim=shape.dim,
        parameters=shape.parameters,
        recurrences=member.recurrences,
        flops=shape.flops_per_token / own.shape.flops_per_token,
        loss=ratio(nats, targets, draws),
        behind=ratio(nats - base, targets, draws),
        bits_per_byte=found.bits_per_byte,
        step_losses=steps if len(steps) > 1 else (),
        refinement=refinement,
        solved=solved,
        solved_behind=behind,
        trained=trained,
        updates=member.updates,
        batch_tokens=member.recipe.pretrain.batch_tokens or 0,
    )


def ratio(values: np.ndarray, weights: np.ndarray, draws: np.ndarray) -> Interval:
    """Sum of values over sum of weights, all (units,), with its interval over the resamples."""
    # Weights are drawn too: documents have different numbers of targets.
    low, high = np.quantile((draws @ values) / (draws @ weights), [0.025, 0.975])
    return Interval(float(values.sum() / weights.sum()), float(low), float(high))
