"""Losses after each supervision step of a run, their refinement and order, as curves for a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from windtunnel.run import MetricsReader, Point, of_step

from .curves import Curve, chart_of
from .groups import MOST_CURVES

SMOOTHED = 100  # points that a noisy series is averaged into
PLACE = "supervision"
SHARES = 40  # likewise of a series that is 0 or 1

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class SupervisionCurves:
    """Losses after each supervision step, over the steps of a run; see `supervision_curves`.

    Attributes:
        training, held_out: true cross-entropy (nats per token) after each supervision step.
        refinement: percent by which the last of these is below the first.
        order: percent of the steps around in which each is below the one before.
        solved: percent of training samples (puzzles) answered wholly right after each supervision step.
        uniform: loss of a model that knows nothing; None: not known.
    """

    training: list[Curve]
    held_out: list[Curve] = field(default_factory=list)
    refinement: list[Curve] = field(default_factory=list)
    order: list[Curve] = field(default_factory=list)
    solved: list[Curve] = field(default_factory=list)
    uniform: float | None = None


def supervision_curves(metrics: MetricsReader, vocab: int | None = None) -> SupervisionCurves | None:
    """Return curves from a run's metrics, or None where the run has no supervision steps.

    Args:
        metrics: of the run.
        vocab: tokens of the vocabulary, for the loss of a model that knows nothing.
    """
    known = set(metrics.names())
    training = _steps(metrics, known, "loss")
    if not training:
        return None
    held_out = _steps(metrics, known, "validation_loss")
    percent = [
        Curve("training", smoothed(_points(metrics.series("refinement")))),
        Curve("held-out", _refinement(held_out)),
    ]
    # Of each step it is 0 or 1: only means over several are a curve.
    order = smoothed(_points(metrics.series("supervision_order")), SHARES)
    return SupervisionCurves(
        training=_named([smoothed(points) for points in training]),
        held_out=_named(held_out),
        refinement=[curve for curve in percent if curve.points],
        order=[Curve("training", [(x, 100 * y) for x, y in order])] if order else [],
        solved=_named([[(x, 100 * y) for x, y in smoothed(points)] for points in _steps(metrics, known, "solved")]),
        uniform=math.log(vocab) if vocab else None,
    )


def supervision_charts(curves: SupervisionCurves | None) -> list[dict[str, Any]]:
    """Return the charts of the page's part on recursion; none where nothing recurs."""
    if curves is None:
        return []
    loss, nothing = "nats per token", [("knowing nothing, ln(vocabulary)", "plan", curves.uniform)]
    charts = [
        chart_of("Training loss after each supervision step", curves.training, unit=loss, limits=nothing, log=True, place=PLACE),
        chart_of("Held-out loss after each supervision step", curves.held_out, unit=loss, limits=nothing, log=True, place=PLACE),
        chart_of("Refinement: how far the last step's loss is below the first's", curves.refinement, unit="percent", place=PLACE),
        chart_of("Training samples answered wholly right, by step", curves.solved, unit="percent", place=PLACE),
        chart_of("Every step's loss is below that of the one before", curves.order, unit="percent of steps", place=PLACE),
    ]
    return [chart for chart in charts if chart["names"]]


def smoothed(points: Points, most: int = SMOOTHED) -> Points:
    """Means of neighbours, `most` of them at most; numbers that are not finite are left out."""
    clean = [(x, y) for x, y in points if math.isfinite(y)]
    stretch = max(1, math.ceil(len(clean) / most))
    parts = [clean[i : i + stretch] for i in range(0, len(clean), stretch)]
    return [(part[-1][0], sum(y for _, y in part) / len(part)) for part in parts]


def _steps(metrics: MetricsReader, known: set[str], name: str) -> list[Points]:
    found: list[Points] = []
    while of_step(name, len(found)) in known:
        found.append(_points(metrics.series(of_step(name, len(found)))))
    return found


def _points(series: Sequence[Point]) -> Points:
    return [(float(point.step), point.value) for point in series]


def _named(steps: list[Points], most: int = MOST_CURVES) -> list[Curve]:
    """Return as many of them as can be told apart: the first, the last and some between."""
    # A chart has as many colours.
    count = min(len(steps), most)
    chosen = sorted({round(i * (len(steps) - 1) / max(1, count - 1)) for i in range(count)})
    return [Curve(f"after step {i}", steps[i]) for i in chosen]


def _refinement(held_out: list[Points]) -> Points:
    if len(held_out) < 2:
        return []
    last = dict(held_out[-1])
    return [(x, 100 * (first - last[x]) / first) for x, first in held_out[0] if x in last and first]
