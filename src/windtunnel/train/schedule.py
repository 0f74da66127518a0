"""Learning rate, momentum and weight decay over a run; pure functions of the step and of the share of the run done.

Tying them to progress rather than to a step count lets a budget in dollars or hours be re-planned
from measured step times: the warm-down ends when the budget does.
"""

from __future__ import annotations

import math

from windtunnel.recipe import Schedule

from .optimizer import Scalars

# Muon's momentum warms up over its first steps and falls a little in the warm-down (nanochat, July 2026).
MOMENTUM_START = 0.85
MOMENTUM_END = 0.90
MOMENTUM_STEPS = 300


def learning_rate_scale(schedule: Schedule, step: int, progress: float) -> float:
    """Return the factor on the peak learning rates after `step` updates: warm-up, constant, linear warm-down."""
    # step + 1: the first update would otherwise have a rate of 0.
    warm = min(1.0, (step + 1) / schedule.warmup_steps) if schedule.warmup_steps else 1.0
    return warm * (1.0 + (schedule.final - 1.0) * _warmdown_share(schedule, progress))


def scalars(schedule: Schedule, *, momentum: float, weight_decay: float, step: int, progress: float) -> Scalars:
    """Return what the optimizer needs for one update.

    Args:
        schedule: the recipe's, of the learning rate.
        momentum: Muon's, between its warm-up and the warm-down.
        weight_decay: of the matrices at the start; falls to zero on a cosine.
        step: updates done.
        progress: share of the run done, 0 to 1.
    """
    share = min(1.0, step / MOMENTUM_STEPS)
    beta = min(MOMENTUM_START, momentum) * (1 - share) + momentum * share
    down = _warmdown_share(schedule, progress)
    beta = beta * (1 - down) + min(beta, MOMENTUM_END) * down
    # Towards the end what decay took off could not be learned again.
    decay = weight_decay * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return Scalars(learning_rate_scale(schedule, step, progress), beta, decay)


def _warmdown_share(schedule: Schedule, progress: float) -> float:
    if schedule.warmdown == 0:
        return 0.0
    return min(1.0, max(0.0, (progress - (1 - schedule.warmdown)) / schedule.warmdown))
