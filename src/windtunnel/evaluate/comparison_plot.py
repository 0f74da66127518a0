"""A recursive run and its baselines as a picture: held-out loss, or puzzles solved, by FLOPs. matplotlib is imported on use."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from .comparison import ComparisonReport, Row
from .flop_matched import WHOLE_BATCHES
from .pictures import BLUE, INK, VERMILION, draw_png, frame, write_png

INCHES = (8.5, 5.2)
TITLE_WIDTH = 88  # letters that fit over the axes


def write_comparison_plot(report: ComparisonReport, path: Path) -> Path:
    """Draw the report into a .png file. Raises UserError: the file cannot be written."""
    return write_png(path, draw_png(INCHES, lambda figure: _draw(figure.add_subplot(), report)))


def _draw(axes: Any, report: ComparisonReport) -> None:
    puzzles = report.rows[0].solved is not None
    for kinds, colour, marker, label in (
        (("plain",), BLUE, "s", "plain models"),
        (("run", "recurrent"), VERMILION, "o", "this run's recursion, applied more and more often"),
    ):
        rows = sorted((row for row in report.rows if row.kind in kinds), key=lambda row: row.flops)
        values = [_value(row, puzzles) for row in rows]
        x, y = [row.flops for row in rows], [value for value, _, _ in values]
        spread = [[value - low for value, low, _ in values], [high - value for value, _, high in values]]
        axes.errorbar(x, y, yerr=spread, color=colour, marker=marker, markersize=7, linewidth=1.6, capsize=3, label=label)
        for row, value in zip(rows, y, strict=True):
            axes.annotate(
                _name(row), (row.flops, value), xytext=(7, -8 if puzzles else 8), textcoords="offset points", ha="left",
                va="top" if puzzles else "bottom", color=colour, fontsize=9,
            )  # fmt: skip
    _label(axes, report, puzzles)


def _value(row: Row, puzzles: bool) -> tuple[float, float, float]:
    """Return a row's measure, and where the interval of its difference to the run begins and ends around it."""
    if puzzles:
        assert row.solved is not None
        assert row.solved_behind is not None
        value, d = 100 * row.solved.value, row.solved_behind
        return value, value - 100 * (d.high - d.value), value + 100 * (d.value - d.low)
    return (
        row.loss.value,
        row.loss.value - (row.behind.value - row.behind.low),
        row.loss.value + (row.behind.high - row.behind.value),
    )


def _name(row: Row) -> str:
    if row.kind != "plain":
        return f"applied {row.recurrences}x"
    return f"{row.layers} x {row.dim}" + (", whole batches" if row.name == WHOLE_BATCHES else "")


def _label(axes: Any, report: ComparisonReport, puzzles: bool) -> None:
    from matplotlib.ticker import FuncFormatter, NullLocator

    # Sizes of models are apart by factors.
    axes.set_xscale("log")
    ticks = [t for t in (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0) if t > 0.7 * min(row.flops for row in report.rows)]
    axes.set_xticks(ticks)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.margins(x=0.12, y=0.14)
    axes.set_xlabel("training FLOPs, of this run's", color=INK)
    axes.set_ylabel("held-out puzzles solved, percent" if puzzles else "held-out loss, nats a token", color=INK)
    axes.set_title(textwrap.fill(report.verdict, TITLE_WIDTH), loc="left", color=INK, fontsize=10.5)
    frame(axes)
    legend = axes.legend(
        frameon=False, labelcolor=INK, title="bars: 95 % of the difference to this run", title_fontsize=9, alignment="left"
    )
    legend.get_title().set_color(INK)
