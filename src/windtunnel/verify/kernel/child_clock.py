"""Times calls on a device: random order of inputs at different addresses, cold or warm L2, a probe between. Imports torch."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

FLUSH_BYTES = 256 << 20  # more than any L2
PROBE_BYTES = 32 << 20
WARM_UPS = (3, 12)  # at least, at most: nobody can count them


def measure(
    call: Callable[..., Any],
    sets: Sequence[Sequence[Any]],
    calls: int,
    *,
    cold: bool,
    dice: random.Random,
    device: str,
    after: Callable[[int, Any], None] | None = None,
) -> dict[str, list[float]]:
    """Seconds of `calls` single calls by events and by the wall clock, and of a probe copy before each tenth.

    sets: arguments; each call takes one at random. after(number of the set, result): looks at every result, untimed.
    """
    cuda = device == "cuda"
    flush = torch.empty(FLUSH_BYTES if cuda else 1 << 16, dtype=torch.uint8, device=device)
    source, target = (torch.zeros(PROBE_BYTES if cuda else 1 << 16, dtype=torch.uint8, device=device) for _ in range(2))
    found: dict[str, list[float]] = {"events": [], "wall": [], "probe": []}
    total = dice.randint(*WARM_UPS) + calls
    for number in range(total):
        which = dice.randrange(len(sets))
        if cold:
            flush.fill_(number % 251)
        counted = number >= total - calls
        if (counted and number % 10 == 0) or number == total - 1:
            found["probe"].append(_timed(lambda: target.copy_(source), cuda)[1])
        result, event, wall = _called(call, sets[which], cuda)
        if counted:
            found["events"].append(event)
            found["wall"].append(wall)
        if after is not None:
            after(which, result)
    return found


def _called(call: Callable[..., Any], arguments: Sequence[Any], cuda: bool) -> tuple[Any, float, float]:
    result: list[Any] = []
    wall, event = _timed(lambda: result.append(call(*arguments)), cuda)
    return result[0], event, wall


def _timed(work: Callable[[], Any], cuda: bool) -> tuple[float, float]:
    """Seconds by the wall clock, everything on the device included, and by events; without a GPU the wall clock twice."""
    if not cuda:
        start = time.perf_counter()
        work()
        wall = time.perf_counter() - start
        return wall, wall
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start = time.perf_counter()
    first.record()
    work()
    last.record()
    torch.cuda.synchronize()  # of every stream, so that work on another one is waited for too
    return time.perf_counter() - start, first.elapsed_time(last) / 1e3
