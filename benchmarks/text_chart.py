"""Draw docs/text.svg: what recursive and plain models of the same FLOPs lose on text, and what supervision steps lose on the way.

    python benchmarks/text_chart.py                                              # after each change of the reports below

Left, from the report of `presets.py`: the training loss of the last supervision step over FLOPs, the mean of all seeds. Right,
from that of `phase_one.py`: how much more than the last supervision step each earlier one loses on held-out text. The picture has
colours for light and for dark pages.
"""

from __future__ import annotations

import json
import statistics
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

from flop_matched_chart import HEIGHT, LOSSES, WIDTH, Points, beside, power, spaced, step_of
from sudoku_chart import STYLE, Panel, rule, text

HERE = Path(__file__).resolve().parent
PRESETS, PHASE = HERE / "results" / "presets-h200.json", HERE / "results" / "trm-phase-1-h200.json"
OUT = HERE.parent / "docs" / "text.svg"
SHOWN = {
    "equal": "recursive",
    "each": "update each step",
    "equal-parts": "small batches",
    "plain-flops": "plain",
    "plain-flops-parts": "plain, small batches",
}
POINTS = 16
"""Of each curve, a mean of its part of the run: single batches differ by more than models do."""


def smoothed(runs: list[dict[str, Any]], flops: float) -> Points:
    """(FLOPs, mean over seeds and over a part of the run)."""
    series = [statistics.fmean(values) for values in zip(*(run["train_loss"] for run in runs), strict=True)]
    cuts = [round(part * len(series) / POINTS) for part in range(POINTS + 1)]
    parts = [series[begin:end] for begin, end in pairwise(cuts)]
    return [((at + 0.5) / POINTS * flops, statistics.fmean(part)) for at, part in enumerate(parts) if part]


def same_flops(report: dict[str, Any]) -> list[str]:
    """The left half."""
    unit = 10.0 ** (len(f"{report['results']['equal']['flops']:.0f}") - 1)
    found = {name: report["results"][name] for name in SHOWN if name in report["results"]}
    curves = {name: smoothed(one["runs"], one["flops"] / unit) for name, one in found.items()}
    values = [y for points in curves.values() for _, y in points]
    y = 0.95 * min(values), 1.02 * max(values)
    right = max(points[-1][0] for points in curves.values())
    panel = Panel(62, 372, 88, 318, (0.0, right), y, log=True)
    across = step_of(right)
    xs = {i * across: f"{i * across:g}" for i in range(int(right / across + 1e-9) + 1)}
    ys = spaced(panel, [v for v in LOSSES if y[0] <= v <= y[1]])
    parts = panel.axes("Training loss, nats a token", f"training FLOPs, {power(len(f'{unit:.0f}') - 1)}", xs, ys)
    for name, points in curves.items():
        look = "plain" if name.startswith("plain") else "recursive"
        parts.append(panel.line(points, look if name in ("equal", "plain-flops") else f"{look} thin"))
        parts += panel.dots(points[-1:], look)
    return parts + beside(panel, {SHOWN[name]: points[-1][1] for name, points in curves.items()})


def by_step(report: dict[str, Any]) -> list[str]:
    """The right half."""
    names = sorted(name for name in report["curves"] if name.startswith("validation_loss_step_"))
    tokens = report["batch_tokens"] / 1e6
    last = [value for _, value in report["curves"][names[-1]]]
    every = [report["curves"][name] for name in names[:-1]]
    gaps = [[(step * tokens, value - end) for (step, value), end in zip(points, last, strict=True)] for points in every]
    most, right = max(y for gap in gaps for _, y in gap), max(x for x, _ in gaps[0])
    size, across = step_of(most), step_of(right)
    panel = Panel(612, 812, 88, 318, (0.0, right), (0.0, size * -(-most // size)))
    xs = {i * across: f"{i * across:g}" for i in range(int(right / across + 1e-9) + 1)}
    ys = {i * size: f"{i * size:g}" for i in range(round(panel.y[1] / size) + 1)}
    parts = panel.axes("More than the last step, held out, nats", "million tokens", xs, ys)
    for at, gap in enumerate(gaps):
        parts.append(panel.line(gap, "recursive" if at == 0 else "recursive thin"))
        parts += panel.dots(gap[-1:], "recursive")
    return parts + beside(panel, {f"step {at}": gap[-1][1] for at, gap in enumerate(gaps)})


def draw(presets: dict[str, Any], phase: dict[str, Any]) -> str:
    """The picture."""
    title = "Recursive and plain models on Python's standard library"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img">'
    parts = [head, f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>"]
    parts.append(f'<rect class="page" width="{WIDTH}" height="{HEIGHT}" rx="8"/>')
    parts += [rule(28, 28, 52, 28, "line recursive"), text(60, 32, "recursive")]
    parts += [rule(140, 28, 164, 28, "line plain"), text(172, 32, "plain, same FLOPs")]
    size = sum(phase["parameters"].values()) / 1e6
    left = presets["results"]["equal"]["model"].split(",")[0]
    words = f"left: {left}, two seeds; right: {size:.1f} M parameters, {phase['preset']}"
    parts.append(text(WIDTH - 28, 32, words, "soft", "end"))
    return "\n".join([*parts, *same_flops(presets), *by_step(phase), "</svg>"]) + "\n"


def main() -> None:
    picture = draw(*(json.loads(path.read_text("utf-8")) for path in (PRESETS, PHASE)))
    OUT.write_text(picture, "utf-8")
    print(f"wrote {OUT.name}: {len(picture):,} bytes")


if __name__ == "__main__":
    main()
