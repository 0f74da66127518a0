"""Stop a rented machine once nothing of ours runs there: python -m windtunnel.remote.afterwards FOLDER.

It runs on the machine itself, without a terminal, so that a lost connection or a closed laptop costs nothing. What to do is in
FOLDER/afterwards.json, which a later launch may replace; one such process is enough, and a second one ends at once. Whatever has
the folder in its command line counts as work: training, evaluation, the mirror, and a copy that is being brought home. Looking
on does not. Past the limit, which the budget sets, runs are asked to save and end, and what is left then is killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from windtunnel.run import list_runs

SETTINGS = "afterwards.json"
LOOK_SECONDS = 5.0
SAVE_SECONDS = 600.0
"""For a run that is asked to end past the limit."""
# A machine that cannot stop itself is a bill; but a wrong command does not become right.
TRIES = 5
# Verbs that only read: somebody who watches must not keep a machine up all night.
_LOOKING_ON = ("logs", "watch", "runs", "windtunnel.remote.afterwards")


@dataclass(frozen=True)
class Afterwards:
    """What is to be done.

    Attributes:
        command: of the shell, which stops the machine. minutes: for which nothing must have run.
        until: seconds since the epoch, after which nothing may run; None: no limit.
    """

    command: str
    minutes: float
    until: float | None = None

    def dump(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self))


def main() -> int:
    """Wait until nothing of ours has run for the time that was asked for, then stop the machine; returns the exit code."""
    folder = Path(sys.argv[1])
    with open(folder / "afterwards.lock", "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return 0  # the one that is there reads the new settings
        since = time.monotonic()
        while True:
            # Read each time: a later launch may have asked for something else.
            asked = Afterwards(**json.loads((folder / SETTINGS).read_text(encoding="utf-8")))
            if list(at_work(folder)):
                since = time.monotonic()
                if asked.until is not None and time.time() > asked.until:
                    _end_all(folder)
            elif time.monotonic() - since >= 60 * asked.minutes:
                return _stop_machine(asked.command)
            # Short waits are looked at more often, so that a test or a careful user with seconds is served too.
            time.sleep(min(LOOK_SECONDS, 1.0 + 60 * asked.minutes / 4))


def at_work(folder: Path) -> Iterator[int]:
    """Yield the processes that have the folder in their command line, but for those that look on."""
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            text = (place / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
            if str(folder) in text and int(place.name) != os.getpid() and not set(text.split()) & set(_LOOKING_ON):
                yield int(place.name)


def _end_all(folder: Path) -> None:
    """Ask every run to save and end; kill what is left then."""
    _say("the limit is reached, and something still runs")
    for run in list_runs(folder / "runs"):
        if run.status == "running":
            stop = [sys.executable, "-m", "windtunnel", "stop", str(run.path), "--wait", f"{SAVE_SECONDS:g}"]
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(stop, stdin=subprocess.DEVNULL, check=False, timeout=2 * SAVE_SECONDS)
    for pid in at_work(folder):
        _say(f"killing process {pid}")
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _stop_machine(command: str) -> int:
    """Run the command, several times if need be; returns its exit code."""
    code = 1
    for attempt in range(TRIES):
        if attempt:
            # A cloud's interface may be away for a while; the machine costs money until it is asked again.
            time.sleep(60.0)
        _say(f"nothing runs any more: {command}")
        code = subprocess.run(["sh", "-c", command], stdin=subprocess.DEVNULL, check=False).returncode
        if code == 0:
            break
        _say(f"it ended with exit code {code}; this machine goes on costing money")
    return code


def _say(text: str) -> None:
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
