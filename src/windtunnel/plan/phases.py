"""The plan of a recipe with phases: each phase's own, one after the other, within the budget that is for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from windtunnel.recipe import Recipe, phase_recipe
from windtunnel.rig import Rig

from .ladder import Ladder, climb
from .plan import make_plan
from .text import count_text, hours_text, seconds_text
from .types import Alternative, Plan

PHASE_COLUMNS = ("phase", "steps", "tokens", "GiB a rank", "step", "time", "cost")


@dataclass(frozen=True)
class PlannedPhase:
    """One phase: its name, what it is for, its plan with what the phases before it leave of the budget."""

    name: str
    description: str
    plan: Plan


@dataclass(frozen=True)
class PhasedPlan:
    """All phases of a recipe on a rig. hours and dollars are of those that fit, together; None: no price known."""

    recipe: str
    rig: str
    phases: tuple[PlannedPhase, ...]

    @property
    def fits(self) -> bool:
        """Whether every phase does."""
        return all(phase.plan.fits for phase in self.phases)

    @property
    def needs_yes(self) -> bool:
        """Whether a phase asks for confirmation."""
        return any(phase.plan.needs_yes for phase in self.phases)

    @property
    def hours(self) -> float:
        """Of all phases that fit."""
        return sum(phase.plan.hours for phase in self.phases if phase.plan.fits)

    @property
    def dollars(self) -> float | None:
        """Of all phases that fit; None: no price known."""
        each = [phase.plan.dollars for phase in self.phases if phase.plan.fits]
        return None if None in each else sum(dollars or 0.0 for dollars in each)

    def to_json(self) -> dict[str, Any]:
        """Stable keys: `phases` with each phase's whole plan, `total`; whether and why not all of them fit."""
        phases = [{"phase": phase.name, "description": phase.description, **phase.plan.to_json()} for phase in self.phases]
        total = {"fits": self.fits, "hours": self.hours, "dollars": self.dollars}
        reasons = [f"{phase.name}: {reason}" for phase in self.phases for reason in phase.plan.reasons]
        return {"fits": self.fits, "reasons": reasons, "phases": phases, "total": total}


def plan_phases(
    recipe: Recipe,
    rig: Rig,
    vocab: int | None = None,
    corpus_tokens: float | None = None,
    *,
    hours: float = 0.0,
    dollars: float = 0.0,
) -> PhasedPlan:
    """Plan every phase of a recipe; arguments as `make_plan`'s.

    Args:
        hours, dollars: what runs before the first of these phases took of the budget.

    Raises:
        UserError: as `make_plan`; a phase that does not fit, or that the phases before it leave no money for, comes
            back with fits=False.
    """
    planned: list[PlannedPhase] = []
    for phase in recipe.phases:
        taken = hours + sum(before.plan.hours for before in planned)
        paid = dollars + sum(before.plan.dollars or 0.0 for before in planned)
        own = with_rest(phase_recipe(recipe, phase.name), hours=taken, dollars=paid)
        plan = make_plan(own, rig, vocab, corpus_tokens=corpus_tokens)
        if plan.steps < 1 and planned:
            plan = _unpaid(recipe, rig, phase.name, plan, planned, (hours, dollars))
        planned.append(PlannedPhase(phase.name, phase.description, plan))
    return PhasedPlan(recipe.name, rig.name, tuple(planned))


def with_rest(recipe: Recipe, *, hours: float, dollars: float) -> Recipe:
    """A phase's recipe with what earlier phases have left of the hours and dollars that are for all of them."""
    budget = recipe.budget
    rest = {
        "hours": None if budget.hours is None else max(0.0, budget.hours - hours),
        "dollars": None if budget.dollars is None else max(0.0, budget.dollars - dollars),
    }
    return recipe.model_copy(update={"budget": budget.model_copy(update=rest)})


def _unpaid(recipe: Recipe, rig: Rig, name: str, plan: Plan, planned: Sequence[PlannedPhase], spent: tuple[float, float]) -> Plan:
    """The plan of a phase that cannot begin, with the reason and what all phases together would take.

    `spent`: hours and dollars that runs before them took.
    """
    money = plan.ended_by == "budget.dollars"
    open_budget = recipe.budget.model_copy(update={"dollars": None, "hours": None})
    freed = recipe.model_copy(update={"budget": open_budget})
    every = [make_plan(phase_recipe(freed, phase.name), rig, suggest=False) for phase in recipe.phases]
    if money:
        takes = f"${sum(phase.plan.dollars or 0.0 for phase in planned):,.2f}"
        needed = spent[1] + sum(each.dollars or 0.0 for each in every)
        total, whole = f"${(recipe.budget.dollars or 0.0) - spent[1]:,.2f}", f"budget.dollars={needed:.2f}"
    else:
        takes = hours_text(sum(phase.plan.hours for phase in planned))
        needed = spent[0] + sum(each.hours for each in every)
        total, whole = f"{(recipe.budget.hours or 0.0) - spent[0]:g} h", f"budget.hours={needed:.3g}"
    before = " and ".join(phase.name for phase in planned)
    reason = f"{plan.ended_by} is for all phases: {before} takes {takes} of {total}, and {name} cannot begin with the rest"
    others = tuple(text for text in plan.reasons if "before the first step" not in text)
    kept = tuple(a for a in plan.alternatives if "budget." not in a.change)
    return replace(
        plan, fits=False, reasons=(*others, reason), alternatives=(*kept, Alternative(f"--set {whole}", "pays for all phases"))
    )


def climb_phases(recipe: Recipe, rigs: Sequence[Rig]) -> tuple[Ladder, PhasedPlan]:
    """The ladder of the first phase, whose target does all phases, and the plans of all phases there.

    Rigs below the target rehearse; what they do is the same whichever phase it is for.
    """
    phased = plan_phases(recipe, rigs[-1])
    ladder = climb(phase_recipe(recipe, recipe.phases[0].name), rigs)
    target = ladder.rungs[-1]
    if target.hours is None or not phased.fits:
        return ladder, phased
    steps = sum(phase.plan.steps for phase in phased.phases)
    whole = replace(target, does=f"{len(phased.phases)} phases, {steps:,} steps", hours=phased.hours, dollars=phased.dollars)
    rungs = (*ladder.rungs[:-1], whole)
    return replace(ladder, rungs=rungs, dollars=sum(rung.dollars or 0.0 for rung in rungs)), phased


def phase_rows(phased: PhasedPlan) -> list[tuple[str, ...]]:
    """One row a phase under PHASE_COLUMNS, and the total of those that fit, where some do."""
    rows = [_row(phase.name, phase.plan) for phase in phased.phases]
    if not any(phase.plan.fits for phase in phased.phases):
        return rows
    name = "total" if phased.fits else "those that fit"
    return [*rows, (name, "", "", "", "", hours_text(phased.hours), _money(phased.dollars))]


def depth_warnings(phased: PhasedPlan) -> list[str]:
    """With model.depth=auto each phase has the depth that its own length pays for; gates then judge another model."""
    depths = {phase.name: phase.plan.depth for phase in phased.phases}
    if len(set(depths.values())) < 2:
        return []
    each = ", ".join(f"{name} {depth}" for name, depth in depths.items())
    return [f"the phases' depths differ ({each}): gates say little about a model of another depth; give all one: model.depth=..."]


def _row(name: str, plan: Plan) -> tuple[str, ...]:
    memory, step = f"{plan.peak_gib:,.1f} / {plan.limit_gib:.1f}", seconds_text(plan.step_seconds)
    if not plan.fits:
        return (name, "", "", memory, step, "", "does not fit")
    steps, tokens = f"{plan.steps:,}", count_text(plan.tokens)
    return (name, steps, tokens, memory, step, hours_text(plan.hours), _money(plan.dollars))


def phase_remarks(phased: PhasedPlan) -> list[tuple[str, str]]:
    """(label, text): what each phase is for, that their models are not the same, and why one does not fit."""
    rows = [(phase.name, phase.description) for phase in phased.phases if phase.description]
    rows += [("warning", text) for text in depth_warnings(phased)]
    for phase in phased.phases:
        rows += [("does not fit", f"{phase.name}: {reason}") for reason in phase.plan.reasons]
        rows += [("instead", f"{a.change} ({a.why})") for a in phase.plan.alternatives]
    return rows


def _money(dollars: float | None) -> str:
    return "no price" if dollars is None else f"${dollars:,.2f}"
