"""The ladder: from this machine to the rig that the whole run is for, with what each rung proves, takes and costs.

A rung below the target is a rehearsal: the scale model, and where there are GPUs ten full-size steps. The target is
the whole run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import Any

from windtunnel.recipe import GPTModel, Layout, LayoutChoice, Recipe, UserError, scale_model
from windtunnel.rig import Rig

from .alternatives import StandIn, holds, stand_ins
from .plan import make_plan, resolve
from .text import dollars_text, hours_text, seconds_text, size_remarks
from .types import Plan

STEPS = 10
# Of GRPO: enough for the engines to get new weights and answer with them.
ROUNDS = 2
# A rehearsal starts the scale model's training four times (killed, resumed, undisturbed, on other ranks), twice in full.
PROCESSES, TRAININGS = 4, 2
# What `windtunnel check` takes at most, for recipes that have no scale model to train yet.
CHECK_HOURS = 3 / 60
# fp32 GFLOP/s a core that a rehearsal is taken to have.
LEAST_GFLOPS = 10.0

LEVELS = ("cpu", "gpu", "node", "cluster")
PROVES = {
    "cpu": "code paths, data, checkpoint, kill and resume",
    "gpu": "kernels, memory and speed of one rank",
    "node": "collectives and sharding between the GPUs of a node",
    "cluster": "the network between nodes and the launcher",
}


@dataclass(frozen=True)
class Rung:
    """One rig of the ladder.

    Attributes:
        level: 'cpu', 'gpu', 'node' or 'cluster'. target: the whole run is done here.
        plan: the whole recipe on this rig, whether it fits or not; None: no such model is trained on a CPU.
        scale: the scale model on it, where that is trained there.
        does: what is done on this rung. proves: what that shows. hours, dollars: what it takes; None: not known.
        stand_ins: the largest that fits where the full-size model does not.
        notes: what had to be changed for this rig, or why there is no plan.
    """

    rig: Rig
    target: bool
    plan: Plan | None
    scale: Plan | None
    does: str
    proves: str
    hours: float | None
    dollars: float | None
    stand_ins: tuple[StandIn, ...]
    notes: tuple[str, ...]

    @property
    def level(self) -> str:
        """How far up the ladder."""
        return self.rig.rung

    @property
    def shown(self) -> Plan | None:
        """The plan of the model that is really run here: the scale model on a CPU that only rehearses, else the full-size one."""
        return self.plan if self.target or self.level != "cpu" else self.scale

    @property
    def too_big(self) -> bool:
        """Whether a full-size step was meant to run here and cannot."""
        return self.plan is not None and (self.target or self.level != "cpu") and not holds(self.plan)

    def to_json(self) -> dict[str, Any]:
        """Return the plan with the rung in it; keys are stable."""
        rung = {
            "level": self.level,
            "target": self.target,
            "does": self.does,
            "proves": self.proves,
            "hours": self.hours,
            "dollars": self.dollars,
            "stand_ins": [stand_in.to_json() for stand_in in self.stand_ins],
            "notes": list(self.notes),
        }
        if self.plan is not None:
            return self.plan.to_json() | {"rung": rung}
        return {"rig": self.rig.name, "machine": self.rig.describe(), "fits": False, "reasons": list(self.notes), "rung": rung}


@dataclass(frozen=True)
class Ladder:
    """All rungs in order, the target last, whose plan is `plan`.

    `dollars` adds up the rungs whose price is known; `unpriced` names the others.
    """

    recipe: str
    rungs: tuple[Rung, ...]
    plan: Plan
    dollars: float
    unpriced: tuple[str, ...]


def climb(recipe: Recipe, rigs: Sequence[Rig]) -> Ladder:
    """Plan a recipe on each rig; the last one is the target and decides the depth where that is 'auto'.

    Raises:
        UserError: the recipe cannot mean anything on the target, or on another rig even without its layout.
    """
    *lower, target = rigs
    plan = make_plan(recipe, target)
    # Depth and batch are the target's on every rung: a rehearsal of another model would show nothing of this one.
    below = resolve(recipe, target)
    rungs: list[Rung] = []
    for rig in lower:
        rungs.append(_below(below, rig, _new(rungs, rig)))
    rungs.append(_target(below, target, plan, _new(rungs, target)))
    unpriced = tuple(rung.rig.name for rung in rungs if rung.dollars is None and rung.hours is not None)
    return Ladder(recipe.name, tuple(rungs), plan, sum(rung.dollars or 0.0 for rung in rungs), unpriced)


def _new(rungs: Sequence[Rung], rig: Rig) -> str:
    """Tell what a rig shows that no rung below it did: a rung shows what the levels under its own would."""
    # A node has GPUs and a CPU as well: what they would have shown is shown there too.
    reached = max((LEVELS.index(rung.level) for rung in rungs), default=-1)
    return "; ".join(PROVES[level] for level in LEVELS[reached + 1 : LEVELS.index(rig.rung) + 1])


def _target(recipe: Recipe, rig: Rig, plan: Plan, new: str) -> Rung:
    proves = "the run itself" + (f"; only here: {new}" if new else "")
    if not plan.fits:
        return Rung(rig, True, plan, None, "does not fit", proves, None, None, stand_ins(recipe, rig), ())
    does = f"whole run, {plan.steps:,} {_unit(plan)}"
    return Rung(rig, True, plan, None, does, proves, plan.hours, plan.dollars, (), ())


def _below(recipe: Recipe, rig: Rig, new: str) -> Rung:
    # A layout that the target needs may mean nothing on a smaller rig, and no rung is lost for that.
    recipe, plan, notes = _plan_freely(recipe, rig)
    scale = make_plan(scale_model(recipe), _undisturbed(rig), suggest=False) if isinstance(recipe.model, GPTModel) else None
    first, hours = ("check", CHECK_HOURS) if scale is None else ("scale model", _rehearsal_hours(scale))
    proves = new or "the same again on this machine"
    fits = plan is not None and holds(plan)
    found = () if fits or plan is None or rig.gpu is None else stand_ins(_freed(recipe), rig)
    # Of several stand-ins the first is the largest that fits.
    stepped = plan if fits else found[0].plan if found else None
    if rig.gpu is None or stepped is None:
        short = PROVES["cpu"] if rig.gpu else proves
        return Rung(rig, False, plan, scale, first, short, hours, _dollars(rig, hours), found, notes)
    steps = ROUNDS if stepped.method == "grpo" else STEPS
    hours += (_startup(stepped) + steps * stepped.step_seconds) / 3600
    does = f"{first}, {steps} {_unit(stepped)}" + ("" if fits else " of a stand-in")
    proves += "" if fits else " (for the stand-in)"
    return Rung(rig, False, plan, scale, does, proves, hours, _dollars(rig, hours), found, notes)


def _unit(plan: Plan) -> str:
    return "rounds" if plan.method == "grpo" else "steps"


def _undisturbed(rig: Rig) -> Rig:
    """Undo the measurement of a CPU far slower than CPUs are: it was busy with something else."""
    if rig.gpu is not None or rig.cpu_gflops is None:
        return rig
    return replace(rig, cpu_gflops=max(rig.cpu_gflops, LEAST_GFLOPS * rig.cpu_cores))


def _rehearsal_hours(scale: Plan) -> float:
    return (PROCESSES * _startup(scale) + TRAININGS * scale.steps * scale.step_seconds) / 3600


def _plan_freely(recipe: Recipe, rig: Rig) -> tuple[Recipe, Plan | None, tuple[str, ...]]:
    """Plan the recipe as it stands, or else with the choices left open that were made for the target."""
    try:
        return recipe, make_plan(recipe, rig, suggest=False), ()
    except UserError as error:
        free = _freed(recipe)
        try:
            plan = make_plan(free, rig, suggest=False)
        except UserError as still:
            if rig.gpu is not None:
                raise
            return free, None, (f"{rig.name}: {still.message}",)
        # On a CPU only the scale model runs: which layout the full-size one would have there helps nobody.
        note = f"{rig.name}: {error.message}; planned there with layout, micro-batch and precision left open"
        return free, plan, (note,) if rig.gpu else ()


def _freed(recipe: Recipe) -> Recipe:
    """Return the recipe without what is chosen for one rig: layout, micro-batch, precision, learners and engines."""
    own: dict[str, dict[str, Any]] = {
        "pretrain": {"micro_batch": None, "precision": "auto"},
        "sft": {"micro_batch": None, "precision": "auto"},
        "rl": {"micro_batch": None, "learners": None, "engines": None, "engine_tensor": None},
    }
    free = {stage.kind: stage.model_copy(update=own[stage.kind]) for stage in recipe.stages.values() if stage.kind in own}
    return recipe.with_stages(**free).model_copy(update={"layout": LayoutChoice()})


def _startup(plan: Plan) -> float:
    return sum(plan.startup.values())


def _dollars(rig: Rig, hours: float) -> float | None:
    return None if rig.dollars_per_hour is None else hours * rig.dollars_per_hour


def brief(layout: Layout) -> str:
    """Write a layout in a few characters: 'FSDP 8, 2 x 4, recompute'; bf16 goes without saying."""
    axes = [("TP", layout.tensor), ("PP", layout.pipeline), ("EP", layout.expert)]
    shard = {"none": "DDP", "optimizer": "ZeRO-1", "full": "FSDP"}[layout.shard]
    split = [f"{name} {size}" for name, size in axes if size > 1] + ([f"{shard} {layout.data}"] if layout.data > 1 else [])
    parts = [" ".join(split) or "1 rank", f"{layout.accumulation} x {layout.micro_batch}"]
    parts += [layout.precision] if layout.precision != "bf16" else []
    parts += ["recompute"] if layout.recompute != "none" else []
    parts += ["offload"] if layout.offload != "none" else []
    return ", ".join(parts)


LAYOUT_WIDTH = 23
COLUMNS = ("rung", "rig", "done there", "GiB a rank", "step", "time", "cost")


def ladder_rows(ladder: Ladder) -> list[tuple[str, ...]]:
    """Return one row a rung under COLUMNS, and the total."""
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
    rows += size_remarks(target)
    rows += [("does not fit", f"{target.rig}: {reason}") for reason in target.reasons]
    rows += [("instead", f"{a.change} ({a.why})") for a in target.alternatives]
    rows += [("warning", text) for text in target.warnings]
    rows += [("note", text) for rung in ladder.rungs if rung.plan is not None for text in rung.notes]
    return [*rows, *(("note", text) for text in _left_out(ladder))]


def _too_big(rung: Rung) -> list[tuple[str, str]]:
    """Tell what a model that does not fit needs, and what takes its place; for the target the reasons say the former."""
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
    cost = "" if rung.hours is None else dollars_text(rung.dollars)
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
