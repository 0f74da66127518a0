"""Commands of windtunnel run as processes of their own: followed, frozen, killed, and never left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from windtunnel.check import CheckFailed
from windtunnel.launch import Forker, Process, stop_with_parent
from windtunnel.plan import CALIBRATION, CALIBRATION_OFF
from windtunnel.run import STARTED

SILENCE_SECONDS = 300.0
"""A process that writes nothing for so long hangs."""
TICK = 0.1


class Child:
    """A process with its log; leaving the `with` block kills what is left of it and its children.

    Args:
        arguments: what follows the interpreter, such as ['-m', 'windtunnel', 'train', ...].
        log: gets standard output and standard error.
        forker: starts it, where it is a module; None: the interpreter does.
    """

    def __init__(
        self, arguments: Sequence[str], log: Path, environment: dict[str, str] | None = None, forker: Forker | None = None
    ) -> None:
        self.log = log
        own = {name: value for name, value in os.environ.items() if name != STARTED}
        # A scale model tells nothing about the speed of a GPU: its runs must not correct plans.
        own |= {"PYTHONUNBUFFERED": "1", CALIBRATION: CALIBRATION_OFF, **(environment or {})}
        self._file: IO[bytes] = open(log, "ab")  # noqa: SIM115 - closed with the process
        self._read = log.stat().st_size
        self._rest = b""
        self._heard = time.monotonic()
        self.process: Process
        if forker is not None:
            self.process = forker.start(arguments, own, log)
            return
        self.process = subprocess.Popen(
            [sys.executable, *arguments], stdin=subprocess.DEVNULL, stdout=self._file, stderr=subprocess.STDOUT, env=own,
            start_new_session=True, preexec_fn=stop_with_parent,
        )  # fmt: skip

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()
        self._file.close()

    @property
    def running(self) -> bool:
        """Return whether the process itself has not ended."""
        return self.process.poll() is None

    def lines(self) -> Iterator[str]:
        """Yield complete lines written since the last call. Raises CheckFailed when none came for too long."""
        with open(self.log, "rb") as file:
            file.seek(self._read)
            new = file.read()
        self._read += len(new)
        if new:
            self._heard = time.monotonic()
        elif self.running and time.monotonic() - self._heard > SILENCE_SECONDS:
            raise CheckFailed(f"no sign of life for {SILENCE_SECONDS:.0f} s; its last words: {self.last_words()}")
        # Bytes, until a line is whole: a write may end within a character.
        *whole, self._rest = (self._rest + new).split(b"\n")
        for line in whole:
            yield line.decode("utf-8", "replace")

    def moments(self) -> Iterator[dict[str, Any]]:
        """Yield JSON objects among the lines."""
        for line in self.lines():
            with contextlib.suppress(ValueError):
                value = json.loads(line)
                if isinstance(value, dict):
                    yield value

    def wait(self, each: Callable[[], None]) -> int:
        """Wait for the end and return the exit code; `each` is called several times a second meanwhile."""
        while self.running:
            each()
            time.sleep(TICK)
        each()
        return self.process.wait()

    def last_words(self, count: int = 3) -> str:
        """Return the last lines of its log that are no progress, for evidence."""
        lines = [line.strip() for line in self.log.read_text("utf-8", "replace").splitlines() if line.strip()]
        # Snapshots are JSON that begins with the step.
        spoken = [line for line in lines if not line.startswith('{"step"')]
        return " | ".join(line[:200] for line in spoken[-count:]) or "none"

    def freeze(self) -> None:
        """Stop the process and its children where they are; return when they stand still."""
        import psutil

        for member in self._tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                member.suspend()
        # SIGSTOP takes effect a moment after it is sent: a thread in a system call may still finish a write.
        for member in self._tree():
            _await_stop(member)

    def thaw(self) -> None:
        """Let a frozen process go on."""
        import psutil

        for member in self._tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                member.resume()

    def kill(self) -> None:
        """Send SIGKILL to the process and all its children, and wait for their end."""
        import psutil

        tree = self._tree()
        for member in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        # Until they are gone: what they still hold, a lock or a port, the next process wants.
        psutil.wait_procs(tree, timeout=10)
        self.process.wait()

    def terminate(self) -> None:
        """Ask the process to stop, as a scheduler would."""
        if self.running:
            self.process.send_signal(signal.SIGTERM)

    def memory_gib(self) -> float:
        """Return the resident memory of the process and its children, in GiB."""
        import psutil

        total = 0
        for member in self._tree():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                total += member.memory_info().rss
        return total / 2**30

    def _tree(self) -> list[Any]:
        return process_tree(self.process.pid)


def process_tree(pid: int) -> list[Any]:
    """Return a process and all that it has started, as psutil has them; none where it is gone."""
    import psutil

    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _await_stop(member: Any) -> None:
    import psutil

    limit = time.monotonic() + 2.0
    with contextlib.suppress(psutil.NoSuchProcess):
        while member.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE) and time.monotonic() < limit:
            time.sleep(0.0005)
