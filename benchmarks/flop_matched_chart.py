"""Draw docs/flop-matched.svg: held-out loss over training FLOPs of each model, and what earlier supervision steps lose.

    python benchmarks/flop_matched_chart.py    # after each change of the report below
    python benchmarks/flop_matched_chart.py --report build/measured/flop-matched.json --out build/flop-matched.svg

Everything drawn stands in the report that `flop_matched.py` wrote; a report without curves is refused. The picture has colours
for light and for dark pages.
"""

from __future__ import annotations

import argparse
import json
import math
from html import escape
from pathlib import Path
from typing import Any

from sudoku_chart import STYLE, Panel, rule, text

HERE = Path(__file__).resolve().parent
REPORT, OUT = HERE / "results" / "flop-matched-h200.json", HERE.parent / "docs" / "flop-matched.svg"
WIDTH, HEIGHT = 900, 372
APART = 15.0
"""Pixels between names at the curves' ends."""
LOSSES = (1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0)
Points = list[tuple[float, float]]


def curve(found: dict[str, Any], name: str, unit: float) -> Points:
    """(training FLOPs in `unit`, value) of a series."""
    return [(step * found["flops_per_step"] / unit, value) for step, value in found["series"][name]]


def by_flops(report: dict[str, Any]) -> list[str]:
    """The left half: validation loss of each model over its training FLOPs, both logarithmic."""
    models = {model["name"]: model for model in report["report"]["models"] if model["name"] in report["curves"]}
    curves = {
        name: [(math.log10(x), y) for x, y in curve(report["curves"][name], "validation_loss", 1.0) if x > 0] for name in models
    }
    every = [point for points in curves.values() for point in points]
    x = min(x for x, _ in every), max(x for x, _ in every)
    y = 0.92 * min(y for _, y in every), 1.02 * max(y for _, y in every)
    panel = Panel(62, 400, 88, 318, x, y, log=True)
    xs = {float(n): power(n) for n in range(math.ceil(x[0]), math.floor(x[1]) + 1)}
    parts = panel.axes(
        "Held-out loss, nats a token", "training FLOPs", xs, spaced(panel, [v for v in LOSSES if y[0] <= v <= y[1]])
    )
    ends = {}
    for name, points in curves.items():
        look, (across, value) = "recursive" if models[name]["kind"] != "plain" else "plain", points[-1]
        parts.append(panel.line(points, look if models[name]["kind"] == "run" else f"{look} thin"))
        parts += panel.dots(points[-1:], look)
        right, height = panel.at(across, value)
        if panel.right - right < APART:
            ends[name_of(models[name])] = value
        elif look == "plain":
            parts.append(text(right + 4, height + 18, name_of(models[name]), "soft halo", "end"))
        else:
            parts.append(text(right + 2, height - 9, f"{models[name]['recurrences']}x", "soft halo"))
    return parts + beside(panel, ends)


def spaced(panel: Panel, values: list[float]) -> dict[float, str]:
    """Those marks that have room, from the lowest up."""
    kept: dict[float, str] = {}
    last = math.inf
    for value in values:
        height = panel.at(panel.x[0], value)[1]
        if last - height >= APART:
            kept[value], last = f"{value:g}", height
    return kept


def name_of(model: dict[str, Any]) -> str:
    """A model in two or three words."""
    return str(model["role"]).replace("plain, ", "").replace("this run, ", "recursive, ").replace("params", "parameters")


def power(exponent: int) -> str:
    """Of ten."""
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def beside(panel: Panel, ends: dict[str, float]) -> list[str]:
    """Names where the curves end, from the highest down, each far enough below the one before, none below the axes."""
    found = sorted(ends.items(), key=lambda end: -end[1])
    heights, last = [], panel.top - APART
    for _, value in found:
        last = max(panel.at(panel.x[0], value)[1], last + APART)
        heights.append(last)
    low = panel.bottom
    for i in reversed(range(len(heights))):
        low = min(heights[i], low)
        heights[i], low = low, low - APART
    return [text(panel.right + 9, y + 4, name, "soft") for (name, _), y in zip(found, heights, strict=True)]


def by_step(report: dict[str, Any]) -> list[str]:
    """The right half: how much more than the last supervision step each earlier one loses, over the run's training."""
    own = report["report"]["models"][0]
    found = report["curves"][own["name"]]
    steps = len(own["step_losses"])
    flops = 10.0 ** math.floor(math.log10(found["series"]["validation_loss"][-1][0] * found["flops_per_step"]))
    values = [curve(found, f"validation_loss_step_{i}", flops) for i in range(steps)]
    gaps = [[(x, y - end) for (x, y), (_, end) in zip(series, values[-1], strict=True)] for series in values[:-1]]
    most, least = max(y for gap in gaps for _, y in gap), min(y for gap in gaps for _, y in gap)
    size = step_of(max(most, 0.0) - min(least, 0.0))
    y = size * math.floor(min(least, 0.0) / size), size * math.ceil(max(most, 0.0) / size)
    right = max(x for gap in gaps for x, _ in gap)
    panel = Panel(592, 812, 88, 318, (0.0, right), y)
    across = step_of(right)
    xs = {i * across: f"{i * across:g}" for i in range(int(right / across + 1e-9) + 1)}
    ys = {i * size: f"{i * size:g}" for i in range(round(y[0] / size), round(y[1] / size) + 1)}
    parts = panel.axes("More than the last supervision step, nats", f"training FLOPs, {power(round(math.log10(flops)))}", xs, ys)
    for i, gap in enumerate(gaps):
        parts.append(panel.line(gap, "recursive" if i == 0 else "recursive thin"))
        parts += panel.dots(gap[-1:], "recursive")
    parts.append(rule(panel.left, panel.at(0, 0)[1], panel.right, panel.at(0, 0)[1], "axis"))
    return parts + beside(panel, {f"step {i}": gap[-1][1] for i, gap in enumerate(gaps)})


def step_of(most: float) -> float:
    """A round distance of marks: at most six of them."""
    size = 10 ** math.floor(math.log10(max(most, 1e-6)))
    return next(size * share for share in (0.2, 0.5, 1.0, 2.0) if most / (size * share) <= 6)


def legend(report: dict[str, Any]) -> list[str]:
    """One line that says what was trained."""
    found, where = report["report"], report["machine"]["gpu"] or "a CPU"
    tokens = found["steps"] * found["batch_tokens"] / 1e6
    parts = [rule(28, 28, 52, 28, "line recursive"), text(60, 32, "recursive")]
    parts += [rule(140, 28, 164, 28, "line plain"), text(172, 32, "plain")]
    words = f"{tokens:.1f} M tokens of Python's standard library each, {where}"
    return [*parts, text(WIDTH - 28, 32, words, "soft", "end")]


def draw(report: dict[str, Any]) -> str:
    """The picture.

    Raises:
        SystemExit: the report has no curves.
    """
    if not report.get("curves") or "report" not in report:
        raise SystemExit("the report has no curves: write it again with python benchmarks/flop_matched.py")
    own = report["report"]["models"][0]
    title = f"A recursive model of {own['parameters'] / 1e6:.3g} M parameters and what it is compared with"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img">'
    parts = [head, f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>"]
    parts.append(f'<rect class="page" width="{WIDTH}" height="{HEIGHT}" rx="8"/>')
    right = by_step(report) if len(own["step_losses"]) > 1 and own["name"] in report["curves"] else []
    return "\n".join([*parts, *legend(report), *by_flops(report), *right, "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", type=Path, default=REPORT, help="of flop_matched.py, with curves")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    picture = draw(json.loads(args.report.read_text("utf-8")))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(picture, "utf-8")
    print(f"wrote {args.out}: {len(picture):,} bytes")


if __name__ == "__main__":
    main()
