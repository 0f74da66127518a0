"""Before money is spent on a phase: it and those that will follow it must fit, be paid for, and be confirmed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from windtunnel.plan import PhasedPlan, PlannedPhase, depth_warnings, hours_text, plan_phases, refuse
from windtunnel.recipe import Recipe, UserError

from .phase_runs import PhaseRun
from .prepare import Options, Say, rig_of


@dataclass(frozen=True)
class Ahead:
    """The phases that a command will run: numbers of the first and the last, and the run before them, if there is one."""

    first: int
    last: int
    before: PhaseRun | None = None


def look_ahead(recipe: Recipe, ahead: Ahead, options: Options, say: Say) -> None:
    """Plan the phases that will run, and only these, with what is left of the budget.

    Raises:
        UserError: one of them does not fit or cannot be paid, the first such is told of; or a confirmation is missing.
    """
    rig = rig_of(options)
    if recipe.budget.dollars is not None and rig.dollars_per_hour is None:
        return  # refused with the price that is missing
    mine = recipe.model_copy(update={"phases": recipe.phases[ahead.first : ahead.last + 1]})
    spent = ahead.before
    planned = plan_phases(
        mine, rig, hours=spent.hours if spent is not None else 0.0, dollars=spent.dollars if spent is not None else 0.0
    )
    for number, phase in enumerate(planned.phases):
        if not phase.plan.fits:
            raise _refusal(phase, planned.phases[:number])
    asking = [phase.name for phase in planned.phases if phase.plan.needs_yes]
    if asking and not options.yes:
        warnings = "; ".join(dict.fromkeys(f"{p.name}: {w}" for p in planned.phases for w in p.plan.warnings))
        raise UserError(
            f"the plan asks for confirmation: {warnings}", "give more data or a smaller budget, or confirm with --yes"
        )
    if ahead.first == 0:
        say(_announced(planned))
        for warning in depth_warnings(planned):
            say(f"warn: {warning}")


def _refusal(phase: PlannedPhase, before: tuple[PlannedPhase, ...]) -> UserError:
    """That a phase does not fit; those before it, which do, can be run without it."""
    error = refuse(replace(phase.plan, recipe=f"phase {phase.name}, which follows," if before else f"phase {phase.name}"))
    if not before:
        return error
    fixes = [error.fix] if error.fix and phase.plan.alternatives else []
    return UserError(error.message, "; or ".join([*fixes, f"run the first alone: --phase {before[0].name}"]))


def _announced(planned: PhasedPlan) -> str:
    def cost(hours: float, dollars: float | None) -> str:
        return hours_text(hours) + ("" if dollars is None else f", ${dollars:,.2f}")

    each = "; ".join(f"{phase.name} {cost(phase.plan.hours, phase.plan.dollars)}" for phase in planned.phases)
    together = f"; together {cost(planned.hours, planned.dollars)}" if len(planned.phases) > 1 else ""
    return f"planned: {each}{together}"
