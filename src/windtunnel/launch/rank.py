"""One rank of a job, as whoever watches it sees it; and the ranks of this machine, a process each."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Protocol

from windtunnel.run import HEARTBEATS, Beat, process_state, read_beat

from .processes import share_threads
from .ready import ReadyRanks
from .stacks import Stack, ask

STARTING_SECONDS = 600.0
"""Until a rank's first sign of life: it imports, and connects to the others."""


class Rank(Protocol):
    """A rank, wherever it runs.

    Attributes:
        number: of the rank. began: when (monotonic) it was started. stopped_since: since when it stands still, if it does.
    """

    number: int
    began: float
    stopped_since: float | None

    @property
    def code(self) -> int | None:
        """Return its exit code; None: it runs."""

    def send(self, number: int) -> None:
        """Send it a signal, unless it is gone."""

    def beat(self) -> Beat | None:
        """Return its last sign of life."""

    def told(self) -> dict[str, Any] | None:
        """Return what it said about its end: error, fix, exit_code, what was kept, and whether it ended for want of another."""

    def state(self) -> str:
        """Return the letter of its process's state; see `process_state`."""

    def end(self) -> None:
        """End it, and read what it still has printed."""

    @classmethod
    def stacks(cls, ranks: Sequence[Any], stopped: int | None = None) -> dict[int, Stack]:
        """Return the stacks of those ranks that answer. stopped: the number of one that is stopped, which is continued for it."""


class LocalRank:
    """A process of this machine; see `Rank`.

    Args:
        process: of the rank. beats: folder of the signs of life of all ranks.
        output: gets what it prints, in place of standard output.
    """

    def __init__(self, number: int, process: subprocess.Popen[str], beats: Path, output: IO[str] | None) -> None:
        self.number, self.began, self.stopped_since = number, time.monotonic(), None
        self.process, self._beats, self._output = process, beats, output
        self._readers = [
            # One thread a stream: a pipe that nobody reads stops the rank that fills it.
            threading.Thread(target=self._read, args=(stream, error), daemon=True)
            for stream, error in ((self.process.stdout, False), (self.process.stderr, True))
        ]
        for reader in self._readers:
            reader.start()

    stopped_since: float | None

    @property
    def code(self) -> int | None:
        """See `Rank`."""
        return self.process.poll()

    def send(self, number: int) -> None:
        """See `Rank`."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def beat(self) -> Beat | None:
        """See `Rank`."""
        return read_beat(self._beats, self.number)

    def told(self) -> dict[str, Any] | None:
        """See `Rank`."""
        return told_in(self._beats, self.number)

    def state(self) -> str:
        """See `Rank`."""
        return process_state(self.process.pid)

    def end(self) -> None:
        """See `Rank`."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        # What is still in the pipes is mostly why the rank ended.
        for reader in self._readers:
            reader.join(1.0)

    @classmethod
    def stacks(cls, ranks: Sequence[LocalRank], stopped: int | None = None) -> dict[int, Stack]:
        """See `Rank`."""
        return ask(ranks[0]._beats, {rank.number: rank.process.pid for rank in ranks}, stopped) if ranks else {}

    def _read(self, stream: IO[str], error: bool) -> None:
        for line in stream:
            pass_on(self.number, line, error, self._output)


def pass_on(number: int, line: str, error: bool, output: IO[str] | None) -> None:
    """Pass on a line that a rank printed: rank 0's as it is, the others' with their number."""
    before = "" if number == 0 else f"[rank {number}] "
    # Standard output is rank 0's alone: programs read it.
    to: Any = output or (sys.stderr if error or before else sys.stdout)
    with contextlib.suppress(OSError, ValueError):
        print(before + line, end="", file=to, flush=True)


def told_in(folder: Path, number: int) -> dict[str, Any] | None:
    """Return what a rank left in a folder about its end; see `Rank.told`."""
    with contextlib.suppress(OSError, ValueError):
        told: dict[str, Any] = json.loads((folder / f"{number}.json").read_text(encoding="utf-8"))
        return told
    return None


def rank_command(folder: Path, as_json: bool) -> list[str]:
    """Return what starts a rank of a run."""
    return [sys.executable, "-m", "windtunnel.launch.worker", str(folder), *(["--json"] if as_json else [])]


def start_here(
    folder: Path, ranks: int, port: int, beats: Path, as_json: bool, output: IO[str] | None, ready: ReadyRanks | None = None
) -> list[LocalRank]:
    """Start the ranks of a run on this machine.

    Args:
        folder: of the run.
        ranks: how many.
        port: of the store by which they find each other.
        beats: folder of their signs of life.
        as_json: rank 0 tells progress as JSON.
        output: gets what they print, in place of standard output.
        ready: processes that wait for such work; those for which there is none are ended.
    """
    # Before the environment's own, which wins.
    shared, command = {**share_threads(ranks), **os.environ, HEARTBEATS: str(beats)}, rank_command(folder, as_json)
    # Those that wait for no rank end here: they hold memory on GPUs that the others need.
    with ready or ReadyRanks(0) as waiting:
        started = [waiting.take(command, {**shared, **rank_environment(number, ranks, port)}) for number in range(ranks)]
    return [LocalRank(number, process, beats, output) for number, process in enumerate(started)]


def open_store() -> Any:
    """Return a store by which ranks find each other, for as long as it is kept; `port` names it.

    As torchrun does it: the store outlives every rank, and its port is one that is free.
    """
    import torch.distributed as dist

    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def rank_environment(number: int, ranks: int, port: int) -> dict[str, str]:
    """Return what tells a process which of the ranks on this machine it is; `port`: of their store."""
    return {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "RANK": str(number), "LOCAL_RANK": str(number),
    }  # fmt: skip
