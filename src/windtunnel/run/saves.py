"""What saving has cost in runs that were made: how long a checkpoint took to be written, and what it held training up for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from windtunnel.recipe import UserError

from .listing import list_runs
from .metrics import MetricsReader

UNSETTLED = 3
"""First steps of a run, which compile and warm up: they say nothing of a step's time."""
_SAVED = re.compile(r"saved \S+: ([\d.]+) MiB in ([\d.]+) s")


@dataclass(frozen=True)
class Saves:
    """Measured saves of one run, their medians.

    Attributes:
        run: its name. count: saves. mib: of a checkpoint.
        seconds: until one is whole on the disk. stall: seconds by which steps took longer meanwhile.
    """

    run: str
    count: int
    mib: float
    seconds: float
    stall: float


def measured_saves(root: Path, recipe: str) -> Saves | None:
    """Return the saves of a recipe's newest run that has any; None: there is none."""
    found = (saves_of(run.path) for run in list_runs(root) if run.recipe == recipe)
    return next((saves for saves in found if saves is not None), None)


def saves_of(run: Path) -> Saves | None:
    """Return the saves of a run; None where it has none, or not enough steps beside them."""
    try:
        with MetricsReader(run / "metrics.sqlite") as metrics:
            # Without the first: see UNSETTLED.
            steps = [(point.time, point.value) for point in metrics.series("step_seconds")][UNSETTLED:]
            told = [(event.time, _SAVED.match(event.message)) for event in metrics.events("checkpoint")]
    except UserError:
        return None
    saves = [(end, float(match[1]), float(match[2])) for end, match in told if match]
    # A point's time is its step's end: a step that overlaps a save ends after the save began, and at most its own length after
    # the save's end.
    during = [[value for time, value in steps if end - seconds <= time <= end + value] for end, _, seconds in saves]
    quiet = [value for time, value in steps if not any(end - seconds <= time <= end + value for end, _, seconds in saves)]
    if not saves or not quiet:
        return None
    usual = median(quiet)
    return Saves(
        run.name, len(saves), _of(mib for _, mib, _ in saves), _of(seconds for _, _, seconds in saves),
        max(0.0, _of(sum(value - usual for value in values) for values in during)),
    )  # fmt: skip


def _of(values: Iterable[float]) -> float:
    return median(list(values))
