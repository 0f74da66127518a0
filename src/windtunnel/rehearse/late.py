"""What a failure costs when it is found on the rented rig and not here: the rig's rate times the minutes until it shows."""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.plan import Plan, load_constants

from .checks import Moment

FIRST_STEPS = 100
RULES: dict[Moment, str] = {
    "start": "while the job starts up",
    "first steps": f"within the first {FIRST_STEPS} steps",
    "first interruption": "when the job is first interrupted, on average half-way",
    "end": "when training is over",
}


@dataclass(frozen=True)
class Late:
    """Minutes on the rig until a failure shows, and dollars spent by then (None: no price known)."""

    minutes: float
    dollars: float | None
    rule: str


def late_costs(plan: Plan, gpu: str | None) -> dict[Moment, Late]:
    """What finding a failure later costs, for each moment it can show at, by the plan of the target rig."""
    constants = load_constants(gpu)
    start = constants.startup_seconds if plan.layout.device == "cuda" else constants.cpu_startup_seconds
    run = 60 * plan.hours
    minutes: dict[Moment, float] = {
        "start": start / 60,
        "first steps": min(run, (start + FIRST_STEPS * plan.step_seconds) / 60),
        "first interruption": run / 2,
        "end": run,
    }
    rate = plan.dollars_per_hour
    return {moment: Late(value, None if rate is None else rate * value / 60, RULES[moment]) for moment, value in minutes.items()}
