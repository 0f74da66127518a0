"""Advantages: how much better an answer is than the others to the same prompt.

Rewards of which nothing is known are NaN: such an answer counts in no mean, and its advantage is NaN too, to be masked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

EPSILON = 1e-4
"""Added to a standard deviation before it divides, as in the peers."""
EQUAL = 1e-8
"""Rewards of a group that differ by no more are equal."""


def group_advantages(
    rewards: Sequence[float], baseline: Literal["group", "leave-one-out"] = "group", scale: Literal["group", "none"] = "group"
) -> list[float]:
    """Return the advantages of the answers to one prompt.

    Args:
        rewards: of each answer; NaN where nothing is known.
        baseline: the mean of all (GRPO, arXiv:2402.03300), or for each answer that of the others (RLOO, arXiv:2402.14740),
            which is n / (n - 1) times as far away.
        scale: divide by the sample standard deviation of the group, or not (Dr. GRPO, arXiv:2503.20783).

    Returns:
        One for each answer; NaN where its reward is, and everywhere if fewer than two are known: one alone has no other to be
        better than.
    """
    known = [reward for reward in rewards if not math.isnan(reward)]
    if len(known) < 2:
        return [math.nan] * len(rewards)
    # Sums that are exact do not depend on the order of the answers, which differs between machines.
    mean = math.fsum(known) / len(known)
    # That of the others is (n * mean - reward) / (n - 1): as far away, times n / (n - 1).
    factor = len(known) / (len(known) - 1) if baseline == "leave-one-out" else 1.0
    if scale == "group":
        factor /= math.sqrt(math.fsum((reward - mean) ** 2 for reward in known) / (len(known) - 1)) + EPSILON
    return [factor * (reward - mean) for reward in rewards]  # NaN stays NaN


def all_equal(rewards: Sequence[float]) -> bool:
    """Return whether the known rewards of a group are all the same, so that nothing can be learned from it."""
    known = [reward for reward in rewards if not math.isnan(reward)]
    return len(known) < 2 or max(known) - min(known) <= EQUAL
