"""A kernel in a model's answer: where its plan ends, how far it came in the judgement, and what its speed is worth."""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.verify.code.fences import source_begins
from windtunnel.verify.types import Verdict

# KernelBench's name for what an answer defines.
CANDIDATE = "ModelNew"
# Of a kernel's judgement, in their order.
STAGES = ("record", "compile", "tiny", "full", "timing")
# A kernel that is faster still is worth no more: what differs is the clock (TritonRL, arXiv 2510.17891).
MOST_SPEED = 2.0


def plan_ends(answer: str) -> int:
    """Return how many characters of an answer stand before its code: the plan."""
    return source_begins(answer, CANDIDATE)


@dataclass(frozen=True)
class KernelOutcome:
    """How far a kernel came in its judgement.

    Attributes:
        valid: its host code gave a plan of real Triton kernels within the task's rules.
        compiled: each of them compiles for a GPU, where a compiler was there to try.
        right: it was accepted.
        speedup: PyTorch's time over its own; None: it is not right, or was not timed.
    """

    valid: bool
    compiled: bool
    right: bool
    speedup: float | None = None


def kernel_outcome(verdict: Verdict) -> KernelOutcome | None:
    """Return how far a kernel came; None where nothing is known, or the verdict is not a kernel's."""
    if verdict.infrastructure or verdict.stage not in STAGES:
        return None
    # Without a GPU a verdict ends at an earlier stage, and accepted is accepted.
    passed = len(STAGES) if verdict.accepted else STAGES.index(verdict.stage)
    return KernelOutcome(passed > 0, passed > 1, verdict.accepted, _speedup(verdict))


def speed_reward(verdict: Verdict) -> float | None:
    """Return PyTorch's time over the kernel's, at most MOST_SPEED: 0 for a kernel refused, None where nothing was timed."""
    # A wrong kernel's speed is worth nothing, however fast it is.
    if verdict.infrastructure or not verdict.accepted:
        return verdict.reward
    ratio = _speedup(verdict)
    return None if ratio is None else min(ratio, MOST_SPEED)


def _speedup(verdict: Verdict) -> float | None:
    """Return eager PyTorch's time over that of a kernel which was accepted and timed."""
    ratios = verdict.evidence.get("gpu", {}).get("speedup", {}) if verdict.accepted else {}
    # Against eager PyTorch, as KernelBench counts; what torch.compile makes of it is told beside.
    return ratios.get("eager")


def stage_states(verdict: Verdict) -> list[tuple[str, str]]:
    """Return (stage, 'passed' | 'refused' | 'failed' | 'not run') for every stage, for people."""
    at = STAGES.index(verdict.stage) if verdict.stage in STAGES else 0
    states = []
    for number, stage in enumerate(STAGES):
        if number < at:
            states.append((stage, "passed"))
        elif number > at:
            states.append((stage, "not run"))
        else:
            states.append((stage, "passed" if verdict.accepted else "failed" if verdict.infrastructure else "refused"))
    return states
