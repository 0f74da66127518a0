"""Drawing one part of a plan's picture into a matplotlib figure, in colours that colour-blind eyes tell apart too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .text import count_text, hours_text, seconds_text
from .types import Moment, Plan

# Greys that read on white paper, and that a page replaces by its own ink and grid.
INK, GRID = "#2b3440", "#cfd5dc"
LIMIT = "#b3261e"
BAR = "#0072b2"
REFUSED = "#9aa3ad"
# Of the tallest moment: thinner components are drawn together as 'other'.
LEAST_SHARE = 0.004
# Of the step: shorter terms are not drawn.
LEAST_TERM = 0.0005

# Okabe and Ito's colours by what a component is; a second one of the same family is hatched.
_FAMILIES = (
    ("master", "#56b4e9"),
    ("gather", "#f0e442"),
    ("compute", "#56b4e9"),
    ("weight", "#0072b2"),
    ("adapter", "#0072b2"),
    ("gradient", "#e69f00"),
    ("optimizer", "#009e73"),
    ("moment", "#009e73"),
    ("state", "#009e73"),
    ("activation", "#d55e00"),
    ("kv", "#d55e00"),
    ("loss", "#cc79a7"),
    ("logit", "#cc79a7"),
    ("reference", "#56b4e9"),
)
_OTHER = "#8c96a1"
LEGEND_SIZE = 9.0
LEGEND_LINES = 13
"""Of that size, for which the picture is high enough."""
_HATCHES = (None, "////", "\\\\\\\\", "xxxx", "----", "||||", "++++")


def draw_memory(figure: Any, plan: Plan) -> None:
    """GiB by component over the step's moments, a bar at the peak, and the limit across both."""
    over, peak = figure.subplots(1, 2, width_ratios=(5, 0.7), sharey=True)
    # Inches, whatever the figure's height: the legend stands to the right.
    figure.subplots_adjust(left=0.07, right=0.72, top=0.86, bottom=0.15, wspace=0.06)
    moments = _moments(plan)
    names, rows = _stack(moments)
    looks = dict(zip(names, _looks(names), strict=True))
    seconds = [moment.seconds for moment in moments]
    scale, unit = _unit(plan.step_seconds)
    base = [0.0] * len(moments)
    for name, row in zip(names, rows, strict=True):
        colour, hatch = looks[name]
        top = [a + b for a, b in zip(base, row, strict=True)]
        over.fill_between([s * scale for s in seconds], base, top, facecolor=colour, edgecolor=INK, hatch=hatch, linewidth=0.3)
        base = top
    _peak_bar(peak, plan, names, looks)
    highest = max(plan.limit_gib, plan.peak_gib, *base)
    for axes in (over, peak):
        axes.axhline(plan.limit_gib, color=LIMIT, linestyle="--", linewidth=1.6, label=f"limit  {plan.limit_gib:.1f}")
        axes.set_ylim(0, 1.1 * highest)
        _plain(axes)
    over.set_xlim(0, max(seconds) * scale)
    over.set_xlabel(f"{unit} into the step", color=INK)
    over.set_ylabel("GiB a rank", color=INK)
    verdict = "" if plan.fits else ": does not fit"
    of = f"{plan.peak_gib:.1f} of {plan.limit_gib:.1f} GiB a rank, at {plan.peak_moment}"
    _title(figure, f"{plan.recipe} on {plan.rig}{verdict}: {of}")
    _name_moments(over, moments, plan.peak_moment, scale)
    _legend(peak, plan)


def _moments(plan: Plan) -> list[Moment]:
    """Return the timeline, from the step's beginning to its end; a plan with one moment holds it all along."""
    if len(plan.timeline) < 2:
        return [Moment("", 0.0, plan.components), Moment(plan.peak_moment, plan.step_seconds, plan.components)]
    first, last = plan.timeline[0], plan.timeline[-1]
    begun = [] if first.seconds <= 0 else [Moment("", 0.0, last.components)]
    return [*begun, *plan.timeline]


def _stack(moments: Sequence[Moment]) -> tuple[list[str], list[list[float]]]:
    """Components from the bottom up with their GiB at each moment: the thin ones together, what is taken away off the others."""
    tallest = max(moment.gib for moment in moments)
    every = list(dict.fromkeys(name for moment in moments for name in moment.components))
    most = {name: max(moment.components.get(name, 0.0) for moment in moments) for name in every}
    kept = [name for name in every if most[name] >= LEAST_SHARE * tallest]
    rows = [[max(0.0, m.components.get(name, 0.0)) for m in moments] for name in kept]
    other = [sum(v for name, v in m.components.items() if name not in kept and v > 0) for m in moments]
    if any(other):
        kept, rows = [*kept, "other"], [*rows, other]
    taken = [sum(-v for v in m.components.values() if v < 0) for m in moments]
    for i, gib in enumerate(taken):
        column = sum(row[i] for row in rows)
        for row in rows:
            row[i] *= (column - gib) / column if column > gib else 1.0
    # What changes least lies at the bottom, so that what moves is seen moving.
    order = sorted(range(len(kept)), key=lambda i: (max(rows[i]) - min(rows[i])) / max(max(rows[i]), 1e-9))
    return [kept[i] for i in order], [rows[i] for i in order]


def _looks(names: Sequence[str]) -> list[tuple[str, str | None]]:
    used: dict[str, int] = {}
    looks = []
    for name in names:
        colour = next((colour for word, colour in _FAMILIES if word in name), _OTHER)
        looks.append((colour, _HATCHES[used.get(colour, 0) % len(_HATCHES)]))
        used[colour] = used.get(colour, 0) + 1
    return looks


def _peak_bar(axes: Any, plan: Plan, names: Sequence[str], looks: dict[str, tuple[str, str | None]]) -> None:
    known = [name for name in names if name != "other"]
    values = {name: max(0.0, plan.components.get(name, 0.0)) for name in known}
    values["other"] = sum(v for name, v in plan.components.items() if name not in known and v > 0)
    taken = sum(-v for v in plan.components.values() if v < 0)
    total = sum(values.values())
    height = 0.0
    for name in names:
        colour, hatch = looks[name]
        size = values[name] * (total - taken) / total
        axes.bar(
            [0], [size], bottom=height, width=0.8, color=colour, edgecolor=INK, hatch=hatch, linewidth=0.3,
            label=f"{name.replace('_', ' ')}  {_gib(values[name])}",
        )  # fmt: skip
        height += size
    axes.set_xticks([0], ["peak"])
    axes.set_xlim(-0.6, 0.6)
    axes.tick_params(labelleft=False)


def _legend(axes: Any, plan: Plan) -> None:
    """Write the components from the top down with their GiB, beside the bar."""
    handles, labels = axes.get_legend_handles_labels()
    taken = sum(v for v in plan.components.values() if v < 0)
    lines = len(labels) + (2 if taken else 1)
    size = LEGEND_SIZE * min(1.0, LEGEND_LINES / lines)  # all of them stand within the picture
    legend = axes.legend(
        handles[::-1],
        labels[::-1],
        title="GiB at the peak" + (f",\nless {-taken:.1f} as measured" if taken else ""),
        frameon=False,
        labelcolor=INK,
        loc="upper left",
        bbox_to_anchor=(1.08, 1.03),
        borderaxespad=0,
        handlelength=1.4,
        handleheight=1.1,
        fontsize=size,
        title_fontsize=size,
        alignment="left",
    )
    legend.get_title().set_color(INK)


def _name_moments(axes: Any, moments: Sequence[Moment], peak: str, scale: float) -> None:
    """Names of the moments above the axes: the peak's, with a line down from it, then the others where there is room."""
    low, high = axes.get_xlim()
    taken: list[tuple[float, float]] = []
    for moment in sorted(moments, key=lambda moment: moment.name != peak):
        place = (moment.seconds * scale - low) / ((high - low) or 1.0)
        half = 0.0085 * len(moment.name)
        middle = min(max(place, half), 1 - half)
        if not moment.name or any(middle - half < end and begin < middle + half for begin, end in taken):
            continue
        weight = "bold" if moment.name == peak else "normal"
        axes.text(
            middle, 1.005, moment.name, transform=axes.transAxes, ha="center", va="bottom", fontsize=8, color=INK, weight=weight
        )
        if moment.name == peak:
            axes.axvline(moment.seconds * scale, color=INK, linestyle=":", linewidth=1.2)
        taken.append((middle - half - 0.01, middle + half + 0.01))


def draw_roles(figure: Any, plan: Plan) -> None:
    """GiB by component of one GPU of each role, with a mark at its limit."""
    axes = _rows(figure, right=0.72)
    roles = list(plan.roles.values())
    names = list(dict.fromkeys(n for role in roles for n, gib in role.components.items() if gib >= 0.01 * role.limit_gib))
    left = [0.0] * len(roles)
    for name, (colour, hatch) in zip(names, _looks(names), strict=True):
        widths = [max(0.0, role.components.get(name, 0.0)) for role in roles]
        label = f"{name.replace('_', ' ')}  {' / '.join(_gib(width) if width else '–' for width in widths)}"
        look = {"color": colour, "edgecolor": INK, "hatch": hatch, "linewidth": 0.3, "height": 0.6}
        axes.barh(range(len(left)), widths, left=left, label=label, **look)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    for row, role in enumerate(roles):
        mark = {"label": "limit"} if row == 0 else {}
        axes.plot([role.limit_gib] * 2, [row - 0.4, row + 0.4], color=LIMIT, linestyle="--", linewidth=1.6, **mark)
    axes.set_yticks(range(len(left)), [f"{role.gpus} x {name}" for name, role in plan.roles.items()])
    axes.set_xlabel("GiB", color=INK)
    axes.legend(frameon=False, labelcolor=INK, loc="upper left", bbox_to_anchor=(1.02, 1.05), borderaxespad=0, fontsize=9)
    _title(figure, f"Memory of one GPU of each kind on {plan.rig}")


def draw_terms(figure: Any, plan: Plan) -> None:
    """Each term of the step as a bar on the step's time axis; what is hidden behind others lies beneath them."""
    axes = _rows(figure, right=0.97)
    scale, unit = _unit(plan.step_seconds)
    start = 0.0
    terms = {name: seconds for name, seconds in plan.step_terms.items() if seconds >= LEAST_TERM * plan.step_seconds}
    for row, seconds in enumerate(terms.values()):
        begin = max(0.0, min(start, plan.step_seconds - seconds))
        axes.barh([row], [seconds * scale], left=begin * scale, height=0.62, color=BAR, edgecolor=INK, linewidth=0.3)
        share = f"{seconds_text(seconds)}, {_percent(seconds / plan.step_seconds)}"
        place, side, ink = _label_place(begin / plan.step_seconds, (begin + seconds) / plan.step_seconds)
        _label(axes, place * plan.step_seconds * scale, row, share, side, ink)
        start = begin + seconds
    axes.set_yticks(range(len(terms)), [name.replace("_", " ") for name in terms])
    axes.set_xlim(0, plan.step_seconds * scale)
    axes.set_xlabel(unit, color=INK)
    hidden = f"; {seconds_text(plan.hidden_seconds)} hidden behind computation" if plan.hidden_seconds > 1e-6 else ""
    what = "round" if plan.method == "grpo" else "step"
    _title(figure, f"One {what} on {plan.rig}: {seconds_text(plan.step_seconds)}, most of it {plan.bound}{hidden}")


def _rows(figure: Any, *, right: float) -> Any:
    """Return axes for bars that lie one below the other, their names to the left."""
    axes = figure.subplots()
    # In inches, whatever the figure's height: title and axis need the same room in all.
    inches = figure.bbox.height / figure.dpi
    figure.subplots_adjust(left=0.2, right=right, top=1 - 0.42 / inches, bottom=0.52 / inches)
    axes.invert_yaxis()
    _plain(axes, "x")
    return axes


def _label(axes: Any, x: float, row: int, text: str, side: str, ink: str) -> None:
    """Text beside x, a little away from it."""
    gap = 4 if side == "left" else -4
    axes.annotate(text, (x, row), (gap, 0), textcoords="offset points", va="center", ha=side, fontsize=9, color=ink)


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 else "< 1%"


def _label_place(begin: float, end: float) -> tuple[float, str, str]:
    """Where a bar's label goes, its alignment and colour: behind the bar, before it, or in it; places are shares of the axis."""
    if end < 0.84:
        return end, "left", INK
    return (begin, "right", INK) if begin > 0.16 else (end, "right", "#ffffff")


def draw_costs(figure: Any, plans: Sequence[Plan]) -> None:
    """Dollars of the whole run on each rig, with its time and tokens."""
    axes = _rows(figure, right=0.97)
    highest = max((plan.dollars or 0.0 for plan in plans if plan.fits), default=0.0) or 1.0
    for row, plan in enumerate(plans):
        dollars = plan.dollars if plan.fits and plan.dollars is not None else 0.0
        axes.barh([row], [dollars], height=0.62, color=BAR, edgecolor=INK, linewidth=0.3 if dollars else 0)
        _label(axes, dollars, row, _cost_label(plan), "left", INK if plan.fits else REFUSED)
    axes.set_yticks(range(len(plans)), [plan.rig for plan in plans])
    axes.set_xlim(0, 1.55 * highest)
    axes.set_xlabel("dollars", color=INK)
    _title(figure, "The whole run on each rig")


def _cost_label(plan: Plan) -> str:
    if not plan.fits:
        return "does not fit"
    price = "no price known" if plan.dollars is None else f"${plan.dollars:,.2f}"
    return f"{price}, {hours_text(plan.hours)}, {count_text(plan.tokens)} tokens"


def _gib(gib: float) -> str:
    return f"{gib:.1f}" if gib >= 0.05 or gib == 0 else "< 0.1"


def _unit(seconds: float) -> tuple[float, str]:
    return (1.0, "seconds") if seconds >= 1 else (1e3, "milliseconds")


def _title(figure: Any, text: str) -> None:
    inches = figure.bbox.height / figure.dpi
    figure.suptitle(text, x=0.07, y=1 - 0.08 / inches, ha="left", va="top", color=INK, fontsize=10.5, fontweight="bold")


def _plain(axes: Any, grid: str = "both") -> None:
    axes.grid(True, axis=grid, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, length=0)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(GRID)
