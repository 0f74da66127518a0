"""A process on another machine: an actor starts it there, passes on what it prints and its signs of life, and ends with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST_LINES = 10_000


@dataclass(frozen=True)
class Look:
    """A process as it is now.

    Attributes:
        code: it ended with; None: it runs. lines: it printed since the last look, each with whether to standard error.
        told: what `watch` says of it.
    """

    code: int | None
    lines: tuple[tuple[bool, str], ...]
    told: Mapping[str, Any]


class Hosted:
    """Starts a process and looks after it; an actor's class.

    Args:
        command: of the process.
        environment: over the actor's own. `folder_key` is set to a folder of this machine for what it leaves there.
        folder_key: name of a variable.
        watch: called at each look with that folder and the process's id; what it returns is passed on.
        before: called in the child before it begins.
        folder: where it begins, if there is such a folder on this machine: relative places are those of the command.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], folder_key: str,
        watch: Callable[[Path, int], Mapping[str, Any]], before: Callable[[], None], folder: Path,
    ) -> None:  # fmt: skip
        self._folder = tempfile.TemporaryDirectory(prefix="windtunnel-rank-")
        self._watch = watch
        self._lines: deque[tuple[bool, str]] = deque(maxlen=MOST_LINES)
        # By these Ray knows the actor's job: the process is none of its workers.
        own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_JOB")}
        self._process = subprocess.Popen(
            list(command), env={**own, **environment, folder_key: self._folder.name}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", bufsize=1, start_new_session=True,
            preexec_fn=before, cwd=folder if folder.is_dir() else None,
        )  # fmt: skip
        self._readers = [
            threading.Thread(target=self._read, args=(stream, error), daemon=True)
            for stream, error in ((self._process.stdout, False), (self._process.stderr, True))
        ]
        for reader in self._readers:
            reader.start()

    def look(self) -> Look:
        """Return how it is."""
        code = self._process.poll()
        # What it said last is still in the pipes when it has ended; a child of its own may keep them open for ever.
        if code is not None:
            for reader in self._readers:
                reader.join(1.0)
        lines = []
        with contextlib.suppress(IndexError):
            while True:
                lines.append(self._lines.popleft())
        return Look(code, tuple(lines), self._watch(Path(self._folder.name), self._process.pid))

    def call(self, function: Callable[[Path, int], Any]) -> Any:
        """Return what a function gives for the folder and the process's id, on this machine."""
        return function(Path(self._folder.name), self._process.pid)

    def send(self, number: int) -> None:
        """Send it a signal."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def end(self) -> None:
        """End it with all that it started in its session."""
        with contextlib.suppress(ProcessLookupError):
            # Its session: compilers and data workers would go on, and keep the GPU.
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _read(self, stream: Any, error: bool) -> None:
        for line in stream:
            # Bounded: a process that prints more than anybody fetches loses its oldest lines, and no memory.
            self._lines.append((error, line))
