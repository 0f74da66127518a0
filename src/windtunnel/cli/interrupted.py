"""What a machine that may be taken away makes of a plan: hours and dollars expected, and how often to save. For several verbs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windtunnel.plan import Interrupted, Plan
    from windtunnel.recipe import Recipe
    from windtunnel.rig import Rig

STALL_SECONDS = 0.04
"""What a checkpoint holds training up for where no run of the recipe is here: the larger of two saves of 13 GiB on an H200
(benchmarks/results/checkpoints-h200.json: -0.01 and 0.04 s)."""
SAVE_GIB_PER_SECOND = 1.25
"""And how fast it is written: the slowest of the three saves there."""
UNCOUNTED = "no interruption is counted: --interruptions 0.1 (an hour)"
"""Of a machine that may be taken away, and nobody knows how often."""
OF_CLUSTERS = (
    "of a cluster's spot nodes nobody publishes what they cost or how often they are taken away: prices are those of clouds "
    "(--price is yours)"
)
"""The same of kubernetes, where what is known of clouds says nothing."""
AGAIN_SECONDS = 600.0
"""From losing a machine to another one that has the package. Taken, not measured."""


@dataclass(frozen=True)
class Expectation:
    """A plan under interruptions.

    Attributes:
        rate: an hour. rate_source: where it is from. found: hours, number, intervals. dollars: None: no price is known.
        planned_hours: without any. stall, written, sent: seconds that a checkpoint holds training up for, takes to the disk, and
            then to the mirror (0: there is none). saves: where the first two are from.
        again: seconds from an interruption to a training step.
    """

    rate: float
    rate_source: str
    found: Interrupted
    dollars: float | None
    planned_hours: float
    stall: float
    written: float
    sent: float
    saves: str
    again: float

    def to_json(self) -> dict[str, Any]:
        """Return it with stable keys."""
        return {
            "per_hour": self.rate, "source": self.rate_source, "hours": self.found.hours, "dollars": self.dollars,
            "interruptions": self.found.interruptions, "saved_every_hours": self.found.interval,
            "best_interval_hours": self.found.best_interval if self.found.interruptions else None,
            "stall_seconds": self.stall, "save_seconds": self.written, "send_seconds": self.sent, "saves": self.saves,
            "restart_seconds": self.again,
        }  # fmt: skip

    def remarks(self) -> list[tuple[str, str]]:
        """Return what to print, as labels and texts."""
        dollars = "" if self.dollars is None else f" and ${self.dollars:,.2f}"
        more = self.found.hours / self.planned_hours - 1 if self.planned_hours else 0.0
        first = (
            f"at {self.rate:g} an hour ({self.rate_source}): {_time(3600 * self.found.hours)}{dollars} expected, {more:.1%} more "
            f"than without, and {self.found.interruptions:,.2g} interruptions"
        )
        if not self.found.interruptions:
            return [("interruptions", first)]
        late = f", and is in the mirror {_time(self.sent)} later" if self.sent else ""
        return [
            ("interruptions", first),
            (
                "save",
                f"every {_time(3600 * self.found.interval)} as the recipe has it; every {_time(3600 * self.found.best_interval)} "
                f"costs least (Young 1974, Daly 2006). A checkpoint holds training up for {self.stall:.2g} s, takes "
                f"{_time(self.written)} to the disk{late} ({self.saves})",
            ),
            (
                "again",
                f"{_time(self.again)} until another machine trains: {AGAIN_SECONDS / 60:.0f} min to have it, assumed, and "
                "starting up",
            ),
        ]  # fmt: skip


def expect(
    plan: Plan, rig: Rig, recipe: Recipe, rate: tuple[float, str], root: Path, *, hours: float | None = None
) -> Expectation:  # fmt: skip
    """Return a plan under interruptions, with the save's time as a run of the recipe below a folder has measured it.

    Args:
        plan: that fits the rig.
        rig: whose line to the mirror is as fast as its downloads.
        recipe: with the interval between checkpoints.
        rate: of interruptions an hour, and where that is from.
        root: the folder of runs.
        hours: of all stages; None: the plan's.
    """
    from windtunnel.plan import under_interruptions
    from windtunnel.run import measured_saves

    planned = plan.hours if hours is None else hours
    known = measured_saves(root, recipe.name)
    if known is None:
        stall, written = STALL_SECONDS, plan.checkpoint_gib / SAVE_GIB_PER_SECOND
        saves = f"{plan.checkpoint_gib:,.2f} GiB, at what was measured on an H200"
    else:  # of a checkpoint of another size in proportion
        # Saving time is taken to grow with size alone: files are large, so that bandwidth decides.
        share = plan.checkpoint_gib * 1024 / known.mib if known.mib else 1.0
        stall, written = known.stall * share, known.seconds * share
        saves = f"{known.count} saves of {known.mib:,.1f} MiB in run {known.run}"
        saves += "" if 0.9 < share < 1.1 else f", times {share:,.3g}"
    # A machine's upload is taken to be as fast as its download: providers state one number.
    sent = 0.0 if recipe.checkpoints.mirror is None else plan.checkpoint_gib * 2**30 / (rig.download_gbs * 1e9)
    every = recipe.checkpoints.every
    interval = (every.seconds if every.seconds is not None else (every.steps or 0) * plan.step_seconds) / 3600 or planned
    # Compiling and loading are paid again at each start, as the plan has them for the first.
    again = AGAIN_SECONDS + sum(plan.startup.values())
    found = under_interruptions(
        planned, per_hour=rate[0], interval=min(interval, planned) or 1e-9, save=stall / 3600, restart=again / 3600,
        late=(written + sent) / 3600,
    )  # fmt: skip
    dollars = None if plan.dollars_per_hour is None else found.hours * plan.dollars_per_hour
    best = max(found.best_interval, (written + sent) / 3600)  # one save at a time
    found = replace(found, best_interval=best)
    return Expectation(*rate, found, dollars, planned, stall, written, sent, saves, again)


def rate_of(rig: str, given: float | None, *, spot: bool) -> tuple[float, str] | None:
    """Return how often an hour a rig's machine is taken away, and from where that is known; None: nothing is, or it stays.

    Args:
        rig: as it was named.
        given: by the user.
        spot: whether it may be taken away.
    """
    if given is not None:
        return given, "--interruptions"
    if not spot:
        return None
    from windtunnel.rig import spot_interruptions

    return spot_interruptions(rig)


def is_spot(rig: str) -> bool:
    """Whether a rig as it was named has the price of a machine that may be taken away."""
    return rig.rpartition("@")[2].strip().lower() == "spot"


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
