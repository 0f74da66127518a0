"""Waiting for a turn on the GPU, in a trusted child; the parent sees from the phase that it waits, and counts that by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from windtunnel.verify.kernel.gpu_lock import GpuLock
from windtunnel.verify.sandbox import note

WAITING, FULL, TIMING = "waiting", "full", "timing"


@contextmanager
def waiting_for(lock: GpuLock | None, *, alone: bool = False, then: str) -> Iterator[None]:
    """Take a turn, then note the phase. None: nothing is shared."""
    if lock is None:
        note(then)
        yield
        return
    note(WAITING)
    with lock.alone() if alone else lock.shared():
        note(then)
        yield
