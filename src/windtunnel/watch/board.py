"""What the pages in the browser show, as JSON: all runs of a folder in a line each, and one run with its curves."""

from __future__ import annotations

import re
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from windtunnel.recipe import UserError
from windtunnel.run import (
    MetricsReader,
    RunFolder,
    RunSummary,
    compare_expected,
    list_runs,
    sampled,
    silence,
    stretches,
)

from .curves import drawn, told
from .follow import read_snapshot
from .live import finite
from .made import samples_of, stages_of, stamp_of

# As many as so small a curve can show.
SPARK_POINTS = 40
CURVE_POINTS = 400
MOST_EVENTS = 60
NO_CURVE: dict[str, Any] = {"spark": [], "progress": None, "last": None}
# A folder of a thousand runs is listed at once, and its small curves come with the next looks.
PATIENCE_SECONDS = 0.3


class Board:
    """Reads runs for the pages. A run that has not changed since it was last read is not read again.

    Args:
        root: the folder of the runs.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._known: dict[str, tuple[Any, dict[str, Any]]] = {}

    def runs(self) -> dict[str, Any]:
        """Return a line for every run, the newest first."""
        # One deadline for the whole list: a limit for each run would add up.
        until = time.monotonic() + PATIENCE_SECONDS
        return {"root": str(self.root), "runs": [self._line(summary, until) for summary in list_runs(self.root)]}

    def run(self, name: str) -> dict[str, Any]:
        """Return one run whole: figures, curves, gates, stages, samples, events.

        Raises:
            UserError: there is none of that name, or it is damaged.
        """
        run = RunFolder.open(self.folder(name))
        found: dict[str, Any] = {**_moment(run), "charts": [], "clock": [], "events": []}
        found["recipe"] = run.manifest.get("recipe")
        found["stage"] = run.manifest.get("stage")
        found["gates"] = run.manifest.get("gates") or []
        found["expected"] = [item.row() for item in compare_expected(run)]
        found["stages"] = stages_of(run)
        found["samples"] = samples_of(run, None)
        if run.metrics_path.exists():
            with MetricsReader(run.metrics_path) as metrics:
                found |= drawn(run, metrics, CURVE_POINTS)
                found["samples"] = samples_of(run, metrics)
                found["events"] = [_event(event) for event in metrics.events(last=MOST_EVENTS)]
        return _json(found)

    def moment(self, name: str) -> dict[str, Any]:
        """Return what a run shows now, without its curves. Raises UserError."""
        return _json(_moment(RunFolder.open(self.folder(name))))

    def tail(self, name: str, since: int) -> dict[str, Any]:
        """Return what came after a step: new points by series, and the last step there is. Raises UserError."""
        folder = self.folder(name)
        path = folder / "metrics.sqlite"
        if not path.exists():
            return {"last": -1, "series": {}}
        with MetricsReader(path) as metrics:
            last = max((point.step for point in metrics.latest().values()), default=-1)
            # Nothing is read where no step was added, which is most looks.
            new = (
                {series: told(stretches(metrics, series, CURVE_POINTS, since=since)) for series in metrics.names()}
                if last > since
                else {}
            )
            return _json({"last": last, "series": {series: points for series, points in new.items() if points}})

    def folder(self, name: str) -> Path:
        """Return the folder of a run by its name; a name is no path. Raises UserError: there is none."""
        # The name comes from a browser: it must not lead out of the folder.
        if name in (".", "..") or not re.fullmatch(r"[\w.@+=-]{1,255}", name):
            raise UserError(f"{name[:80]!r} is not the name of a run")
        folder = self.root / name
        if not (folder / "manifest.json").exists():
            raise UserError(f"there is no run {name} under {self.root}")
        return folder

    def _line(self, summary: RunSummary, until: float) -> dict[str, Any]:
        """until: of the monotonic clock; after it, curves that are not known yet are left for the next look."""
        state = _state(summary.path)
        key = summary.path.name
        # The old curve stays while there is no time to read the new one.
        known = self._known.get(key, (None, NO_CURVE))
        if known[0] != state and time.monotonic() < until:
            self._known[key] = known = (state, _curve_of(summary.path))
        line = {**asdict(summary), **known[1], "name": key, "path": str(summary.path), "silent": None}
        if summary.status == "running":
            line["silent"] = _silent(summary.path)
        return _json(line)


def _moment(run: RunFolder) -> dict[str, Any]:
    # asdict copies every number of a list, which for thousands of losses takes longer than reading them.
    snapshot = asdict(replace(read_snapshot(run), losses=[]))  # a page draws its curves from others
    del snapshot["losses"]
    return {"name": run.path.name, "path": str(run.path), "at": time.time(), "made": stamp_of(run.path), **snapshot}


def _state(folder: Path) -> Any:
    """Return what changes when a run's metrics do."""
    found = []
    # New points stand in the WAL for minutes before the database itself changes.
    for name in ("metrics.sqlite", "metrics.sqlite-wal"):
        try:
            status = (folder / name).stat()
            found.append((status.st_size, status.st_mtime_ns))
        except OSError:
            found.append((0, 0))
    return tuple(found)


def _curve_of(folder: Path) -> dict[str, Any]:
    try:
        with MetricsReader(folder / "metrics.sqlite") as metrics:
            progress = metrics.rows(
                "SELECT value, time FROM points WHERE series = (SELECT id FROM series WHERE name = 'progress')"
                " ORDER BY step DESC LIMIT 1"
            )
            # Of reinforcement learning it is the reward that tells.
            spark = sampled(metrics, "loss", SPARK_POINTS) or sampled(metrics, "reward", SPARK_POINTS)
    except UserError:
        return NO_CURVE
    value, when = progress[0] if progress else (None, None)
    return {"spark": spark, "progress": value, "last": when}


def _silent(folder: Path) -> float | None:
    try:
        with MetricsReader(folder / "metrics.sqlite") as metrics:
            found = silence(folder, metrics)
    except UserError:
        found = silence(folder, None)
    return found.seconds if found else None


def _event(event: Any) -> dict[str, Any]:
    return {
        "time": event.time, "step": event.step, "kind": event.kind, "level": event.level, "message": event.message,
        "advice": str(event.data.get("advice") or ""),
    }  # fmt: skip


def _json(value: dict[str, Any]) -> dict[str, Any]:
    """Numbers that are not finite become None: a curve has a hole there."""
    found = finite(value)
    assert isinstance(found, dict)
    return found
