"""This side of a mirror: starts the process that makes it, passes on what that says, and waits for it in the end."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windtunnel.recipe import UserError
from windtunnel.run import log_only

from .store import Place

START_SECONDS = 180.0
FINISH_SECONDS = 600.0
"""For the rest to be brought over once training has ended."""
UNREACHABLE_SECONDS = 60.0
"""The same while the store fails."""


class Following:
    """The mirror of one run while it trains.

    Args:
        run: the run's folder. url: of the mirror of all runs; this one's is below it, by its name.
        say: told what the user should know; a line each.

    Raises:
        UserError: the store cannot be used, or another machine has the run.
    """

    def __init__(self, run: Path, url: str, say: Callable[[str], None]) -> None:
        self._run, self._place, self._say = run, Place.parse(url) / run.name, say
        self._process = subprocess.Popen(
            [sys.executable, "-m", "windtunnel.mirror.process", str(run), str(self._place)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        )  # fmt: skip
        self._ready = threading.Event()
        self._refused: UserError | None = None
        self._waiting: str | None = None
        self._reader = threading.Thread(target=self._read, name="mirror", daemon=True)
        self._reader.start()
        # Ready only with the lease: another machine that still trains is found before this one begins.
        if not self._ready.wait(START_SECONDS) or self._refused is not None or self._process.poll() is not None:
            self._process.kill()
            self._process.wait()
            raise self._refused or UserError(
                f"the mirror {self._place} did not answer", "train without it: --set checkpoints.mirror=null"
            )

    def finish(self) -> None:
        """Wait until the mirror has everything, for a while; says so where it has not."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            # The same word that a trainer which was killed gives: its end of the pipe closes.
            self._process.stdin.close()
        began, said = time.monotonic(), 0.0
        while self._process.poll() is None:
            gone = time.monotonic() - began
            # A store that fails is not waited for as long as one that is only slow.
            if gone > (UNREACHABLE_SECONDS if self._waiting else FINISH_SECONDS):
                self._process.kill()
                self._process.wait()
                why = self._waiting or "it took too long"
                self._say(f"warn: the mirror {self._place} lacks the end of this run: {why}; it is whole in {self._run}")
                return
            if gone - said > 10.0:
                said = gone
                self._say(f"mirror: bringing over the rest, {gone:.0f} s so far")
            time.sleep(0.1)
        self._reader.join(10.0)
        if self._process.returncode == 0:
            self._say(f"mirror: all of this run is in {self._place}")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                self._take(json.loads(line))
            except ValueError:
                continue
        self._ready.set()

    def _take(self, message: dict[str, Any]) -> None:
        if "error" in message:
            self._refused = UserError(message["error"], message.get("fix"))
        if "error" in message or "ready" in message:
            self._ready.set()
        if "say" in message:
            self._say(message["say"])
        if "log" in message:
            log_only(self._run, message["log"])
        self._waiting = message.get("waiting", self._waiting)


def bring_run(url: str, root: Path, say: Callable[[str], None], *, to_train: bool, aside: bool = False) -> Path:
    """Bring a run from its mirror to the folder of runs here, in a process of its own; returns the run's folder.

    Args:
        url: of the run's mirror.
        root: the folder of runs here.
        say: told how far it is.
        to_train: it is gone on with here: refused while another machine trains it. Otherwise a copy to look at.
        aside: an older state of it that is here is moved out of the way.

    Raises:
        UserError: see `restore_run` and `fetch_run`.
    """
    how = "fetch" if not to_train else "again" if aside else "restore"
    return Path(str(_ask(url, root, say, how)["folder"]))


def newest_mirrored(url: str, recipe: str, say: Callable[[str], None]) -> str | None:
    """Return the address of a recipe's newest run below a mirror of runs; None where there is none. Raises StoreError."""
    found = _ask(url, Path(), say, "newest", recipe)["run"]
    return None if found is None else f"{url.rstrip('/')}/{found}"


def _ask(url: str, root: Path, say: Callable[[str], None], *how: str) -> dict[str, Any]:
    """Let a process of its own ask the store, and pass on what it says; returns what it found. Raises UserError."""
    # Here too: a wrong address is refused without a process that imports fsspec.
    Place.parse(url)
    command = [sys.executable, "-m", "windtunnel.mirror.restore", url, str(root), *how]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            told: dict[str, Any] = json.loads(line)
            if "error" in told:
                raise UserError(told["error"], told["fix"])
            if "say" not in told:
                return told
            say(told["say"])
    raise UserError(f"{url} could not be asked: the process that did it ended with code {process.returncode}")
