"""The ranks of a job on this machine: started, listened to, told to stop, and ended together.

A rank that dies or stands still is named within a minute, with what it was doing and its stack, and takes the others with
it: they would wait for it in a collective until its time-out.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Any, NoReturn

from windtunnel.recipe import UserError
from windtunnel.run import HEARTBEATS, STOPPING, WAITING, Beat, Channel, process_state, read_beat

from .processes import CRASHED, STACK_SIGNAL, stop_with_parent

STILL_SECONDS = 20.0
"""A rank that is stopped (SIGSTOP, a debugger) for so long is given up."""
ENDING_SECONDS = 10.0
"""For the other ranks to end by themselves after one has failed."""
TICK = 0.05
LINES_KEPT = 60


class RankFailed(UserError):
    """A rank died, or hung and was ended."""

    exit_code = 1


@dataclass
class _Rank:
    number: int
    process: subprocess.Popen[str]
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=LINES_KEPT))
    readers: list[threading.Thread] = field(default_factory=list)
    stopped_since: float | None = None

    @property
    def code(self) -> int | None:
        return self.process.poll()


def run_ranks(folder: Path, ranks: int, *, as_json: bool, output: IO[str] | None) -> None:
    """Train in a process a rank; how training ended stands in the run's manifest.

    Args:
        folder: the run's. output: gets what the ranks print, in place of standard output.

    Raises:
        RankFailed: a rank died or hung; names it, what it did and where.
        UserError: a rank refused what it was to do.
    """
    store: Any = None
    if ranks > 1:
        import torch.distributed as dist

        # As torchrun does it: the store outlives every rank, and its port is one that is free.
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with tempfile.TemporaryDirectory(prefix="windtunnel-ranks-") as beats:
        job = _Job(folder, ranks, store.port if store else 0, Path(beats), as_json, output)
        with job.signals():
            try:
                job.wait()
            finally:
                job.end()


class _Job:
    def __init__(self, folder: Path, ranks: int, port: int, beats: Path, as_json: bool, output: IO[str] | None) -> None:
        self._beats, self._output, self._interrupts = beats, output, 0
        channel = Channel.inherited()
        threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // ranks))} if ranks > 1 else {}
        shared = {
            **threads, **os.environ,
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True",
            "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), HEARTBEATS: str(beats),
        }  # fmt: skip
        command = [sys.executable, "-m", "windtunnel.launch.worker", str(folder), *(["--json"] if as_json else [])]
        self._ranks: list[_Rank] = []
        for number in range(ranks):
            process = subprocess.Popen(
                command, env={**shared, "RANK": str(number), "LOCAL_RANK": str(number)}, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", bufsize=1,
                # A session of its own: Ctrl-C must reach rank 0 alone, which saves and tells the others.
                start_new_session=True, preexec_fn=stop_with_parent, pass_fds=channel.descriptors if channel else (),
            )  # fmt: skip
            rank = _Rank(number, process)
            for stream, error in ((process.stdout, False), (process.stderr, True)):
                rank.readers.append(threading.Thread(target=self._read, args=(rank, stream, error), daemon=True))
                rank.readers[-1].start()
            self._ranks.append(rank)

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Hand requests to stop to rank 0, which decides for all; a second Ctrl-C ends all at once."""

        def forward(number: int, frame: FrameType | None) -> None:
            self._interrupts += number == signal.SIGINT
            if self._interrupts > 1:
                raise KeyboardInterrupt
            with contextlib.suppress(ProcessLookupError):
                self._ranks[0].process.send_signal(signal.SIGTERM if number == signal.SIGINT else number)

        old = {number: signal.signal(number, forward) for number in STOPPING}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

    def wait(self) -> None:
        """Wait for all ranks to end well."""
        while True:
            codes = [rank.code for rank in self._ranks]
            if all(code is not None for code in codes) and not any(codes):
                return
            dead = [rank for rank, code in zip(self._ranks, codes, strict=True) if code]
            if dead:
                self._failed(dead)
            for rank in self._ranks:
                self._look_at(rank)
            time.sleep(TICK)

    def end(self) -> None:
        """End what is left of the ranks, and read what they still have printed."""
        for rank in self._ranks:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(rank.process.pid, signal.SIGKILL)
            rank.process.wait()
            for reader in rank.readers:
                reader.join(1.0)

    def _read(self, rank: _Rank, stream: IO[str], error: bool) -> None:
        """Pass on what a rank prints: rank 0's as it is, the others' with their number."""
        before = "" if rank.number == 0 else f"[rank {rank.number}] "
        for line in stream:
            rank.lines.append(line.rstrip("\n"))
            to: Any = self._output or (sys.stderr if error or before else sys.stdout)
            with contextlib.suppress(OSError, ValueError):
                print(before + line, end="", file=to, flush=True)

    def _failed(self, dead: Sequence[_Rank]) -> NoReturn:
        """Raise why a rank ended, once the others have had time to end by themselves; a refusal is passed on."""
        limit = time.monotonic() + ENDING_SECONDS
        while any(rank.code is None for rank in self._ranks) and time.monotonic() < limit:
            time.sleep(TICK)
        for rank in dead:
            told = self._told(rank)
            if told is not None and told["exit_code"] != CRASHED:
                error = UserError(told["error"], told["fix"])
                error.exit_code = told["exit_code"]
                raise error
        hung = [rank for rank in self._ranks if rank.code is None and self._doing(rank) != WAITING]
        if hung and all((rank.code or 0) > 0 and self._doing(rank) == WAITING for rank in dead):
            raise self._error(hung[0], f"hangs{self._stack(hung[0])}; the others gave up waiting for it")
        # One that was killed is the cause; of those that raised, it is rather one that computed than one that waited for it.
        first = min(dead, key=lambda rank: ((rank.code or 0) > 0, self._doing(rank) == WAITING, rank.number))
        code = first.code or 0
        told = self._told(first)
        how = f"raised {told['error']}" if told else f"ended with code {code}"
        if code < 0:
            how = f"was ended by {signal.Signals(-code).name}"
        if code == -signal.SIGKILL:
            how += " (out of memory, or somebody's kill)"
        raise self._error(first, how)

    def _look_at(self, rank: _Rank) -> None:
        """Raise RankFailed if a rank stands still."""
        if process_state(rank.process.pid) not in ("T", "t"):
            rank.stopped_since = None
            return
        rank.stopped_since = rank.stopped_since or time.monotonic()
        if time.monotonic() - rank.stopped_since > STILL_SECONDS:
            raise self._error(rank, f"stands still since {STILL_SECONDS:.0f} s: it was stopped (SIGSTOP, or a debugger)")

    def _stack(self, rank: _Rank) -> str:
        before = len(rank.lines)
        with contextlib.suppress(ProcessLookupError):
            rank.process.send_signal(STACK_SIGNAL)
        time.sleep(1.0)
        frames = [line.strip() for line in list(rank.lines)[before:] if line.lstrip().startswith("File ")]
        return f", in {frames[0]}" if frames else ""

    def _doing(self, rank: _Rank) -> str:
        beat = read_beat(self._beats, rank.number)
        return beat.doing if beat else "starting"

    def _told(self, rank: _Rank) -> dict[str, Any] | None:
        """What a rank said about its end: error, fix and exit_code."""
        with contextlib.suppress(OSError, ValueError):
            told: dict[str, Any] = json.loads((self._beats / f"{rank.number}.json").read_text(encoding="utf-8"))
            return told
        return None

    def _error(self, rank: _Rank, how: str) -> RankFailed:
        beat: Beat | None = read_beat(self._beats, rank.number)
        at = f" after step {beat.step:,}, while {beat.doing}" if beat else " while starting"
        return RankFailed(f"rank {rank.number} of {len(self._ranks)} {how}{at}")
