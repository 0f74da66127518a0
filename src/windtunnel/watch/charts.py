"""Planned memory as SVG: drawn by matplotlib, coloured by the page's style sheet (light or dark)."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from .report_model import Memory

# Stand-ins which the page's variables replace: matplotlib wants real colours.
_INK, _GRID = "#010203", "#010204"
_COLOURS = ["#010211", "#010212", "#010213", "#010214", "#010215", "#010216", "#010217", "#010218"]
_HATCHES = ("", "////", "....")  # where there are more parts than colours
_VARIABLES = {_INK: "var(--ink)", _GRID: "var(--grid)", **{c: f"var(--c{i})" for i, c in enumerate(_COLOURS)}}
MOST_POINTS = 1500
WIDTH = 9.6
"""Inches, of ten points a letter: what a page's card is wide."""


def memory_chart(plans: Sequence[tuple[str, Memory]], *, name: str = "memory") -> str:
    """Draw one stacked bar a rig, GiB by component, with a mark at its limit."""
    kept = [(rig, memory) for rig, memory in plans if any(v > 0 for v in memory.components.values())]
    if not kept:
        return ""
    height = 1.2 + 0.55 * len(kept)  # inches; the legend hangs half an inch below the axes
    components = list(dict.fromkeys(c for _, memory in kept for c in memory.components))

    def draw(axes: Any) -> None:
        rows = list(range(len(kept)))
        left = [0.0] * len(kept)
        for i, component in enumerate(components):
            widths = [max(0.0, memory.components.get(component, 0.0)) for _, memory in kept]
            again, colour = divmod(i, len(_COLOURS))
            look = {"color": _COLOURS[colour], "hatch": _HATCHES[again % len(_HATCHES)], "edgecolor": "white", "linewidth": 0}
            axes.barh(rows, widths, left=left, height=0.5, label=component, **look)
            left = [a + b for a, b in zip(left, widths, strict=True)]
        for row, (_, memory) in enumerate(kept):
            if memory.limit_gib is not None:
                axes.plot(
                    [memory.limit_gib] * 2, [row - 0.4, row + 0.4], color=_INK, linewidth=2, label="limit" if row == 0 else None
                )
        axes.set_yticks(rows, [rig for rig, _ in kept])
        axes.invert_yaxis()
        axes.set_xlabel("GiB per rank")
        axes.legend(frameon=False, labelcolor=_INK, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.5 / (0.77 * height)))

    return _svg(draw, (WIDTH, height), name)


def thin(points: Sequence[tuple[float, float]], most: int = MOST_POINTS) -> list[tuple[float, float]]:
    """Return at most about `most` points: the lowest and highest of each stretch, so that spikes stay visible."""
    if len(points) <= most:
        return list(points)
    stretch = math.ceil(2 * len(points) / most)
    kept: list[tuple[float, float]] = []
    for i in range(0, len(points), stretch):
        part = points[i : i + stretch]
        kept += sorted({min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])})
    return kept


def _svg(draw: Callable[[Any], None], inches: tuple[float, float], name: str) -> str:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif", "font.size": 10}):
        figure = Figure(figsize=inches)
        axes = figure.add_subplot()
        draw(axes)
        axes.grid(True, color=_GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(colors=_INK, length=0)
        for label in (axes.xaxis.label, axes.yaxis.label):
            label.set_color(_INK)
        for side, spine in axes.spines.items():
            spine.set_visible(side in ("left", "bottom"))
            spine.set_color(_GRID)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, bbox_inches="tight", metadata={"Date": None})
    return _for_page(buffer.getvalue(), name)


def _for_page(svg: str, name: str) -> str:
    """Inline SVG: no XML header, identifiers of its own, the page's colours and font, and no fixed size."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r'\1 role="img"', svg, count=1)
    for stand_in, variable in _VARIABLES.items():
        svg = svg.replace(stand_in, variable)
    svg = re.sub(r"font(?:-family)?: ?[^;\"]*(?=[;\"])", lambda m: re.sub(r"'[^']*'.*|sans-serif.*", "inherit", m[0]), svg)
    svg = re.sub(r'id="([^"]+)"', rf'id="{name}-\1"', svg)
    return re.sub(r'(url\(#|href="#)', rf"\1{name}-", svg)
