"""The gates between phases: each can be judged by what the phase's run will have logged, and something is asked for."""

from __future__ import annotations

import math
from typing import Any

from windtunnel.plan import Plan
from windtunnel.recipe import Gates, Recipe

from .context import Context
from .types import Check, Evidence, Findings, Say

MOST = 100.0
"""Percent: no refinement is above it."""


def _has_phases(context: Context) -> bool:
    return bool(context.loaded.phases)


def gates(context: Context, say: Say) -> Evidence:
    """Judge each phase's gates on the metrics that a run of the planned length has."""
    found, parts, facts = Findings(), [], {}
    plans = context.plans()
    for number, (phase, recipe, plan) in enumerate(zip(context.loaded.phases, context.phases, plans, strict=True)):
        last = number + 1 == len(plans)
        if phase.gates is None:
            if not last:
                found.warn(f"phase {phase.name} has no gates: whatever comes of it, the next one spends its budget")
            continue
        asked = _judge(phase.name, phase.gates, recipe, plan, context, found)
        facts[phase.name] = asked
        if not asked and not last:
            found.warn(f"phase {phase.name}: its gates ask for nothing")
        listed = ", ".join(f"{name.replace('_', ' ')} {limit}" for name, limit in asked.items())
        parts.append(f"after phase {phase.name}: {listed or 'nothing'}")
    return found.evidence("; ".join(parts) or "no phase has gates", {"gates": facts}, blocks=False)


def _judge(name: str, asked: Gates, recipe: Recipe, plan: Plan, context: Context, found: Findings) -> dict[str, str]:
    """The limit of each gate that is asked for. Finds those that could not be judged, or never hold."""
    from windtunnel.run import judge_gates

    fix = f"change gates of phase {name} in the recipe, or give it a longer budget"
    if isinstance(asked.refinement, float) and asked.refinement >= MOST:
        found.problem(f"phase {name}: a refinement of {asked.refinement:g} % is more than a loss can fall by", fix, shows="end")
    if asked.order and recipe.trm is not None and recipe.trm.supervision == 1:
        found.warn(f"phase {name}: with trm.supervision=1 neither order nor refinement can be asked for")
    results = judge_gates(asked, recipe, _metrics(recipe, plan), gpus=context.rig.gpu is not None)
    for result in results:
        if result.value is None:
            what = f"phase {name}: gate {result.name} cannot be judged after {plan.steps:,} steps: {result.measured}"
            found.problem(what, fix, shows="end")
    return {result.name: result.limit for result in results}


def _metrics(recipe: Recipe, plan: Plan) -> dict[str, Any]:
    """What a run of the planned length logs: the loss falls, each supervision step is below the one before."""
    from windtunnel.run import Point, of_step

    steps = range(1, plan.steps + 1)
    every = recipe.pretrain.validate_every.steps
    validated = sorted({*range(every or plan.steps, plan.steps + 1, every or plan.steps), *([plan.steps] if plan.steps else [])})
    start = math.log(plan.vocab)

    def series(numbers: Any, value: float) -> list[Any]:
        return [Point(step=step, value=value * (1 - 0.5 * step / plan.steps), time=0.0) for step in numbers]

    supervision = recipe.trm.supervision if recipe.trm is not None else 0
    by_step = {of_step("validation_loss", i): series(validated, start * (1 - 0.1 * i)) for i in range(supervision)}
    return by_step | {
        "loss": series(steps, start),
        "gradient_norm": series(steps, 1.0),
        "refinement": series(steps, 50.0),
        "gpu_utilisation": series(steps, 100.0),
    }


CHECKS = (
    Check(
        "gates", "the gates between phases can be judged by what each phase's run logs", "look at phases in the recipe", gates,
        shows="end", rung="target", needs=("recipe", "rig", "plan"), applies=_has_phases, apart=False,
    ),
)  # fmt: skip
