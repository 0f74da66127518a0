"""The recipe against the rigs: the plan fits, and the budget leaves room for warm-up, checkpoints and validations."""

from __future__ import annotations

from windtunnel.plan import Plan
from windtunnel.recipe import Every, GPTModel, Recipe
from windtunnel.rig import Rig

from .context import Context
from .types import Check, Evidence, Findings, Say

WARMUP_SHARE = 0.3
STARTUP_SHARE = 0.25
LONG_HOURS = 0.5
"""A run of so long should be able to lose less than all of it."""


def _plan(context: Context, say: Say) -> Evidence:
    found, parts, facts = Findings(), [], {}
    for rig in context.rigs:
        say(rig.name)
        plans = context.plans(rig)
        for recipe, plan in zip(context.phases, plans, strict=True):
            name = f"{rig.name}, phase {recipe.phase}" if len(plans) > 1 else rig.name
            facts[name] = {"fits": plan.fits, "hours": plan.hours, "dollars": plan.dollars, "peak_gib": plan.peak_gib}
            if not plan.fits:
                options = "; or ".join(f"{a.change} ({a.why})" for a in plan.alternatives)
                found.problem(f"{plan.recipe} does not fit {name}: " + "; ".join(plan.reasons), options or None)
                continue
            parts.append(f"{name}: {summary(plan)}")
            for warning in plan.warnings:
                found.warn(f"{name}: {warning}" if len(context.rigs) * len(plans) > 1 else warning)
        if len(plans) > 1:
            parts.append(_together(rig, plans))
    return found.evidence("; ".join(parts), {"plans": facts})


def _together(rig: Rig, plans: list[Plan]) -> str:
    """Hours and dollars of all phases."""
    dollars = [plan.dollars for plan in plans]
    cost = "" if None in dollars else f", ${sum(d for d in dollars if d is not None):,.2f}"
    return f"{rig.name}: all {len(plans)} phases {sum(plan.hours for plan in plans):.2f} h{cost}"


def summary(plan: Plan) -> str:
    """'depth 25, 1.53 B parameters, 60.4 of 75.1 GiB a rank; 9,000 steps in 1.00 h, $37.52'."""
    size = f"{plan.params / 1e6:,.1f} M parameters" if plan.params < 1e9 else f"{plan.params / 1e9:,.2f} B parameters"
    cost = "" if plan.dollars is None else f", ${plan.dollars:,.2f}"
    memory = f"{plan.peak_gib:.1f} of {plan.limit_gib:.1f} GiB a rank"
    name = plan.model if plan.depth is None else f"depth {plan.depth}"
    return f"{name}, {size}, {memory}; {plan.steps:,} {'rounds' if plan.roles else 'steps'} in {plan.hours:.2f} h{cost}"


def _budget(context: Context, say: Say) -> Evidence:
    found, parts = Findings(), []
    for rig in context.rigs:
        say(rig.name)
        dollars = context.recipe.budget.dollars
        if dollars is not None and rig.dollars_per_hour is None:
            fix = f"name its price: --on '{rig.name}@$2.50' (a GPU-hour), or WINDTUNNEL_PRICE on the machine"
            found.problem(f"budget.dollars is {dollars:g}, and {rig.name} has no known price", fix)
        for recipe, plan in zip(context.phases, context.plans(rig), strict=True):
            if plan.fits:  # else the check of the plan says it
                phase = f"phase {recipe.phase} " if len(context.phases) > 1 else ""
                parts.append(phase + _length(found, recipe, rig, plan))
    return found.evidence("; ".join(parts) or "nothing fits")


def _length(found: Findings, recipe: Recipe, rig: Rig, plan: Plan) -> str:
    """Looks at one plan's length; says it in words."""
    startup = sum(plan.startup.values()) / 3600
    if plan.hours > 0 and startup > STARTUP_SHARE * plan.hours:
        found.warn(f"on {rig.name} {startup / plan.hours:.0%} of the run is starting up: a longer budget is worth more")
    if plan.needs_yes:
        found.warn(
            f"on {rig.name} `windtunnel train` asks for --yes, which a job without a terminal cannot give: {plan.warnings[0]}"
        )
    words = f"{rig.name}: {plan.steps:,} steps, ended by {plan.ended_by}"
    if isinstance(recipe.model, GPTModel):
        _warmup(found, recipe, rig, plan)
        words += _interval(found, "validation", recipe.pretrain.validate_every, rig, plan)
        words += _interval(found, "checkpoint", recipe.checkpoints.every, rig, plan)
    return words


def _warmup(found: Findings, recipe: Recipe, rig: Rig, plan: Plan) -> None:
    steps = recipe.pretrain.schedule.warmup_steps
    fix = f"--set stages.pretrain.schedule.warmup_steps={max(1, plan.steps // 20)}, or a larger budget"
    if steps >= plan.steps:
        what = f"on {rig.name} the run ends after {plan.steps:,} steps, within its warm-up of {steps:,}"
        found.problem(f"{what}: the learning rate never reaches its peak", fix, shows="end")
    elif steps > WARMUP_SHARE * plan.steps:
        found.warn(f"on {rig.name} {steps:,} of {plan.steps:,} steps are warm-up: {fix}")


def _interval(found: Findings, what: str, every: Every, rig: Rig, plan: Plan) -> str:
    """Looks at how often something happens in a run; says it in words."""
    steps = float(every.steps) if every.steps else (every.seconds or 0.0) / max(plan.step_seconds, 1e-9)
    times = int(plan.steps / steps) if steps > 0 else 0
    key = "stages.pretrain.validate_every" if what == "validation" else "checkpoints.every"
    if times < 1:
        harm = "a run that is killed loses everything" if what == "checkpoint" else "only its end shows whether it overfits"
        text = f"on {rig.name} the first {what} is due after the run's end ({plan.hours:.2f} h): {harm}"
        fix = f"--set '{key}={max(1, plan.steps // 10)} steps'"
        if what == "checkpoint" and plan.hours >= LONG_HOURS:
            found.problem(text, fix, shows="first interruption")
        else:
            found.warn(f"{text}; {fix}")
    return f", {times} {what}s"


CHECKS = (
    Check(
        "plan",
        "the recipe fits the rigs; its hours and dollars are known",
        "choose a smaller model or a larger rig: windtunnel plan",
        _plan,
        rung="target",
        needs=("recipe", "rig"),
    ),
    Check(
        "budget",
        "the budget can be kept, and leaves room for warm-up, checkpoints and validations",
        "look at budget and checkpoints in the recipe",
        _budget,
        rung="target",
        needs=("recipe", "rig"),
    ),
)
