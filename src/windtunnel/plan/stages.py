"""The plan of a recipe with stages: each stage's own, one after the other, within the budget that is for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from windtunnel.recipe import Recipe, stage_gates, stage_recipe
from windtunnel.rig import Rig

from .ladder import Ladder, climb
from .plan import make_plan, refuse
from .text import count_text, dollars_text, hours_text, seconds_text, size_remarks
from .types import Alternative, Plan

STAGE_COLUMNS = ("stage", "steps", "tokens", "GiB a rank", "step", "time", "cost")


@dataclass(frozen=True)
class PlannedStage:
    """One stage: its name, what it is for, its plan with what the stages before it leave of the budget."""

    name: str
    description: str
    plan: Plan


@dataclass(frozen=True)
class StagedPlan:
    """All stages of a recipe on a rig. hours and dollars are of those that fit, together; None: no price known.

    Attributes:
        gates: by stage, what must hold at its end, by gate in words; of the evaluation too.
    """

    recipe: str
    rig: str
    stages: tuple[PlannedStage, ...]
    gates: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def fits(self) -> bool:
        """Whether every stage does."""
        return all(stage.plan.fits for stage in self.stages)

    @property
    def needs_yes(self) -> bool:
        """Whether a stage asks for confirmation."""
        return any(stage.plan.needs_yes for stage in self.stages)

    @property
    def hours(self) -> float:
        """Of all stages that fit."""
        return sum(stage.plan.hours for stage in self.stages if stage.plan.fits)

    @property
    def dollars(self) -> float | None:
        """Of all stages that fit; None: no price known."""
        each = [stage.plan.dollars for stage in self.stages if stage.plan.fits]
        return None if None in each else sum(dollars or 0.0 for dollars in each)

    def to_json(self) -> dict[str, Any]:
        """Stable keys: `stages` with each stage's whole plan, `gates`, `total`; whether and why not all of them fit."""
        stages = [{"stage": stage.name, "description": stage.description, **stage.plan.to_json()} for stage in self.stages]
        some = any(stage.plan.fits for stage in self.stages)
        taken = {"hours": self.hours, "dollars": self.dollars} if some else {"hours": None, "dollars": None}
        total = {"fits": self.fits, **taken}
        reasons = [f"{stage.name}: {reason}" for stage in self.stages for reason in stage.plan.reasons]
        return {"fits": self.fits, "reasons": reasons, "stages": stages, "gates": self.gates, "total": total}


def plan_stages(recipe: Recipe, rig: Rig, *, hours: float = 0.0, dollars: float = 0.0) -> StagedPlan:
    """Plan every stage of a recipe. hours, dollars: what runs before the first of these stages took of the budget.

    Raises:
        UserError: as `make_plan`; a stage that does not fit, or that the stages before it leave no money for, comes
            back with fits=False.
    """
    planned: list[PlannedStage] = []
    for stage in recipe.training:
        taken = hours + sum(before.plan.hours for before in planned)
        paid = dollars + sum(before.plan.dollars or 0.0 for before in planned)
        # Of a limit that is for all stages it has what those before it leave.
        own = stage_recipe(recipe, stage.name, hours=taken, dollars=paid)
        plan = make_plan(own, rig)
        # Alone it may well fit: what is wrong is the sum, and so the fix must name what all stages together take.
        if plan.steps < 1 and planned:
            plan = _unpaid(recipe, rig, stage.name, plan, planned, (hours, dollars))
        planned.append(PlannedStage(stage.name, stage.description, plan))
    return StagedPlan(recipe.name, rig.name, tuple(planned), stage_gates(recipe, gpus=rig.gpu is not None))


def plan_whole(recipe: Recipe, rig: Rig) -> Plan:
    """Return the plan of a recipe's longest stage, with the time, price and disk of all of them: what a machine is asked for.

    Raises:
        UserError: as `make_plan`; a stage does not fit.
    """
    staged = plan_stages(recipe, rig)
    plans = [stage.plan for stage in staged.stages]
    if not staged.fits:
        lacking = next(stage for stage in staged.stages if not stage.plan.fits)
        raise refuse(lacking.plan if len(plans) == 1 else replace(lacking.plan, recipe=f"{recipe.name}, stage {lacking.name},"))
    longest = max(plans, key=lambda plan: plan.hours)
    ending = max(plan.startup.get("last checkpoint", 0.0) for plan in plans)
    # Each stage is a run, which keeps its checkpoints while the next one trains.
    disk = sum(plan.disk_gib for plan in plans)
    startup = {**longest.startup, "last checkpoint": ending}
    return replace(longest, hours=staged.hours, dollars=staged.dollars, disk_gib=disk, startup=startup)


def _unpaid(recipe: Recipe, rig: Rig, name: str, plan: Plan, planned: Sequence[PlannedStage], spent: tuple[float, float]) -> Plan:
    """Return the plan of a stage that cannot begin, with the reason and what all stages together would take.

    `spent`: hours and dollars that runs before them took.
    """
    money = plan.ended_by == "budget.dollars"
    open_budget = recipe.budget.model_copy(update={"dollars": None, "hours": None})
    freed = recipe.model_copy(update={"budget": open_budget})
    # Planned again without the limit, or the stage would be as long as what was left, which is nothing.
    every = [make_plan(stage_recipe(freed, stage.name), rig, suggest=False) for stage in recipe.training]
    if money:
        takes = f"${sum(stage.plan.dollars or 0.0 for stage in planned):,.2f}"
        needed = spent[1] + sum(each.dollars or 0.0 for each in every)
        total, whole = f"${(recipe.budget.dollars or 0.0) - spent[1]:,.2f}", f"budget.dollars={needed:.2f}"
    else:
        takes = hours_text(sum(stage.plan.hours for stage in planned))
        needed = spent[0] + sum(each.hours for each in every)
        total, whole = f"{(recipe.budget.hours or 0.0) - spent[0]:g} h", f"budget.hours={needed:.3g}"
    before = " and ".join(stage.name for stage in planned)
    reason = f"{plan.ended_by} is for all stages: {before} takes {takes} of {total}, and {name} cannot begin with the rest"
    # The plan's own words for it speak of this stage alone, and would name too small a budget.
    others = tuple(text for text in plan.reasons if "before the first step" not in text)
    kept = tuple(a for a in plan.alternatives if "budget." not in a.change)
    return replace(
        plan, fits=False, reasons=(*others, reason), alternatives=(*kept, Alternative(f"--set {whole}", "pays for all stages"))
    )


def climb_stages(recipe: Recipe, rigs: Sequence[Rig]) -> tuple[Ladder, StagedPlan]:
    """Climb with the first stage, whose target does all stages, and plan all stages there.

    Rigs below the target rehearse; what they do is the same whichever stage it is for.
    """
    staged = plan_stages(recipe, rigs[-1])
    ladder = climb(stage_recipe(recipe, recipe.training[0].name), rigs)
    target = ladder.rungs[-1]
    # Then the first stage's rung says what does not fit, and a sum would leave out what cannot be run.
    if target.hours is None or not staged.fits:
        return ladder, staged
    steps = sum(stage.plan.steps for stage in staged.stages)
    whole = replace(target, does=f"{len(staged.stages)} stages, {steps:,} steps", hours=staged.hours, dollars=staged.dollars)
    rungs = (*ladder.rungs[:-1], whole)
    return replace(ladder, rungs=rungs, dollars=sum(rung.dollars or 0.0 for rung in rungs)), staged


def stage_rows(staged: StagedPlan) -> list[tuple[str, ...]]:
    """Return one row a stage under STAGE_COLUMNS, and the total of those that fit, where some do."""
    rows = [_row(stage.name, stage.plan) for stage in staged.stages]
    if not any(stage.plan.fits for stage in staged.stages):
        return rows
    name = "total" if staged.fits else "those that fit"
    return [*rows, (name, "", "", "", "", hours_text(staged.hours), dollars_text(staged.dollars))]


def depth_warnings(staged: StagedPlan) -> list[str]:
    """With model.depth=auto each stage has the depth that its own length pays for; gates then judge another model."""
    depths = {stage.name: stage.plan.depth for stage in staged.stages}
    if len(set(depths.values())) < 2:
        return []
    each = ", ".join(f"{name} {depth}" for name, depth in depths.items())
    return [f"the stages' depths differ ({each}): gates say little about a model of another depth; give all one: model.depth=..."]


def _row(name: str, plan: Plan) -> tuple[str, ...]:
    memory, step = f"{plan.peak_gib:,.1f} / {plan.limit_gib:.1f}", seconds_text(plan.step_seconds)
    if not plan.fits:
        return (name, "", "", memory, step, "", "does not fit")
    steps, tokens = f"{plan.steps:,}", count_text(plan.tokens)
    return (name, steps, tokens, memory, step, hours_text(plan.hours), dollars_text(plan.dollars))


def stage_remarks(staged: StagedPlan) -> list[tuple[str, str]]:
    """Return (label, text): what each stage is for, that their models are not the same, and why one does not fit."""
    rows = [(stage.name, stage.description) for stage in staged.stages if stage.description]
    rows += [(f"{stage.name}, a round", _round(stage.plan)) for stage in staged.stages if stage.plan.method == "grpo"]
    rows += [(f"{stage.name}, {label}", text) for stage in staged.stages for label, text in size_remarks(stage.plan)]
    rows += gate_remarks(staged)
    rows += [("warning", text) for text in depth_warnings(staged)]
    for stage in staged.stages:
        rows += [("does not fit", f"{stage.name}: {reason}") for reason in stage.plan.reasons]
        rows += [("instead", f"{a.change} ({a.why})") for a in stage.plan.alternatives]
    return rows


def gate_remarks(staged: StagedPlan) -> list[tuple[str, str]]:
    """Return (label, text): what must hold at the end of each stage before the next may spend money."""
    texts = {
        stage: ", ".join(f"{name.replace('_', ' ')} {limit}" for name, limit in limits.items())
        for stage, limits in staged.gates.items()
    }
    return [(f"{stage}, gates", text or "none of them asks for anything here") for stage, text in texts.items()]


def _round(plan: Plan) -> str:
    """Return what a round of reinforcement learning takes by term, the longest first, and where judging's figure comes from."""
    terms = sorted(plan.step_terms.items(), key=lambda item: -item[1])
    parts = ", ".join(f"{name} {seconds_text(seconds)}" for name, seconds in terms if seconds >= 0.01 * plan.step_seconds)
    hidden = (
        f", less {seconds_text(plan.hidden_seconds)} beside others" if plan.hidden_seconds >= 0.01 * plan.step_seconds else ""
    )
    judged = "; ".join(note for note in plan.notes if note.startswith("judging"))
    return f"{parts}{hidden}; {judged}" if judged else f"{parts}{hidden}"
