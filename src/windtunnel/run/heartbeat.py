"""What each rank of a job does now, kept where the process that started them can see it even when a rank hangs.

A rank writes 64 bytes into a file that it has mapped into memory: no system call, so that it may happen every step.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path

FOLDER = "WINDTUNNEL_HEARTBEATS"
"""Environment: the folder in which the ranks of a job keep their heartbeats."""
WAITING = "waiting for the other ranks"
_RECORD = struct.Struct("<dq48s")


@dataclass(frozen=True)
class Beat:
    """A rank's last sign of life.

    Attributes:
        when: seconds of the machine's monotonic clock. step: steps decided so far. doing: in a few words.
    """

    when: float
    step: int
    doing: str

    @property
    def age(self) -> float:
        """Seconds since then."""
        return time.monotonic() - self.when


class Heartbeat:
    """The heartbeat of one rank; silent where the environment names no folder."""

    def __init__(self, rank: int) -> None:
        self._map: mmap.mmap | None = None
        self.step = 0
        folder = os.environ.get(FOLDER)
        if folder:
            with contextlib.suppress(OSError):
                descriptor = os.open(Path(folder) / str(rank), os.O_RDWR | os.O_CREAT)
                os.ftruncate(descriptor, _RECORD.size)
                self._map = mmap.mmap(descriptor, _RECORD.size)
                os.close(descriptor)

    def beat(self, doing: str) -> None:
        """Record what this rank begins to do."""
        if self._map is not None:
            self._map[:] = _RECORD.pack(time.monotonic(), self.step, doing.encode()[:48])


def read_beat(folder: Path, rank: int) -> Beat | None:
    """Return the last sign of life of a rank; None before the first."""
    with contextlib.suppress(OSError, struct.error):
        when, step, doing = _RECORD.unpack((folder / str(rank)).read_bytes())
        return Beat(when, step, doing.rstrip(b"\0").decode(errors="replace")) if when else None
    return None
