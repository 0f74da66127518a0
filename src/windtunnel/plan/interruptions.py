"""What machines that may be taken away do to a plan: expected hours and dollars, and how often to save.

Interruptions come at random at a rate an hour. Work since the last checkpoint is then done again, after starting up anew. The
expected time of a stretch of work is Daly's (2006, doi:10.1016/j.future.2004.11.016, equation 13), the best interval his
refinement (equation 37) of Young's square root (1974).
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Interrupted:
    """A job under interruptions.

    Attributes:
        hours: expected until the work is done. interruptions: expected number. interval: hours of work between checkpoints.
        best_interval: that takes the least time.
    """

    hours: float
    interruptions: float
    interval: float
    best_interval: float


def under_interruptions(
    hours: float, *, per_hour: float, interval: float, save: float, restart: float, late: float = 0.0
) -> Interrupted:  # fmt: skip
    """Return how long a job is expected to take where its machine may be taken away.

    Args:
        hours: of work without any interruption.
        per_hour: rate of interruptions; 0 is a machine that stays.
        interval: hours of work between checkpoints.
        save: hours that training stands still for one.
        restart: hours from an interruption until training goes on: another machine, start-up, the checkpoint read.
        late: hours until a checkpoint is where the next machine finds it, while training goes on: what is trained meanwhile
            is lost too, which is counted as a longer restart.
    """
    restart += late
    best = best_interval(per_hour, save)
    stretches, rest = divmod(hours / interval, 1.0)
    if per_hour == 0.0:
        return Interrupted(hours + stretches * save, 0.0, interval, best)
    lengths = [(stretches, interval + save), (1.0, rest * interval)]
    # Each stretch begins again until one goes through; starting up may itself be interrupted.
    total = sum(count * math.exp(per_hour * restart) * math.expm1(per_hour * length) / per_hour for count, length in lengths)
    return Interrupted(total, per_hour * total, interval, best)


def best_interval(per_hour: float, save: float) -> float:
    """Return the hours of work between checkpoints that cost the least time; infinite where nothing interrupts."""
    if per_hour == 0.0:
        return math.inf
    mean = 1.0 / per_hour
    if save >= 2.0 * mean:
        return mean
    ratio = math.sqrt(save / (2.0 * mean))
    return math.sqrt(2.0 * save * mean) * (1.0 + ratio / 3.0 + ratio**2 / 9.0) - save
