"""What pictures of reports share: colours, axes without a box, and a figure as PNG. matplotlib is imported on use."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windtunnel.files import write_atomic
from windtunnel.recipe import UserError

# Of Okabe and Ito's palette: told apart by colour-blind eyes too.
BLUE, VERMILION, INK, GRID = "#0072b2", "#d55e00", "#2b3440", "#cfd5dc"
DOTS = 150


def draw_png(inches: tuple[float, float], draw: Callable[[Any], None]) -> bytes:
    """Return a figure as PNG; `draw` is given matplotlib's figure."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure  # not pyplot, which would look for a screen and keep every figure

    buffer = io.BytesIO()
    # Dollar signs are dollars, not formulas.
    with rc_context({"font.family": "sans-serif", "font.size": 10, "text.parse_math": False}):
        figure = Figure(figsize=inches, facecolor="white", layout="constrained")
        draw(figure)
        figure.savefig(buffer, format="png", dpi=DOTS, facecolor="white")
    return buffer.getvalue()


def write_png(path: Path, content: bytes) -> Path:
    """Write a picture in one step and return its path. Raises UserError: the file cannot be written."""
    try:
        write_atomic(path, content)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written: {error.strerror or error}", "name a file in a folder that is there and yours"
        ) from None
    return path


def frame(axes: Any) -> None:
    """Draw a grid behind the curves, and the left and lower edge alone."""
    axes.grid(True, color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, length=0)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(GRID)
