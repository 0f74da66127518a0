"""Whether a refusal may be the doing of others who use the GPU: then nothing is known of the candidate.

A trusted process looks, right before and right after the candidate's process has lived and while no other candidate's does. So
what a candidate does itself is no excuse for it, unless others are there too; and even then it gains no reward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from windtunnel.verify.kernel.timing import is_late, median_with_interval
from windtunnel.verify.kernel.tiny import Finding
from windtunnel.verify.sandbox import Outcome

LATE_SHARE = 0.25  # of the probe's calls; half of a candidate's have to be late before it is doubted
LEAST_FREE = 0.25  # of the GPU's memory: what a candidate may count on
CALLS = 60


@dataclass(frozen=True)
class Look:
    """Seconds of calls of fixed size, and bytes of memory where that is known."""

    events: Sequence[float]
    wall: Sequence[float]
    free: int | None = None
    total: int | None = None


def read_look(outcome: Outcome) -> Look | None:
    """What the trusted child saw; None where it could not look."""
    said = outcome.message
    if not outcome.finished or not said.get("events"):
        return None
    return Look(said["events"], said["wall"], said.get("free"), said.get("total"))


def excused(finding: Finding, looks: Sequence[Look | None], index: int | None) -> str | None:
    """Why this finding is not held against the candidate, or None. looks: around its run. index: the GPU's number."""
    gpu = "the GPU" if index is None else f"GPU {index}"
    for look in looks:
        if look is None:
            continue
        if _is_late(finding.evidence) and sum(map(is_late, look.wall, look.events)) >= LATE_SHARE * len(look.wall):
            wall, event = (median_with_interval(seconds).median * 1e6 for seconds in (look.wall, look.events))
            return (
                f"another process uses {gpu}: a copy that takes {event:.0f} us there is done after {wall:.0f} us, "
                "with no candidate under way. End that process, or judge this answer later."
            )
        if finding.reason == "gpu-memory" and look.free is not None and look.total and look.free < LEAST_FREE * look.total:
            return (
                f"other processes hold the memory of {gpu}: {look.free >> 20:,} of {look.total >> 20:,} MiB are free, with no "
                "candidate under way. End them, or judge this answer later."
            )
    return None


def _is_late(evidence: Mapping[str, Any]) -> bool:
    """Whether the wall clock alone saw more than the events, which neighbours cause; the reverse they cannot."""
    return evidence.get("wall", 0.0) > evidence.get("events", float("inf"))
