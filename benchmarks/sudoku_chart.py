"""Draw docs/sudoku.svg: puzzles solved over inference steps, and loss over puzzles seen, of the recursive and the plain model.

    python benchmarks/sudoku_chart.py                                            # after each change of the report below
    python benchmarks/sudoku_chart.py --report build/measured/sudoku.json --out build/sudoku.svg

Everything drawn stands in the report that `sudoku.py` wrote. The picture has colours for light and for dark pages.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REPORT, OUT = HERE / "results" / "sudoku-h200.json", HERE.parent / "docs" / "sudoku.svg"
WIDTH, HEIGHT = 900, 372
Points = Sequence[tuple[float, float]]

STYLE = """
svg { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; --page: #ffffff; --ink: #24292f;
  --soft: #656d76; --grid: #e4e8ec; --recursive: #1f6feb; --plain: #c2570c; }
@media (prefers-color-scheme: dark) { svg { --page: #0d1117; --ink: #e6edf3; --soft: #9198a1; --grid: #262c36;
  --recursive: #58a6ff; --plain: #f0883e; } }
text { fill: var(--ink) }
.page { fill: var(--page) }
.soft { fill: var(--soft) }
.bold { font-weight: 600 }
.grid { stroke: var(--grid) }
.axis { stroke: var(--soft) }
.line { fill: none; stroke-width: 2.2; stroke-linejoin: round }
.thin { stroke-width: 1.3; opacity: .75 }
.dashed { stroke-dasharray: 5 4 }
.recursive { stroke: var(--recursive) }
.plain { stroke: var(--plain) }
.halo { stroke: var(--page); stroke-width: 4; paint-order: stroke; stroke-linejoin: round }
.dot { fill: var(--page); stroke-width: 1.8 }
""".strip()


@dataclass(frozen=True)
class Panel:
    """A pair of axes in the picture.

    Attributes:
        left, right, top, bottom: of the area, in pixels. x, y: least and most. log: whether y is logarithmic.
    """

    left: float
    right: float
    top: float
    bottom: float
    x: tuple[float, float]
    y: tuple[float, float]
    log: bool = False

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Pixels of a point; what lies below the axes is drawn on their edge."""
        across = (x - self.x[0]) / (self.x[1] - self.x[0])
        low, high, value = (math.log(v) if self.log else v for v in (*self.y, max(y, self.y[0])))
        return self.left + across * (self.right - self.left), self.bottom - (value - low) / (high - low) * (
            self.bottom - self.top
        )

    def line(self, points: Points, look: str) -> str:
        """A curve."""
        path = " ".join("{:.1f},{:.1f}".format(*self.at(x, y)) for x, y in points)
        return f'<polyline class="line {look}" points="{path}"/>'

    def dots(self, points: Points, look: str) -> list[str]:
        """Points that were measured one by one."""
        return ['<circle class="dot {}" cx="{:.1f}" cy="{:.1f}" r="3"/>'.format(look, *self.at(x, y)) for x, y in points]

    def axes(self, title: str, below: str, xs: dict[float, str], ys: dict[float, str]) -> list[str]:
        """Title, grid and the values along the axes."""
        parts = [
            text(self.left - 34, self.top - 14, title, "bold"),
            text((self.left + self.right) / 2, self.bottom + 40, below, "soft", "middle"),
        ]
        for value, label in ys.items():
            y = self.at(self.x[0], value)[1]
            parts.append(rule(self.left, y, self.right, y, "grid"))
            parts.append(text(self.left - 8, y + 4, label, "soft", "end"))
        parts.append(rule(self.left, self.bottom, self.right, self.bottom, "axis"))
        for value, label in xs.items():
            x = self.at(value, self.y[0])[0]
            parts.append(rule(x, self.bottom, x, self.bottom + 4, "axis"))
            parts.append(text(x, self.bottom + 19, label, "soft", "middle"))
        return parts


def text(x: float, y: float, words: str, look: str = "", anchor: str = "start") -> str:
    """Words at a place."""
    place = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{look}"{place}>{escape(words)}</text>'


def rule(x1: float, y1: float, x2: float, y2: float, look: str) -> str:
    """A straight line."""
    return f'<path class="{look}" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'


def percent(share: float) -> str:
    """Of a share."""
    return f"{100 * share:.1f} %"


def solved(report: dict[str, Any]) -> list[str]:
    """The left half: share solved after each supervision step of inference, of all held-out puzzles and by guesses needed."""
    recursive = report["results"]["recursive"]["evaluation"]["puzzles"]
    every, *others = [kind for kind in recursive["kinds"] if kind["held_out"]]
    shares, trained = every["exact_by_step"], recursive["supervision"]["trained"]
    most = len(shares)
    panel = Panel(62, 376, 88, 318, (1, most), (0, 1))
    xs = {n: str(n) for n in (1, *range(4, most + 1, 4))}
    ys = {i / 4: f"{25 * i} %" for i in range(5)}
    parts = panel.axes("Puzzles solved exactly", "supervision steps at inference", xs, ys)
    x = panel.at(trained, 0)[0]
    parts += [
        rule(x, panel.top, x, panel.bottom, "axis dashed"),
        text(x + 7, panel.at(1, 0.3)[1], f"trained with {trained}", "soft"),
    ]
    parts += [panel.line(list(enumerate(kind["exact_by_step"], 1)), "recursive thin") for kind in others]
    parts.append(panel.line(list(enumerate(shares, 1)), "recursive"))
    parts += panel.dots([(n, shares[n - 1]) for n in (trained, most)], "recursive")
    for height, n in ((0.62, trained), (0.54, most)):
        parts.append(text(x + 7, panel.at(1, height)[1], f"all: {percent(shares[n - 1])} at {n}", "bold"))
    twins = {name: found["evaluation"]["puzzles"]["exact"]["share"] for name, found in drawn(report["results"]).items()}
    parts += [panel.line([(1, share), (most, share)], "plain dashed") for share in twins.values()]
    words = ", ".join(f"{name}: {percent(share)}" for name, share in twins.items())
    parts.append(text(panel.right, panel.at(1, max(twins.values()))[1] - 8, words, "bold halo", "end"))
    return parts + beside(panel, {kind["kind"].partition(", ")[2]: kind["exact_by_step"][-1] for kind in others})


def drawn(results: dict[str, Any]) -> dict[str, Any]:
    """The plain models that are drawn: not those whose place another training has taken."""
    return {name: results[name] for name in ("plain", "plain-deep") if "evaluation" in results.get(name, {})}


def beside(panel: Panel, ends: dict[str, float]) -> list[str]:
    """Names where the curves end, from the highest down, each far enough below the one before."""
    parts, last = [], panel.top - 20.0
    for name, share in sorted(ends.items(), key=lambda end: -end[1]):
        last = max(panel.at(1, share)[1] - 1, last + 15)
        parts.append(text(panel.right + 8, last + 4, name.replace("1 guesses", "1 guess"), "soft"))
    return parts


def losses(report: dict[str, Any]) -> list[str]:
    """The right half: training loss over puzzles seen, and validations as dots."""
    models = {name: report["results"][name] for name in ("recursive", "plain")}
    most = max(model["puzzles_seen"] for model in models.values())
    step = tick(most)
    curves = {name: seen(model, "loss") for name, model in models.items()}
    least = min(value for points in curves.values() for _, value in points)
    marks = [value for value in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0) if value > least / 2]
    panel = Panel(560, 880, 88, 318, (0, most), (min(marks[0], least), 2.4), log=True)
    xs = {i * step: f"{i * step / 1e3:,.0f} k" if i else "0" for i in range(int(most // step) + 1)}
    parts = panel.axes("Loss, nats a cell", "puzzles seen in training", xs, {value: f"{value:g}" for value in marks})
    for name, points in curves.items():
        parts.append(panel.line(points, f"{name} thin"))
        parts += panel.dots(seen(models[name], "validation_loss"), name)
    return [*parts, text(panel.right, panel.top - 14, "line: training, dots: held out", "soft", "end")]


def seen(model: dict[str, Any], name: str) -> list[tuple[float, float]]:
    """A curve over puzzles instead of steps."""
    return [(step * model["batch"], value) for step, value in model["curves"][name]]


def tick(most: float) -> float:
    """A round distance of marks: at most six of them."""
    size = 10 ** math.floor(math.log10(most))
    return next(size * share for share in (0.2, 0.5, 1.0, 2.0) if most / (size * share) <= 6)


def legend(report: dict[str, Any]) -> list[str]:
    """One line that says which model is which, and what each was given."""
    parts, x = [], 28.0
    for name in ("recursive", "plain"):
        model = report["results"][name]
        part = model.get("flops_share")
        share = "" if part is None else ", as many FLOPs" if round(part, 2) == 1 else f", {part:.2f} of the FLOPs"
        parts.append(rule(x, 28, x + 24, 28, f"line {name}"))
        words = f"{model['parameters'] / 1e6:.3g} M parameters{share}"
        parts.append(text(x + 32, 32, f"{name}: {words}"))
        x += 380
    return parts


def draw(report: dict[str, Any]) -> str:
    """The picture."""
    n = report["results"]["recursive"]["evaluation"]["puzzles"]["exact"]["n"]
    title = f"Recursive and plain model on {n:,} held-out Sudoku, {report['machine']['gpu'] or 'CPU'}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img">'
    parts = [head, f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>"]
    parts.append(f'<rect class="page" width="{WIDTH}" height="{HEIGHT}" rx="8"/>')
    return "\n".join([*parts, *legend(report), *solved(report), *losses(report), "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", type=Path, default=REPORT, help="of sudoku.py, with both models")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(draw(json.loads(args.report.read_text("utf-8"))), "utf-8")
    print(f"wrote {args.out}: {args.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
