"""What a failure costs when it is found on the rented rig and not here: the rig's rate times the minutes until it shows."""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.check import Shows
from windtunnel.plan import Plan
from windtunnel.recipe import Every, GPTModel, Recipe

FIRST_STEPS = 100
RULES: dict[Shows, str] = {
    "start": "while the job starts up",
    "first steps": f"within the first {FIRST_STEPS} steps",
    "first validation": "at the first validation",
    "first checkpoint": "at the first checkpoint",
    "first interruption": "when the job is first interrupted, on average half-way",
    "end": "when training is over",
}


@dataclass(frozen=True)
class Late:
    """Minutes on the rig until a failure shows, and dollars spent by then (None: no price known)."""

    minutes: float
    dollars: float | None
    rule: str


def late_costs(recipe: Recipe, plan: Plan) -> dict[Shows, Late]:
    """What finding a failure later costs, for each time it can show at, by the plan of the target rig."""
    start, run = sum(plan.startup.values()), 3600 * plan.hours
    gpt = isinstance(recipe.model, GPTModel)
    validation = _after(recipe.pretrain.validate_every, plan) if gpt else run
    seconds: dict[Shows, float] = {
        "start": start,
        "first steps": start + FIRST_STEPS * plan.step_seconds,
        "first validation": start + validation,
        "first checkpoint": start + _after(recipe.checkpoints.every, plan),
        "first interruption": run / 2,
        "end": run,
    }
    rate = plan.dollars_per_hour
    late = {}
    for shows, value in seconds.items():
        minutes = min(value, run) / 60 if shows != "start" else value / 60
        late[shows] = Late(minutes, None if rate is None else rate * minutes / 60, RULES[shows])
    return late


def _after(every: Every, plan: Plan) -> float:
    """Seconds of training until the first time."""
    return every.steps * plan.step_seconds if every.steps else every.seconds or 0.0
