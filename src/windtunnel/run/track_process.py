"""Hand a run's metrics on to trackers while it trains, from another process: one that hangs or fails costs training nothing.

The process reads the run's own database, which stays the one that counts, and remembers in track.json what it has sent.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from windtunnel.files import write_json
from windtunnel.recipe import Notify, UserError

from .ending import outcome
from .folder import read_manifest, read_own_recipe
from .identity import by_path
from .metrics import MetricsReader
from .trackers import TRACKERS, Say, Tracked, Tracker, finite_values, require_trackers

STATE = "track.json"
PERIOD = 5.0
"""Seconds between two looks."""
PATIENCE = 60.0
"""Seconds that the last look may take after training."""
# Data are prepared and kernels compiled on the same cores.
NICE = 10
_MARK = "windtunnel-says: "


@contextlib.contextmanager
def tracking(folder: Path, notify: Notify, say: Say) -> Iterator[None]:
    """Send a run's metrics to the recipe's trackers until the block is left, however it is.

    Raises:
        UserError: a tracker's package is not installed: said before training.
    """
    if not notify.track:
        yield
        return
    require_trackers(list(notify.track))
    # Trackers look at GPUs by themselves; those are the training's.
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "WANDB_SILENT": "true"}
    environment.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    process = subprocess.Popen(
        [sys.executable, "-m", "windtunnel.run.track_process", str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, env=environment, start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None
    thread = threading.Thread(target=_repeat, args=(process, say), name="track", daemon=True)
    thread.start()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            process.stdin.close()  # which tells it to finish
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            say(f"warn: trackers did not take the rest within {PATIENCE:.0f} s; {folder / STATE} says what they have")
        thread.join(5.0)


def _repeat(process: subprocess.Popen[str], say: Say) -> None:
    """Pass on what the process has to say; what packages print is nobody's."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(_MARK):
            say(json.loads(line.removeprefix(_MARK)))


def main() -> int:
    """Send until standard input ends, then once more."""
    folder = Path(sys.argv[1])
    os.nice(NICE)
    notify = read_own_recipe(folder).notify
    feeds = [_Feed(folder, name, notify.project, _say) for name in notify.track]
    finishing = False
    while not finishing:
        finishing = bool(select.select([sys.stdin], [], [], PERIOD)[0])
        for feed in feeds:
            feed.send()
    with contextlib.suppress(UserError):
        status = outcome(folder, read_manifest(folder)).status
        for feed in feeds:
            feed.end(status)
    return 0


class _Feed:
    """What one tracker has got, and sends it the rest. A failure is said once and tried again at the next look."""

    def __init__(self, folder: Path, name: str, project: str, say: Say) -> None:
        self._folder, self._name, self._project, self._say = folder, name, project, say
        state = _state(folder).get(name, {})
        self._steps: dict[str, int] = state.get("steps", {})
        self._events: int = state.get("events", 0)
        self._tracker: Tracker | None = None
        self._failed = False

    def send(self) -> None:
        """Send what is new."""
        with self._told():
            tracker = self._open()
            steps, events = self._read()
            for step in sorted(steps):
                values, when = steps[step]
                finite = finite_values(values)
                if finite:
                    tracker.log(step, finite, when)
                for name in values:
                    self._steps[name] = step
            for event in events[self._events :]:
                if event.level in ("warn", "bad"):
                    tracker.tell(event)
            self._events = len(events)
            tracker.flush()
            self._keep()
            self._failed = False

    def end(self, status: str) -> None:
        """Tell how the run ended."""
        with self._told():
            self._open().end(status)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (Exception, SystemExit) as error:  # a package may do anything, and the run is worth more
            if not self._failed:
                self._failed = True
                why = next(iter(str(error).splitlines()), "no reason given")
                self._say(f"warn: {self._name}: {type(error).__name__}: {why[:300]}; training goes on, and it is tried again")

    def _open(self) -> Tracker:
        if self._tracker is None:
            recipe = by_path(read_own_recipe(self._folder).model_dump(mode="json"))
            self._tracker = TRACKERS[self._name][1](Tracked(self._folder, self._project, recipe), self._say)
        return self._tracker

    def _read(self) -> tuple[dict[int, tuple[dict[str, float], float]], list[Any]]:
        """Return what is new: step -> (values, time); and all events."""
        path = self._folder / "metrics.sqlite"
        if not path.exists():
            return {}, []
        found: dict[int, tuple[dict[str, float], float]] = defaultdict(lambda: ({}, time.time()))
        with MetricsReader(path) as metrics:
            for name, newest in metrics.latest().items():
                since = self._steps.get(name, -1)
                # Points behind it were dropped, and new ones have their steps.
                if newest.step < since:  # the run went back: what follows is sent again
                    self._steps[name] = since = newest.step
                for point in metrics.series(name, since=since):
                    found[point.step][0][name] = point.value
                    found[point.step] = (found[point.step][0], point.time)
            return dict(found), metrics.events()

    def _keep(self) -> None:
        with contextlib.suppress(OSError):  # a full disk costs the note: points would be sent twice
            mine = {"steps": self._steps, "events": self._events}
            write_json(self._folder / STATE, {**_state(self._folder), self._name: mine}, durable=False)


def _state(folder: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        found = json.loads((folder / STATE).read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        print(f"{_MARK}{json.dumps(text)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
