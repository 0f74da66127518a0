"""Waiting for a turn on the GPU, in a child, so that the wait is on a clock of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from windtunnel.verify.kernel.gpu_lock import GpuLock, holding, in_place
from windtunnel.verify.sandbox import note

WAITING, TIMING, ASIDE = "waiting", "timing", "compile"
# The waits before the candidate is loaded: on the same clock, and none of its doing how they end.
FIRST_WAIT = "waiting: to begin"
CONTEXT = "context"  # what comes before the candidate is loaded: none of its time, and none of its doing


@contextlib.contextmanager
def waiting_for(
    turns: GpuLock | None, *, alone: bool = False, again: bool = False, then: str = "compile", phase: str = WAITING
) -> Iterator[None]:
    """In turn; while it waits the child is in `phase`, and after that in `then`. again: this candidate had one."""
    note(phase)
    with holding(turns, alone=alone, again=again):
        note(then)
        yield


@contextlib.contextmanager
def waiting_for_place(free: Sequence[int], *, then: str) -> Iterator[None]:
    """In one of these places, before the candidate is loaded; after the wait the child is in the phase `then`."""
    note(FIRST_WAIT)
    with in_place(free):
        note(then)
        yield


@contextlib.contextmanager
def stepping_aside(turns: GpuLock, *, then: str) -> Iterator[None]:
    """Out of a shared turn for work that needs no GPU; the way back may be a wait."""
    with turns.aside():
        note(ASIDE)
        try:
            yield
        finally:
            note(WAITING)
    note(then)
