"""The charts of a run's page: smoothed where a metric is noisy, and the later part of the loss by itself."""

from __future__ import annotations

from windtunnel.run import MetricsReader, RunFolder, described

from .charts import line_chart
from .groups import LOSS, grouped, limits_of
from .report_model import Curve
from .supervision import smoothed, step_curves, supervision_charts, supervision_curves

SMOOTHED = 60
"""Points that a noisy metric is averaged into."""
LEAST_SMOOTHED = 4 * SMOOTHED
LATER = 0.3
"""Of the steps: after it the loss is drawn once more, on a scale of its own."""
LEAST_LATER = 20
NEARBY = 3.0
"""A limit so many times as high as what was measured would make a flat line of it."""
_LEFT_OUT = ("Loss after each supervision step", "Validation loss after each supervision step")  # these have a part of their own
_UNITS = {LOSS: "nats per token", "Gradient norm": "before clipping", "Tokens per second": "tokens/s", "Dollars": "dollars"}


def run_charts(run: RunFolder) -> tuple[list[tuple[str, str, str]], dict[str, str]]:
    """Return the charts of a run as (title, SVG, what it means), and those of supervision steps by name."""
    if not run.metrics_path.exists():
        return [], supervision_charts(None)
    with MetricsReader(run.metrics_path) as metrics:
        drawn = []
        for title, names in grouped(metrics.names())[0]:
            if title not in _LEFT_OUT:
                drawn += _group(run, metrics, title, names)
        return [part for part in drawn if part[1]], supervision_charts(supervision_curves(metrics, _vocab(run)))


def _group(run: RunFolder, metrics: MetricsReader, title: str, names: list[str]) -> list[tuple[str, str, str]]:
    """Draw one chart; of the loss its later part too."""
    names = sorted(names, key=len)  # what the others are parts of comes first
    curves = [_curve(metrics, name) for name in names]
    if title == "Gradient norm" and (updates := step_curves(metrics, "gradient_norm", 7)):
        # Each supervision step has an update of its own.
        curves = [Curve("root mean square", curves[0].points), *updates]
    key = "".join(letter for letter in title.lower() if letter.isalpha())
    highest = max((y for curve in curves for _, y in curve.points if y == y), default=0.0)
    limit = next((one for one in limits_of(run, names) if 0 < one["value"] < NEARBY * highest), None)
    unit = "" if title == LOSS and run.recipe.rl is not None else _UNITS.get(title, "")
    shown = [both for curve in curves for both in _softened(curve)]
    told = line_chart(
        shown, x="step", y=unit, name=key, limit=limit["value"] if limit else None,
        limit_name=limit["name"] if limit else "",
    )  # fmt: skip
    found = [(title, told, next((text for name in names if (text := described(name))), ""))]
    if title == LOSS:
        later = [Curve(curve.name, _later(curve.points)) for curve in curves]
        if max(len(curve.points) for curve in later) >= LEAST_LATER:
            again = [both for curve in later for both in _softened(curve)]
            found.append((f"{LOSS}, the later part", line_chart(again, x="step", y=unit, name="later"), ""))
    return found


def _curve(metrics: MetricsReader, name: str) -> Curve:
    return Curve(name.replace("_", " "), [(float(point.step), point.value) for point in metrics.series(name)])


def _softened(curve: Curve) -> list[Curve]:
    """Return a noisy curve faintly, and its means over it; one of few points as it is."""
    if len(curve.points) < LEAST_SMOOTHED:
        return [curve]
    return [Curve(curve.name, curve.points, faint=True), Curve(f"{curve.name}, mean", smoothed(curve.points, SMOOTHED))]


def _later(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    if not points:
        return []
    start = points[0][0] + LATER * (points[-1][0] - points[0][0])
    return [point for point in points if point[0] >= start]


def _vocab(run: RunFolder) -> int | None:
    found = (run.manifest.get("plan") or {}).get("vocab")
    return found if isinstance(found, int) and found > 1 else None
