"""Reasons against a plan that lie in its budget or its disk, whatever the model."""

from __future__ import annotations

from windtunnel.recipe import Budget
from windtunnel.rig import Rig

from .cost import Length, Pace, time_limits
from .text import hours_text
from .types import Alternative


def money_and_disk(budget: Budget, rig: Rig, speed: Pace, length: Length, disk: float) -> tuple[list[str], list[Alternative]]:
    """Return the reasons against a plan that lie in its budget or its disk, and what would help."""
    reasons: list[str] = []
    price = rig.dollars_per_hour or 0.0
    options: list[Alternative] = []
    if length.steps < 1:
        least = speed.hours(1)
        cost = f", ${least * price:,.2f}" if price else ""
        reasons.append(f"{length.ended_by} ends before the first step: starting up and one step take {hours_text(least)}{cost}")
        # Every limit that is too small is raised: with only one of them raised the next plan would name the other.
        raised = [
            f"--set {name}=" + (_dollars(10 * least * price) if name == "budget.dollars" else f"{float(f'{10 * least:.2g}'):g}")
            for hours, name in time_limits(budget, rig)
            if speed.steps(hours) < 1
        ]
        options.append(Alternative(" ".join(raised), "room for steps beyond starting up"))
    if rig.disk_free_gib is not None and disk > rig.disk_free_gib:
        reasons.append(f"the run needs {disk:,.1f} GiB of disk at its peak, {rig.disk_free_gib:,.1f} GiB are free")
        fewer = "--set checkpoints.keep_hourly=false --set checkpoints.keep_best=1"
        options.append(Alternative(fewer, "keeps fewer checkpoints"))
    return reasons, options


def _dollars(amount: float) -> str:
    """Write an amount in dollars and cents, a cent at least."""
    return f"{max(0.01, amount):.2f}"
