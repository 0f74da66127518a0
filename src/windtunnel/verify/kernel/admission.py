"""Who may be on a GPU beside whom, seen from the parent.

Memory is handed out in the order of asking, and what is waited for is noted apart from what is done.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from windtunnel.verify.kernel.gpu_seen import seen_gpu
from windtunnel.verify.sandbox import Outcome, SandboxJob

# What a candidate takes of the GPU's memory, in the buffers of its largest plan, which hold inputs, parameters, outputs and what
# lies between. In the process of the runs these are there once; inputs up to three times more while new ones are drawn (the last
# case's, the new ones in float32 and then in the case's dtype), which are at most as large; what may not change is there once
# more during a call. For the clock three sets of inputs and of what they gave are kept beside.
RUN_BUFFERS = 4
TIMED_BUFFERS = 6
# In the judge's there are inputs and outputs, the latter in float64 too, and what the reference computes on its way. What it is
# asked in float64 takes twice as much, or four times of 16 bits; few are, and who finds no room is judged again with all of it.
JUDGE_BUFFERS = 4
SHARED = 0.6  # of the GPU's memory, for candidates that are under way at the same time
LEAST_MEMORY = 8 << 30  # of a GPU that does not say what it has


class GpuMemory:
    """A GPU's memory, which candidates under way share.

    Who does not fit in beside the others waits, and who comes later waits behind him. Safe to use from several threads.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = self._free = capacity
        self._changed = threading.Condition()
        self._queue: deque[object] = deque()

    @classmethod
    def of(cls, index: int | None) -> GpuMemory:
        """Return the part of a GPU's memory that is shared. index: of `gpu_seen.seen_gpu`, None: of none."""
        gpu = None if index is None else seen_gpu(index)
        return cls(int(SHARED * gpu.memory_bytes) if gpu and gpu.memory_bytes else LEAST_MEMORY)

    @contextlib.contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Wait until so many bytes are free, or all of them where that is more, and hold them meanwhile."""
        size, ticket = min(size, self.capacity), object()
        with self._changed:
            self._queue.append(ticket)
            try:
                self._changed.wait_for(lambda: self._queue[0] is ticket and self._free >= size)
                self._free -= size
            finally:
                self._queue.remove(ticket)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._free += size
                self._changed.notify_all()


@dataclass
class Waits:
    """Seconds that one candidate waited on its way through the GPU's stages.

    They are for a 'worker', for 'memory', and for its 'turn', which who is timed takes alone.
    """

    memory: GpuMemory
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, what: str, seconds: float) -> None:
        """Note a wait."""
        self.seconds[what] = self.seconds.get(what, 0.0) + seconds

    def add_turn(self, outcome: Outcome) -> None:
        """Note what a child says that it waited for its turn, or its turns."""
        said = outcome.message.get("turn")
        self.add("turn", said if isinstance(said, float) and 0 <= said <= outcome.wall_seconds else 0.0)

    def admitted(self, job: SandboxJob, size: int) -> SandboxJob:
        """Return a job that its runner begins once a worker is free and then so many bytes of the GPU are."""
        asked = time.monotonic()

        @contextlib.contextmanager
        def within() -> Iterator[None]:
            free = time.monotonic()
            self.add("worker", free - asked)
            with self.memory.holding(size):
                self.add("memory", time.monotonic() - free)
                yield

        return replace(job, within=within)
