"""Before money is spent on a stage: it and those that will follow it must fit, be paid for, and be confirmed."""

from __future__ import annotations

from dataclasses import replace

from windtunnel.plan import PlannedStage, StagedPlan, depth_warnings, hours_text, plan_stages, refuse
from windtunnel.recipe import GRPO, Recipe, UserError

from .prepare import Say, require_vllm_here, rig_of
from .stage_runs import StageRun
from .trainable import Options


def look_ahead(recipe: Recipe, numbers: range, before: StageRun | None, options: Options, say: Say) -> None:
    """Plan the stages that will run, and only these, with what is left of the budget; try the judges of later ones.

    Args:
        recipe: with all its stages.
        numbers: of those that will run.
        before: the run before them, if there is one.
        options: how the command was called.
        say: told what is planned.

    Raises:
        UserError: one of them does not fit or cannot be paid, the first such is told of; a confirmation is missing; or the
            judges of a later stage do not work on this machine, or it asks for a vLLM that is not here.
    """
    rig = rig_of(options)
    if recipe.budget.dollars is not None and rig.dollars_per_hour is None:
        return  # refused with the price that is missing
    # What a budget is for is all stages together: those before these have spent their part of it.
    mine = recipe.model_copy(update={"stages": {stage.name: stage for stage in recipe.training[numbers.start : numbers.stop]}})
    hours, dollars = (before.hours, before.dollars) if before is not None else (0.0, 0.0)
    planned = plan_stages(mine, rig, hours=hours, dollars=dollars)
    for number, stage in enumerate(planned.stages):
        if not stage.plan.fits:
            raise _refusal(stage, planned.stages[:number])
    asking = [stage.name for stage in planned.stages if stage.plan.needs_yes]
    if asking and not options.yes:
        warnings = "; ".join(dict.fromkeys(f"{p.name}: {w}" for p in planned.stages for w in p.plan.warnings))
        raise UserError(
            f"the plan asks for confirmation: {warnings}", "give more data or a smaller budget, or confirm with --yes"
        )
    if numbers.start == 0:
        say(_announced(planned))
        for warning in depth_warnings(planned):
            say(f"warn: {warning}")
    # The stage that starts now tries its own when it starts; later ones would fail after hours that were paid for. On Ray answers
    # are judged where learners are: a machine with a GPU, which the stages before need, is one of those.
    later = [one for one in recipe.training[numbers.start + 1 : numbers.stop] if isinstance(one, GRPO)]
    for rl in later:
        require_vllm_here(rl)
    for rl in later:
        if rl.placement == "local" or rig.gpu is not None:
            _try_judges(rl, say)


def _try_judges(stage: GRPO, say: Say) -> None:
    """Start the judges of a stage and end them: that they do not work would show when the stages before it are paid for."""
    from windtunnel.rl import Rewards

    say(f"stage {stage.name}: trying its judges ({', '.join(dict.fromkeys(source.kind for source in stage.sources)) or 'none'})")
    with Rewards(stage):
        pass


def _refusal(stage: PlannedStage, before: tuple[PlannedStage, ...]) -> UserError:
    """Return the refusal of a stage that does not fit; those before it, which do, can be run without it."""
    error = refuse(replace(stage.plan, recipe=f"stage {stage.name}, which follows," if before else f"stage {stage.name}"))
    if not before:
        return error
    fixes = [error.fix] if error.fix and stage.plan.alternatives else []
    return UserError(error.message, "; or ".join([*fixes, f"run the first alone: --stage {before[0].name}"]))


def _announced(planned: StagedPlan) -> str:
    def cost(hours: float, dollars: float | None) -> str:
        return hours_text(hours) + ("" if dollars is None else f", ${dollars:,.2f}")

    each = "; ".join(f"{stage.name} {cost(stage.plan.hours, stage.plan.dollars)}" for stage in planned.stages)
    together = f"; together {cost(planned.hours, planned.dollars)}" if len(planned.stages) > 1 else ""
    return f"planned: {each}{together}"
