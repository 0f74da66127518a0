"""Times calls on a device: random order of inputs, cold or warm L2, a probe between. Imports torch.

Each call is queued behind a pause of the GPU, by whose end the host has launched all that it does: what events then say is the
GPU's time alone, whatever the host and its neighbours do. All that a plan does is on the one stream that they are on.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import torch

from windtunnel.verify.kernel.timing import LEAST, median_with_interval

FLUSH_BYTES = 256 << 20  # more than any L2
PROBE_BYTES = 32 << 20
WARM_UPS = 3
LEAST_CALLS = 20
NARROW = 0.01  # the interval's width in relation to the median, at which it is known
MOST_SECONDS = 1.0  # then ten calls suffice: all others wait meanwhile
PAUSE_SECONDS = (50e-6, 20e-3)  # at least, at most
PAUSE_OVER_HOST = 1.5
PROBE_PAUSE_SECONDS = 300e-6  # for one copy, whatever else the host does
CYCLES_A_SECOND = 2e9  # of the fastest clock; with a slower one a pause is longer


def measure(
    call: Callable[[int], Any],
    sets: int,
    calls: int,
    *,
    cold: bool,
    dice: random.Random,
    device: str,
    before: Callable[[int], None] | None = None,
    after: Callable[[int, Any], None] | None = None,
) -> dict[str, list[float]]:
    """Return seconds of single calls, 'events', and of a probe copy before each tenth, 'probe'.

    It ends before `calls`, when the median is known well enough or the time for it is over, never before ten. call: of a set of
    inputs, by its number. sets: how many there are; each call takes one at random. before(set), after(set, result): untimed.
    """
    bench, result = _Bench(device, cold=cold), list[Any]([None])

    def work(which: int) -> None:
        result[0] = call(which)

    began = time.perf_counter()
    for number in range(-WARM_UPS, calls):
        which = dice.randrange(sets)
        if number == 0:
            began = time.perf_counter()  # what was chosen or compiled before is no part of it
        if bench.enough(time.perf_counter() - began):
            break
        if before is not None:
            before(which)
        if cold:
            bench.wipe(number % 251)
        if number >= 0 and number % 10 == 0:
            bench.probe()
        bench.take(lambda: work(which), counted=number >= 0)  # noqa: B023 (called at once)
        if after is not None:
            after(which, result[0])
    bench.probe()
    return bench.found


class _Bench:
    """What lies on the device beside the calls, and what was found. host: the longest launching of a call so far, in seconds."""

    def __init__(self, device: str, *, cold: bool) -> None:
        self.cuda = device == "cuda"
        self.flush = torch.empty(FLUSH_BYTES if self.cuda and cold else 1 << 16, dtype=torch.uint8, device=device)
        size = PROBE_BYTES if self.cuda else 1 << 16
        self.source, self.target = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))
        self.found: dict[str, list[float]] = {"events": [], "probe": []}
        self.host = PAUSE_SECONDS[0]

    def wipe(self, value: int) -> None:
        """Write over all that lies here, more than any L2."""
        for memory in (self.source, self.target, self.flush):
            memory.fill_(value)

    def probe(self) -> None:
        """Time the copy of fixed size, by which it is seen how fast the GPU is."""
        self.found["probe"].append(timed(lambda: self.target.copy_(self.source), self.cuda, PROBE_PAUSE_SECONDS)[0])

    def take(self, work: Callable[[], None], *, counted: bool) -> None:
        """Time one call, and keep what it took."""
        least, most = PAUSE_SECONDS
        seconds, host = timed(work, self.cuda, min(most, least + PAUSE_OVER_HOST * self.host))
        if counted:
            self.found["events"].append(seconds)
            self.host = max(self.host, host)
        else:
            self.host = host  # the first one loads and compiles

    def enough(self, spent: float) -> bool:
        """Return whether more calls would say little more, or take too long."""
        events = self.found["events"]
        if len(events) < LEAST:
            return False
        timing = median_with_interval(events)
        narrow = len(events) >= LEAST_CALLS and timing.high - timing.low <= NARROW * timing.median
        return narrow or spent > MOST_SECONDS


def timed(work: Callable[[], Any], cuda: bool, pause: float = 0.0) -> tuple[float, float]:
    """Return seconds of one work on the device, and of the host until it has launched it.

    cuda: whether there is a GPU; without one there is one clock and no queue. pause: seconds, about, that the device is kept
    waiting first.
    """
    if not cuda:
        start = time.perf_counter()
        work()
        wall = time.perf_counter() - start
        return wall, wall
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    torch.cuda._sleep(int(pause * CYCLES_A_SECOND))
    start = time.perf_counter()
    first.record()
    work()
    last.record()
    host = time.perf_counter() - start
    torch.cuda.synchronize()
    return first.elapsed_time(last) / 1e3, host
