"""Reasons against a plan that lie in its budget or its disk, whatever the model."""

from __future__ import annotations

from windtunnel.rig import Rig

from .cost import Length, Pace
from .text import hours_text
from .types import Alternative


def money_and_disk(rig: Rig, speed: Pace, length: Length, disk: float) -> tuple[list[str], list[Alternative]]:
    """Reasons against a plan that lie in its budget or its disk, and what would help."""
    reasons: list[str] = []
    options: list[Alternative] = []
    if length.steps < 1:
        least = speed.hours(1)
        cost = f", ${least * rig.dollars_per_hour:,.2f}" if rig.dollars_per_hour else ""
        reasons.append(f"{length.ended_by} ends before the first step: starting up and one step take {hours_text(least)}{cost}")
        if length.ended_by == "budget.dollars":
            worth = 10 * least * (rig.dollars_per_hour or 0.0)
            options.append(Alternative(f"--set budget.dollars={worth:.2f}", "room for steps beyond starting up"))
        else:
            options.append(Alternative(f"--set budget.hours={float(f'{10 * least:.2g}'):g}", "room for steps beyond starting up"))
    if rig.disk_free_gib is not None and disk > rig.disk_free_gib:
        reasons.append(f"the run needs {disk:,.1f} GiB of disk at its peak, {rig.disk_free_gib:,.1f} GiB are free")
        fewer = "--set checkpoints.keep_hourly=false --set checkpoints.keep_best=1"
        options.append(Alternative(fewer, "keeps fewer checkpoints"))
    return reasons, options
