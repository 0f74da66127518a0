"""The ladder as rows of text, within 100 columns; the CLI lays them out."""

from __future__ import annotations

from textwrap import wrap

from .alternatives import holds
from .ladder import Ladder, Rung, brief
from .text import hours_text, seconds_text
from .types import Plan

LAYOUT_WIDTH = 23
COLUMNS = ("rung", "rig", "done there", "GiB a rank", "step", "time", "cost")


def ladder_rows(ladder: Ladder) -> list[tuple[str, ...]]:
    """One row a rung under COLUMNS, and the total."""
    rows = [_row(rung) for rung in ladder.rungs]
    known = [rung.hours for rung in ladder.rungs if rung.hours is not None]
    total = f"${ladder.dollars:,.2f}" if any(rung.dollars is not None for rung in ladder.rungs) else ""
    return [*rows, ("total", "", "", "", "", hours_text(sum(known)), total)]


def ladder_remarks(ladder: Ladder) -> list[tuple[str, str]]:
    """(label, text): what each rung proves, what stands in where the model does not fit, and what the figures leave out."""
    rows = [("proves", f"{rung.rig.name}: {rung.proves}") for rung in ladder.rungs]
    for rung in ladder.rungs:
        rows += _too_big(rung)
    target = ladder.plan
    rows += [("does not fit", f"{target.rig}: {reason}") for reason in target.reasons]
    rows += [("instead", f"{a.change} ({a.why})") for a in target.alternatives]
    rows += [("warning", text) for text in target.warnings]
    rows += [("note", text) for rung in ladder.rungs if rung.plan is not None for text in rung.notes]
    return [*rows, *(("note", text) for text in _left_out(ladder))]


def _too_big(rung: Rung) -> list[tuple[str, str]]:
    """What a model that does not fit needs, and what takes its place; for the target the reasons say the former."""
    if rung.plan is None or not rung.too_big:
        return []
    known = " ".join(a.change for a in rung.plan.alternatives)
    rows = [("instead", f"{s.what} ({s.change}), {s.plan.peak_gib:.1f} GiB") for s in rung.stand_ins if s.change not in known]
    if not rung.target:
        rows.insert(
            0, ("too big", f"the full-size model needs {rung.plan.peak_gib:,.1f} GiB a rank, not {rung.plan.limit_gib:.1f}")
        )
    return [(label, f"{rung.rig.name}: {text}") for label, text in rows]


def _row(rung: Rung) -> tuple[str, ...]:
    plan = rung.shown
    run = rung.stand_ins[0].plan if rung.stand_ins and not rung.target else plan
    cost = "" if rung.hours is None else "no price" if rung.dollars is None else f"${rung.dollars:,.2f}"
    return (
        rung.level,
        rung.rig.name + (f"\n{_layout(run, rung.rig.gpus)}" if run else ""),
        rung.does.replace(", ", ",\n").replace(" of a ", "\nof a "),
        f"{plan.peak_gib:,.1f} / {plan.limit_gib:.1f}{'' if holds(plan) else ' ✗'}" if plan else "",
        seconds_text(run.step_seconds) if run and rung.hours is not None else "",
        "" if rung.hours is None else hours_text(rung.hours),
        cost,
    )


def _layout(plan: Plan, gpus: int) -> str:
    if not plan.roles:
        return "\n".join(wrap(brief(plan.layout), LAYOUT_WIDTH, break_on_hyphens=False))
    if sum(role.gpus for role in plan.roles.values()) > gpus:
        return f"{gpus} GPU{'s' if gpus > 1 else ''} in turn"
    return ", ".join(f"{role.gpus} {name}{'s' if role.gpus > 1 else ''}" for name, role in plan.roles.items())


def _left_out(ladder: Ladder) -> list[str]:
    error = ladder.plan.error
    notes = [f"times ±{error['time']:.0%}, memory ±{error['memory']:.0%}; without booting and installing a machine"]
    if ladder.unpriced:
        notes.append(f"the total leaves out {', '.join(ladder.unpriced)}: no price known")
    return notes
