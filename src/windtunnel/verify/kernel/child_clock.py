"""Times calls on a device: random order of inputs at different addresses, cold or warm L2, a probe between. Imports torch."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from windtunnel.verify.kernel.timing import median_with_interval

FLUSH_BYTES = 256 << 20  # more than any L2
PROBE_BYTES = 32 << 20
WARM_UPS = (3, 12)  # at least, at most: nobody can count them
LEAST_CALLS = 30
NARROW = 0.01  # the interval's width in relation to the median, at which it is known
MOST_SECONDS = 1.0  # then ten calls suffice: all others wait meanwhile


def measure(
    call: Callable[..., Any],
    sets: Sequence[Sequence[Any]],
    calls: int,
    *,
    cold: bool,
    dice: random.Random,
    device: str,
    before: Callable[[int], None] | None = None,
    after: Callable[[int, Any], None] | None = None,
) -> dict[str, list[float]]:
    """Seconds of at most `calls` single calls by events and by the wall clock, and of a probe copy before each tenth.

    It ends early, when the median is known well enough or the time for it is over, never before ten.
    sets: arguments; each call takes one at random. before(number of the set), after(number, result): untimed.
    """
    cuda = device == "cuda"
    flush = torch.empty(FLUSH_BYTES if cuda else 1 << 16, dtype=torch.uint8, device=device)
    source, target = (torch.zeros(PROBE_BYTES if cuda else 1 << 16, dtype=torch.uint8, device=device) for _ in range(2))
    found: dict[str, list[float]] = {"events": [], "wall": [], "probe": []}
    began, warm_ups = 0.0, dice.randint(*WARM_UPS)
    for number in range(warm_ups + calls):
        which, counted = dice.randrange(len(sets)), number - warm_ups
        if counted == 0:
            began = time.perf_counter()  # what was chosen or compiled before is no part of it
        if counted > 0 and counted % 10 == 0 and _enough(found["events"], time.perf_counter() - began):
            break
        if before is not None:
            before(which)
        if cold:
            flush.fill_(number % 251)
        if counted >= 0 and counted % 10 == 0:
            found["probe"].append(timed(lambda: target.copy_(source), cuda)[1])
        result, event, wall = _called(call, sets[which], cuda)
        if counted >= 0:
            found["events"].append(event)
            found["wall"].append(wall)
        if after is not None:
            after(which, result)
    found["probe"].append(timed(lambda: target.copy_(source), cuda)[1])
    return found


def _enough(events: list[float], spent: float) -> bool:
    """Whether more calls would say little more, or take too long."""
    timing = median_with_interval(events)
    narrow = len(events) >= LEAST_CALLS and timing.high - timing.low <= NARROW * timing.median
    return narrow or spent > MOST_SECONDS


def _called(call: Callable[..., Any], arguments: Sequence[Any], cuda: bool) -> tuple[Any, float, float]:
    result: list[Any] = []
    wall, event = timed(lambda: result.append(call(*arguments)), cuda)
    return result[0], event, wall


def timed(work: Callable[[], Any], cuda: bool) -> tuple[float, float]:
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
