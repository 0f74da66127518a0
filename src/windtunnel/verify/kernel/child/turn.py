"""Waiting for a turn on the GPU, in a trusted child; the parent sees from the phase that it waits, and counts that by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from windtunnel.verify.kernel.gpu_lock import GpuLock
from windtunnel.verify.sandbox import note

WAITING, FULL, TIMING = "waiting", "full", "timing"


class Turns:
    """A child's turns. lock: None where nothing is shared. waited: seconds, of all of them."""

    def __init__(self, lock: GpuLock | None) -> None:
        self.lock, self.waited = lock, 0.0

    @contextmanager
    def waiting_for(self, *, alone: bool = False, then: str) -> Iterator[None]:
        """Take a turn, then note the phase."""
        if self.lock is None:
            note(then)
            yield
            return
        note(WAITING)
        began = time.monotonic()
        with self.lock.alone() if alone else self.lock.shared():
            self.waited += time.monotonic() - began
            note(then)
            yield
