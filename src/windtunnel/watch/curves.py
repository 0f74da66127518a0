"""A run's curves as the pages draw them: charts of series with their limits, and when each step was."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from windtunnel.run import MetricsReader, RunFolder, Stretch, described, stretches

from .groups import LOSS, grouped, limits_of

SHOWN_AS_FIGURES = ("progress", "epoch", "targets", "memory_share")
MOST_POINTS = 1500
# A pause between two sessions is not training: no step takes so many times the median of them.
PAUSE = 50
_UNITS = {LOSS: "nats per token", "Gradient norm": "before clipping"}


@dataclass(frozen=True)
class Curve:
    """Points of one line of a chart: (x, y); x is a step unless the chart says otherwise."""

    name: str
    points: list[tuple[float, float]]


def drawn(run: RunFolder, metrics: MetricsReader, points: int) -> dict[str, Any]:
    """Return what a run draws, as JSON.

    Args:
        run: the run's folder.
        metrics: its metrics.
        points: at most about so many of a series; more are drawn as the mean of neighbours, with the lowest and the highest.

    Returns:
        `charts`: title, meaning (of the first, and of each), unit, names of series, limits, `more` (one of the lesser metrics),
        and `series`: name -> [step, mean, low, high]. `clock`: [step, tokens, hours of training, dollars] along the run, by
        which curves are drawn over any of them.
    """
    curves = _Curves(metrics, points)
    return {"charts": _charts(run, metrics, curves), "clock": _clock(run, curves)}


def told(found: list[Stretch]) -> list[list[float | None]]:
    """Return points as [step, mean, low, high]."""
    return [[s.step, s.mean, s.low, s.high] for s in found]


def chart_of(
    title: str, curves: Sequence[Curve], *, x: str = "step", unit: str = "", place: str = "curves", log: bool = False,
    limits: Sequence[tuple[str, str, float | None]] = (),
) -> dict[str, Any]:  # fmt: skip
    """Return a chart of curves that are no series of a run, as JSON like those of `drawn`.

    Args:
        title: what stands over it.
        curves: those without points are left out.
        x: its axis.
        unit: of the values.
        place: which part of the page it belongs to.
        log: on a logarithmic scale.
        limits: (name, kind, value) of lines across it.
    """
    known = {curve.name: thin(curve.points) for curve in curves if curve.points}
    lines = [{"name": name, "kind": kind, "value": value} for name, kind, value in limits if value is not None]
    return {
        "title": title, "names": list(known), "series": known, "limits": lines, "x": x, "unit": unit, "place": place, "log": log,
        "meaning": "", "more": False,
    }  # fmt: skip


def thin(points: Sequence[tuple[float, float]], most: int = MOST_POINTS) -> list[tuple[float, float]]:
    """Return at most about `most` points: the lowest and highest of each stretch, so that spikes stay visible."""
    if len(points) <= most:
        return list(points)
    stretch = math.ceil(2 * len(points) / most)
    kept: list[tuple[float, float]] = []
    for i in range(0, len(points), stretch):
        part = points[i : i + stretch]
        # A set: of a stretch that is flat both are the same point.
        kept += sorted({min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])})
    return kept


def pace(points: Sequence[Any]) -> dict[int, float]:
    """Return step -> hours of training until then, without what lay between sessions. points: with `step` and `time`."""
    gaps = [b.time - a.time for a, b in pairwise(points)]
    # And a minute: of steps of milliseconds a validation takes so many times as long.
    most = PAUSE * statistics.median_high(gaps) + 60 if gaps else 0.0
    elapsed, found, before = 0.0, {}, None
    for point in points:
        if before is not None and 0 < point.time - before <= most:
            elapsed += point.time - before
        before = point.time
        found[point.step] = elapsed / 3600
    return found


class _Curves:
    """The stretches of a run's series, each read once: of a long run that is most of what a page takes."""

    def __init__(self, metrics: MetricsReader, points: int) -> None:
        self._metrics, self._points, self._known = metrics, points, dict[str, list[Stretch]]()

    def __getitem__(self, name: str) -> list[Stretch]:
        if name not in self._known:
            # The clock and the charts want some of the same series.
            self._known[name] = stretches(self._metrics, name, self._points)
        return self._known[name]


def _charts(run: RunFolder, metrics: MetricsReader, curves: _Curves) -> list[dict[str, Any]]:
    groups, left = grouped(name for name in metrics.names() if name not in SHOWN_AS_FIGURES)
    charts: list[dict[str, Any]] = [
        {"title": title, "names": names, "limits": limits_of(run, names), "more": False} for title, names in groups
    ]
    charts += [{"title": name.replace("_", " "), "names": [name], "limits": [], "more": True} for name in left]
    for chart in charts:
        # The objective of reinforcement learning is no likelihood.
        chart["unit"] = "" if chart["title"] == LOSS and run.recipe.rl is not None else _UNITS.get(chart["title"], "")
        chart["series"] = {name: told(curves[name]) for name in chart["names"]}
        chart["meanings"] = {name: text for name in chart["names"] if (text := described(name))}
        chart["meaning"] = next(iter(chart["meanings"].values()), "")
    return charts


def _clock(run: RunFolder, curves: _Curves) -> list[list[float | None]]:
    plan = run.manifest.get("plan") or {}
    batch = float((plan.get("layout") or {}).get("batch_tokens") or 0.0)
    # High: of points that are drawn together the last one is the dearest.
    money = {s.step: s.high for s in curves["dollars"]}
    # Dollars are logged from the first step on; before that nothing was spent, but where there is no price nothing is known.
    known: float | None = 0.0 if money else None
    found: list[list[float | None]] = []
    for step, hours in pace(curves["loss"] or curves["step_seconds"]).items():
        known = money.get(step, known)
        found.append([step, step * batch if batch else None, hours, known])
    return found
