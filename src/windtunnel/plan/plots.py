"""Pictures of plans: memory of a rank over a step against the limit, the step's terms, cost against rigs. PNG, HTML, SVG.

matplotlib is imported on use only.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from windtunnel.files import write_atomic
from windtunnel.recipe import UserError

from .plot_parts import GRID, INK, draw_costs, draw_memory, draw_roles, draw_terms
from .text import OF_STAGE
from .types import Plan

SUFFIXES = (".png", ".html")
WIDTH = 10.0  # inches
MEMORY_HEIGHT, ROLES_HEIGHT, TERM_HEIGHT, MARGIN = 3.3, 3.3, 0.3, 1.1
DOTS = 150
PAPER = "#ffffff"
# What the page's style sheet replaces: matplotlib wants real colours.
_VARIABLES = {INK: "var(--ink)", GRID: "var(--grid)"}


def check_plot_path(path: Path) -> None:
    """Whether a picture can be written there.

    Raises:
        UserError: another suffix than .png or .html, or a folder that is not there.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(
            f"--plot {path}: pictures are written as {' or '.join(SUFFIXES)}, not {path.suffix or 'without a suffix'}",
            f"--plot {path.with_suffix('.png')}",
        )
    if path.is_dir() or not path.parent.is_dir():
        what = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise UserError(f"--plot {path}: {what}", "name a file in a folder that exists")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserError(f"--plot {path}: no permission to write there", "name a file in a folder of yours")


def write_plot(plans: Sequence[Plan], path: Path) -> Path:
    """Draw plans of one recipe, one row a rig and stage, into a .png or a .html file that needs nothing else.

    Raises:
        UserError: see check_plot_path; the file cannot be written.
    """
    check_plot_path(path)
    drawn = list(dict.fromkeys((plan.rig, plan.recipe) for plan in plans))  # a rig that is named twice is drawn once
    plans = [next(plan for plan in plans if (plan.rig, plan.recipe) == one) for one in drawn]
    content = _png(plans) if path.suffix.lower() == ".png" else _page(plans).encode()
    try:
        write_atomic(path, content, durable=False)
    except OSError as error:
        raise UserError(f"--plot {path}: cannot be written: {error.strerror or error}", "name another file") from None
    return path


def memory_svg(plan: Plan, name: str = "memory") -> str:
    """Memory of one rank by component over the step, and at its peak against the limit, as SVG for a page.

    The page's style sheet sets the variables --ink and --grid. `name` makes identifiers unique in the page.
    """
    return _svg((WIDTH, MEMORY_HEIGHT), lambda figure: draw_memory(figure, plan), name)


def step_svg(plan: Plan, name: str = "step") -> str:
    """Draw the step's terms on a time axis, as memory_svg."""
    return _svg((WIDTH, _terms_height(plan)), lambda figure: draw_terms(figure, plan), name)


def cost_svg(plans: Sequence[Plan]) -> str:
    """Dollars of the whole run on each rig, as memory_svg."""
    return _svg((WIDTH, _cost_height(plans)), lambda figure: draw_costs(figure, plans), "cost")


def roles_svg(plan: Plan, name: str = "roles") -> str:
    """Memory of learners and engines, as memory_svg; empty text for plans without."""
    return _svg((WIDTH, ROLES_HEIGHT), lambda figure: draw_roles(figure, plan), name) if plan.roles else ""


def _whole(plans: Sequence[Plan]) -> list[Plan]:
    """Return one plan a rig, with what all stages take there together; none of a rig that has a plan of some stages alone."""
    whole: list[Plan] = []
    by_rig: dict[str, list[Plan]] = {}
    for plan in plans:
        by_rig.setdefault(plan.rig, []).append(plan)
    most = max(map(len, by_rig.values()), default=0)
    for stages in by_rig.values():
        # Beside whole runs a part of one would look cheap.
        if len(stages) < most:
            continue
        dollars = [plan.dollars for plan in stages]
        whole.append(
            replace(
                stages[0],
                fits=all(plan.fits for plan in stages),
                hours=sum(plan.hours for plan in stages),
                tokens=sum(plan.tokens for plan in stages),
                dollars=None if None in dollars else sum(each or 0.0 for each in dollars),
            )
        )
    return whole


def _terms_height(plan: Plan) -> float:
    return MARGIN + TERM_HEIGHT * max(1, len(plan.step_terms))


def _cost_height(plans: Sequence[Plan]) -> float:
    return MARGIN + 1.4 * TERM_HEIGHT * len(plans)


def _parts(plans: Sequence[Plan]) -> list[tuple[float, Callable[[Any], None]]]:
    """Heights in inches of the parts of a picture from the top down, and what draws each."""
    parts: list[tuple[float, Callable[[Any], None]]] = []
    for plan in plans:
        parts.append((MEMORY_HEIGHT, partial(draw_memory, plan=plan)))
        if plan.roles:
            parts.append((ROLES_HEIGHT, partial(draw_roles, plan=plan)))
        parts.append((_terms_height(plan), partial(draw_terms, plan=plan)))
    if len(plans) > 1:
        whole = _whole(plans)
        parts.append((_cost_height(whole), partial(draw_costs, plans=whole)))
    return parts


def _png(plans: Sequence[Plan]) -> bytes:
    from matplotlib.figure import Figure

    drawn = _parts(plans)
    heights = [height for height, _ in drawn]
    buffer = io.BytesIO()
    with _style("png"):
        figure = Figure(figsize=(WIDTH, sum(heights)), facecolor=PAPER)
        parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        for part, (_, draw) in zip(parts, drawn, strict=True):
            draw(part)
        figure.savefig(buffer, format="png", dpi=DOTS, facecolor=PAPER)
    return buffer.getvalue()


def _page(plans: Sequence[Plan]) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("windtunnel.plan", "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    pictures = [
        [Markup(svg) for svg in (memory_svg(plan, f"memory{i}"), roles_svg(plan, f"roles{i}"), step_svg(plan, f"step{i}"))]
        for i, plan in enumerate(plans)
    ]
    costs = Markup(cost_svg(_whole(plans))) if len(plans) > 1 else ""
    recipe = plans[0].recipe.partition(OF_STAGE)[0]
    return environment.get_template("plan.html").render(recipe=recipe, plans=list(zip(plans, pictures, strict=True)), costs=costs)


def _style(name: str) -> Any:
    import matplotlib

    return matplotlib.rc_context(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": name,
            "font.family": "sans-serif",
            "font.size": 10,
            "hatch.linewidth": 0.6,
            "text.parse_math": False,  # a dollar is a dollar
        }
    )


def _svg(inches: tuple[float, float], draw: Callable[[Any], None], name: str) -> str:
    from matplotlib.figure import Figure

    buffer = io.StringIO()
    with _style(name):
        figure = Figure(figsize=inches)
        draw(figure)
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return _for_page(buffer.getvalue(), name)


def _for_page(svg: str, name: str) -> str:
    """Inline SVG: no XML header, identifiers of its own, the page's ink and font, and no fixed size."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r'\1 role="img"', svg, count=1)
    for stand_in, variable in _VARIABLES.items():
        svg = svg.replace(stand_in, variable)
    svg = re.sub(r"font(?:-family)?: ?[^;\"]*(?=[;\"])", lambda m: re.sub(r"'[^']*'.*|sans-serif.*", "inherit", m[0]), svg)
    svg = re.sub(r'id="([^"]+)"', rf'id="{name}-\1"', svg)
    return re.sub(r'(url\(#|href="#)', rf"\1{name}-", svg)
