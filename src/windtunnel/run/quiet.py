"""Whether a run that should be training has gone silent: no step, event or line for much longer than it usually takes."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from .metrics import MetricsReader
from .output import LOG

STARTING_SECONDS = 600.0
"""Before the second step: data are prepared, kernels compiled. As long as a rank has for what it does first."""
LEAST_SECONDS = 120.0
TIMES_A_STEP = 10
# Enough for a median that one validation among them does not move.
_RECENT = 20
# The loss where it is logged, else whatever series was there first: any point is a sign of life.
_NEWEST = (
    "SELECT time FROM points WHERE series = (SELECT id FROM series ORDER BY name = 'loss' DESC, id LIMIT 1)"
    " ORDER BY step DESC LIMIT ?"
)


@dataclass(frozen=True)
class Silence:
    """A run without a sign of life.

    Attributes:
        seconds: since the last one. usual: seconds between its steps; None before there were two.
    """

    seconds: float
    usual: float | None


def silence(folder: Path, metrics: MetricsReader | None, *, now: float | None = None) -> Silence | None:
    """Return how long a run that is said to train has been silent; None where that is not unusual.

    Steps, events and lines of its output are signs of life. The longest pause that is usual is ten steps, two minutes at least,
    and ten minutes before the second step.

    Args:
        folder: of the run.
        metrics: of the run, if it has any yet.
        now: seconds since the epoch.
    """
    steps: list[float] = []
    signs: list[float] = []
    if metrics is not None:
        steps = [row[0] for row in metrics.rows(_NEWEST, (_RECENT,))]
        signs += [row[0] for row in metrics.rows("SELECT max(time) FROM events") if row[0] is not None]
    # Before there are metrics, these are what changes.
    for name in (LOG, "manifest.json"):
        with contextlib.suppress(OSError):
            signs.append((folder / name).stat().st_mtime)
    last = max([*steps, *signs], default=None)
    if last is None:
        return None
    times = sorted(steps)
    gaps = [after - before for before, after in itertools.pairwise(times) if after > before]
    usual = statistics.median(gaps) if gaps else None
    limit = STARTING_SECONDS if usual is None else max(LEAST_SECONDS, TIMES_A_STEP * usual)
    seconds = (time.time() if now is None else now) - last
    return Silence(seconds, usual) if seconds > limit else None
