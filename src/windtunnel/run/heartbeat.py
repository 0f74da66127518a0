"""What each rank of a job does now, kept where the process that started them can see it even when a rank hangs.

A rank writes 64 bytes into a file that it has mapped into memory: no system call, so that it may happen every step.
With what it begins a rank says how long that may take, by how long the same took before.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import struct
import time
from collections import defaultdict, deque
from dataclasses import dataclass
from pathlib import Path

FOLDER = "WINDTUNNEL_HEARTBEATS"
"""Environment: the folder in which the ranks of a job keep their heartbeats."""
WAITING = "waiting for the other ranks"
KEEPING = "saving the last good state"
FIRST_SECONDS = 600.0
"""For what a rank does for the first or second time: it compiles and connects."""
LOADING_SECONDS = 3600.0
LOADING = ("preparing the data", "building the model", "loading the checkpoint", "answering")
"""What may read hundreds of GB from a slow disk, or write thousands of tokens, while its stack stays the same."""
LEAST_SECONDS = 40.0
TIMES_LONGER = 5.0
"""Whatever takes so many times as long as it ever took, and at least `LEAST_SECONDS`, is looked at."""
# The first two of anything are slower than the rest: they compile, allocate and open connections.
_UNSETTLED, _REMEMBERED = 2, 200
# When (8 bytes), how long (8), the step (8), and 40 of text: 64 together, as long as a cache line.
_RECORD = struct.Struct("<ddq40s")


@dataclass(frozen=True)
class Beat:
    """A rank's last sign of life.

    Attributes:
        when: seconds of the machine's monotonic clock. limit: seconds after which it should be looked at.
        step: steps decided so far. doing: in a few words.
    """

    when: float
    limit: float
    step: int
    doing: str

    @property
    def age(self) -> float:
        """Seconds since then."""
        return time.monotonic() - self.when

    def late(self, asked: float | None) -> bool:
        """Return whether the rank should be looked at.

        Args:
            asked: since when (monotonic) the job is asked to stop, if it is: then the first of its steps have less time too.
        """
        if self.age > self.limit:
            return True
        since = time.monotonic() - max(math.inf if asked is None else asked, self.when)
        # Of the first of its steps nobody knows how long they take: a job that is asked to stop does not wait ten minutes for
        # one.
        return self.limit in (FIRST_SECONDS, LEAST_SECONDS) and since > LEAST_SECONDS


class Heartbeat:
    """The heartbeat of one rank; silent where the environment names no folder."""

    def __init__(self, rank: int) -> None:
        self._map: mmap.mmap | None = None
        self.step, self.doing, self._since = 0, "starting", time.monotonic()
        self._times: defaultdict[str, int] = defaultdict(int)
        self._took: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_REMEMBERED))
        folder = os.environ.get(FOLDER)
        if folder:
            with contextlib.suppress(OSError):
                descriptor = os.open(Path(folder) / str(rank), os.O_RDWR | os.O_CREAT)
                # A map longer than its file kills the process that writes behind the file's end (SIGBUS).
                os.ftruncate(descriptor, _RECORD.size)
                self._map = mmap.mmap(descriptor, _RECORD.size)
                os.close(descriptor)

    def beat(self, doing: str) -> None:
        """Record what this rank begins to do, and thereby how long what it did before took."""
        if self._map is None:
            return
        now = time.monotonic()
        self._times[self.doing] += 1
        if self._times[self.doing] > _UNSETTLED:
            self._took[self.doing].append(now - self._since)
        self.doing, self._since = doing, now
        self._map[:] = _RECORD.pack(now, self.limit(doing), self.step, doing.encode()[:40])

    def limit(self, doing: str) -> float:
        """Return the seconds that something may take before somebody should look."""
        if doing == WAITING:
            return math.inf  # it is another rank that takes so long
        took = self._took[doing]
        if took:
            return max(LEAST_SECONDS, TIMES_LONGER * max(took))
        return LOADING_SECONDS if doing in LOADING else FIRST_SECONDS


def read_beat(folder: Path, rank: int) -> Beat | None:
    """Return the last sign of life of a rank; None before the first."""
    with contextlib.suppress(OSError, struct.error):
        when, limit, step, doing = _RECORD.unpack((folder / str(rank)).read_bytes())
        return Beat(when, limit, step, doing.rstrip(b"\0").decode(errors="replace")) if when else None
    return None
