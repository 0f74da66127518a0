"""Gates of a stage: what its run must have shown before the next stage may spend money.

Pure functions of a run's metrics. Limits that are left to the preset, and the advice, are those of the guide which the
two-stage recipe comes from.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from windtunnel.recipe import RISE, SMALL_RISE, Gates, Recipe, gate_limits, least_refinement, norm_band
from windtunnel.run import GateResult, MetricsReader, Point, apart, of_step

from .advice import Settings, lower_norm, more_refinement, not_finite, restore_order, settings_of

PARTS = 10
"""A run is judged by its last tenth, and its loss by the medians of its tenths."""
LEAST_STEPS = 2 * PARTS
TOO_LARGE = 20.0
"""Gradient norm from which learning rates are too high whatever the preset."""

ADVICE = {
    "gradient_norm_low": "below what this preset shows: see that the loss falls at all, that the warm-up is over, and that "
    "the learning rates are the preset's",
    "spiky": "a larger batch (stages.{stage}.batch_tokens) or lower learning rates",
    "diverging": "the learning rates are too high, or the recipe is wrong",
    "validation_loss": "train longer or a larger model (`windtunnel plan`), or more data where the training loss is far below",
    "answers": "train longer, look at the answers that were wrong (`windtunnel evaluate`), or at data and learning rate",
    "utilisation": "look for a bottleneck: data loading (data_wait_share in `windtunnel watch`), too small a micro-batch",
    "not_measured": "the run logged no such metric: train it again, or leave the gate out with {off}",
}


def judge_gates(gates: Gates, recipe: Recipe, series: Mapping[str, Sequence[Point]], *, gpus: bool) -> tuple[GateResult, ...]:
    """Judge the gates that apply to the recipe on a run's metrics.

    Args:
        gates: of the stage; those that are null or do not fit the model are left out.
        recipe: the stage's, for its preset and supervision steps.
        series: by metric (see `gate_series`).
        gpus: whether the run had GPUs; without, their utilisation is not asked for.
    """
    settings, limits = settings_of(recipe), gate_limits(gates, recipe, gpus=gpus)
    judges: dict[str, Callable[[str], GateResult]] = {
        "order": lambda limit: _order(series, recipe.supervision, settings, limit),
        "refinement": lambda limit: _refinement(
            series.get("refinement", ()), least_refinement(gates, recipe) or 0.0, settings, limit
        ),
        "gradient_norm": lambda limit: _gradient_norm(
            series.get("gradient_norm", ()), norm_band(gates, recipe) or (0.0, math.inf), settings, limit
        ),
        "validation_loss": lambda limit: _validation_loss(series, gates.validation_loss or 0.0, limit),
        "answers": lambda limit: _answers(series.get("answers_right", ()), gates.answers or 0.0, limit),
        "decreasing": lambda limit: _decreasing(series.get("loss", ()), settings, limit, recipe.training[0].name or "pretrain"),
        "utilisation": lambda limit: _utilisation(series.get("gpu_utilisation", ()), gates.utilisation or 0.0, limit),
    }
    return tuple(judges[name](limit) for name, limit in limits.items())


def gate_series(metrics: MetricsReader, recipe: Recipe) -> dict[str, list[Point]]:
    """Return the series that `judge_gates` asks for, by metric; of a metric that was not logged an empty one."""
    wanted = ["loss", "validation_loss", "answers_right", "gradient_norm", "refinement", "gpu_utilisation"]
    wanted += [of_step("validation_loss", step) for step in range(recipe.supervision)]
    return {name: metrics.series(name) for name in wanted}


def _order(series: Mapping[str, Sequence[Point]], steps: int, settings: Settings, limit: str) -> GateResult:
    found = [_late(series.get(of_step("validation_loss", step), ())) for step in range(steps)]
    losses = [value for value in found if value is not None]
    if len(losses) < steps:
        return _not_measured("order", limit, "order=false")
    held = all(later < earlier for earlier, later in pairwise(losses))  # NaN is below nothing
    measured = (" > " if held else ", ").join(apart(losses))
    return GateResult("order", held, losses, measured, limit, None if held else restore_order(settings))


def _refinement(points: Sequence[Point], least: float, settings: Settings, limit: str) -> GateResult:
    value = _late(points)
    if value is None:
        return _not_measured("refinement", limit, "refinement=null")
    held = value >= least
    # NaN compares false with everything, so that a run that broke fails here rather than passes.
    advice = None if held else more_refinement(settings) if math.isfinite(value) else not_finite(settings)
    return GateResult("refinement", held, value, f"{value:.1f} %", limit, advice)


def _gradient_norm(points: Sequence[Point], band: tuple[float, float], settings: Settings, limit: str) -> GateResult:
    low, high = band
    value = _late(points)
    if value is None:
        return _not_measured("gradient_norm", limit, "gradient_norm=null")
    advice = None
    if not math.isfinite(value):
        advice = not_finite(settings)
    elif value > high:
        advice = lower_norm(settings)
    elif value < low:
        advice = ADVICE["gradient_norm_low"]
    above = f" (above {TOO_LARGE:g})" if value > TOO_LARGE else ""
    return GateResult("gradient_norm", advice is None, value, f"{value:.2f}{above}", limit, advice)


def _decreasing(points: Sequence[Point], settings: Settings, limit: str, stage: str) -> GateResult:
    losses = [point.value for point in points]
    if len(losses) < LEAST_STEPS:
        missing = f"{len(losses)} steps, {LEAST_STEPS} needed"
        return GateResult("decreasing", False, None, missing, limit, "train at least so many steps")
    # A median of a tenth does not move with single spikes; a rise that lasts moves several.
    medians = [statistics.median(losses[i * len(losses) // PARTS : (i + 1) * len(losses) // PARTS]) for i in range(PARTS)]
    # In the middle a spike to NaN may have been gone back from; at the end it is what the run leaves.
    if not all(math.isfinite(loss) for loss in losses[-(len(losses) // PARTS) :]) or not all(map(math.isfinite, medians)):
        return GateResult("decreasing", False, math.nan, "not finite", limit, not_finite(settings))
    fall = _percent(medians[0] - medians[-1], medians[0])
    # Against the lowest before, not the one before: a slow climb would pass each single comparison.
    rises = [(loss, min(medians[:i])) for i, loss in enumerate(medians) if i]
    rise = max(_percent(loss - least, least) for loss, least in rises)
    held = fall > 0 and not any(_rises(loss, least) for loss, least in rises)
    # A rise that was recovered from is noise of too small batches; one at the end goes on.
    at_end = fall <= 0 or _rises(medians[-1], min(medians))
    advice = None if held else ADVICE["diverging"] if at_end else ADVICE["spiky"].format(stage=stage)
    return GateResult("decreasing", held, [fall, max(0.0, rise)], f"{fall:.1f} % down, {max(0.0, rise):.1f} % up", limit, advice)


def _percent(change: float, of: float) -> float:
    """Return a change in percent; of a loss of zero, as small data learned by heart has, there are none."""
    return 100 * change / of if of else 0.0


def _rises(loss: float, least: float) -> bool:
    """Return whether a loss is above the least before it by more than noise."""
    return loss > least * (1 + RISE / 100) and loss > least + SMALL_RISE


def _validation_loss(series: Mapping[str, Sequence[Point]], most: float, limit: str) -> GateResult:
    """Judge the validation loss of the best checkpoint: the lowest, or where held-out answers decide that of the best answers."""
    losses = {point.step: point.value for point in series.get("validation_loss", ()) if math.isfinite(point.value)}
    if not losses:
        return _not_measured("validation_loss", limit, "validation_loss=null")
    # Of equally many right answers the lower loss.
    scored = [(-point.value, losses[point.step]) for point in series.get("answers_right", ()) if point.step in losses]
    value = min(scored)[1] if scored else min(losses.values())
    held = value <= most
    return GateResult("validation_loss", held, value, f"{value:.4f}", limit, None if held else ADVICE["validation_loss"])


def _answers(points: Sequence[Point], least: float, limit: str) -> GateResult:
    if not points:
        return _not_measured("answers", limit, "answers=null")
    best = max(point.value for point in points)
    return GateResult("answers", best >= least, best, f"{best:.1%}", limit, None if best >= least else ADVICE["answers"])


def _utilisation(points: Sequence[Point], least: float, limit: str) -> GateResult:
    values = [point.value for point in points]
    if not values:
        return _not_measured("utilisation", limit, "utilisation=null")
    value = statistics.fmean(values)
    held = value >= least
    return GateResult("utilisation", held, value, f"{value:.0f} %", limit, None if held else ADVICE["utilisation"])


def _not_measured(name: str, limit: str, off: str) -> GateResult:
    return GateResult(
        name, False, None, "not measured", limit, ADVICE["not_measured"].format(off=f"--set stages.NAME.gates.{off}")
    )


def _late(points: Sequence[Point]) -> float | None:
    """Return the median of a series' last tenth by steps; NaN where one of its values is; None where there are no points."""
    if not points:
        return None
    # By steps, not by entries: a metric that is logged seldom has its own tenth.
    since = points[-1].step * (1 - 1 / PARTS)
    values = [point.value for point in points if point.step >= since]
    return statistics.median(values) if all(map(math.isfinite, values)) else math.nan
