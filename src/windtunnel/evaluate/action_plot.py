"""Confusion matrix and reliability of predicted actions as one picture. matplotlib is imported on use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .action_report import SHORT, ActionReport
from .calibration import BINS
from .pictures import BLUE, GRID, INK, draw_png, frame, write_png

INCHES = (10.5, 4.8)


def write_action_plot(report: ActionReport, path: Path, title: str) -> Path:
    """Draw the report into a .png file. Raises UserError: the file cannot be written."""

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
        _draw_confusion(left, report)
        _draw_reliability(right, report)
        figure.suptitle(title, x=0.01, ha="left", color=INK, fontsize=11)

    return write_png(path, draw_png(INCHES, draw))


def _draw_confusion(axes: Any, report: ActionReport) -> None:
    scores = report.scores
    counts = scores.confusion
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    names = [SHORT.get(label, label) for label in scores.labels]
    # Shares of a row, not counts: rare classes would be white otherwise.
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for (row, column), count in np.ndenumerate(counts):
        share = shares[row, column]
        text = f"{count:,}\n{share:.0%}" if count else "0"
        axes.text(column, row, text, ha="center", va="center", fontsize=9, color="white" if share > 0.55 else INK)
    axes.set_xticks(range(len(names) + 1), [*names, "none"])
    axes.set_yticks(range(len(names)), names)
    # Parts what could not be read from the classes.
    axes.axvline(len(names) - 0.5, color="white", linewidth=4)
    axes.set_xlabel("said (none: it could not be read)", color=INK)
    axes.set_ylabel("truth", color=INK)
    accuracy = scores.accuracy
    ends = f" ({accuracy.low:.1%} to {accuracy.high:.1%})" if np.isfinite(accuracy.low) else ""
    axes.set_title(
        f"accuracy {accuracy.value:.1%}{ends}, macro F1 {scores.macro_f1.value:.3f}", loc="left", color=INK, fontsize=10
    )
    axes.tick_params(colors=INK, length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _draw_reliability(axes: Any, report: ActionReport) -> None:
    found = report.calibration
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.plot([0, 1], [0, 1], color=INK, linewidth=1, linestyle="--", label="as sure as right")
    if found is None:
        axes.set_title("no answer names an action: nothing to calibrate", loc="left", color=INK, fontsize=10)
    else:
        middle = [(each.low + each.high) / 2 for each in found.bins]
        most = max(each.n for each in found.bins)
        # A quarter of the height, so that the bars do not hide the curve.
        heights = [0.25 * each.n / most for each in found.bins]
        axes.bar(middle, heights, width=0.9 / BINS, color=GRID, label=f"predictions (most {most:,})")
        axes.plot(
            [each.confidence for each in found.bins], [each.right for each in found.bins], color=BLUE, marker="o", markersize=6,
            linewidth=1.6, label="share that is right",
        )  # fmt: skip
        axes.set_title(
            f"calibration error {found.ece:.1%}, Brier score {found.brier:.3f} (prior {found.prior_brier:.3f})",
            loc="left", color=INK, fontsize=10,
        )  # fmt: skip
    axes.set_xlabel("probability of the likeliest action", color=INK)
    axes.set_ylabel("share that is right", color=INK)
    frame(axes)
    axes.legend(frameon=False, labelcolor=INK, loc="best", fontsize=9)
