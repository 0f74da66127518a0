"""Times calls on a device: random order of inputs at different addresses, cold or warm L2, a probe between. Imports torch.

Most calls are queued behind a pause of the GPU, by whose end the host has launched all that they do: what events then say is the
GPU's time alone, whatever the host and its neighbours do. Some, nobody knows which, come to an idle GPU: there the wall clock
sees all that a call does, on whatever stream, and events have to agree with it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from windtunnel.verify.kernel.timing import LEAST, LEAST_PLAIN, QUEUED_A_PLAIN, median_with_interval

FLUSH_BYTES = 256 << 20  # more than any L2
PROBE_BYTES = 32 << 20
WARM_UPS = (3, 9)  # at least, at most: nobody can count them
LEAST_CALLS = 20
NARROW = 0.02  # the interval's width in relation to the median, at which it is known
MOST_SECONDS = 1.0  # then ten calls suffice: all others wait meanwhile
PAUSE_SECONDS = (50e-6, 5e-3)  # at least, at most
PAUSE_OVER_HOST = 1.5
PROBE_PAUSE_SECONDS = 300e-6  # for one copy, whatever else the host does
CYCLES_A_SECOND = 2e9  # of the fastest clock; with a slower one a pause is longer


@dataclass(frozen=True)
class Call:
    """Seconds of one call: host until it has launched all, wall until all of the device is idle again, event on the device."""

    host: float
    wall: float
    event: float


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
    """Seconds of single calls, and of a probe copy before each tenth: what `timing.Samples` holds.

    About `calls` are queued, and half as many plain. It ends early, when the median of those queued is known well enough or the
    time for it is over, never before ten. sets: arguments; each call takes one at random. before(number of the set),
    after(number, result): untimed.
    """
    bench, result = _Bench(device, cold=cold), list[Any]([None])

    def _called(arguments: Sequence[Any]) -> None:
        result[0] = call(*arguments)

    began = time.perf_counter()
    for number, (counted, queued) in enumerate(_kinds(calls, dice)):
        which, spent = dice.randrange(len(sets)), time.perf_counter() - began
        if counted < 0 and bench.hosts and spent > MOST_SECONDS:
            continue
        if counted == 0:
            began = time.perf_counter()  # what was chosen or compiled before is no part of it
        if counted > 0 and bench.enough(spent):
            break
        if before is not None:
            before(which)
        if cold:
            bench.wipe(number % 251)
        if counted >= 0 and counted % 10 == 0:
            bench.probe()
        arguments = sets[which]
        bench.take(lambda: _called(arguments), queued=queued, counted=counted >= 0)  # noqa: B023 (called at once)
        if after is not None:
            after(which, result[0])
    bench.probe()
    return bench.found


class _Bench:
    """What lies on the device beside the calls, and what was found. hosts: seconds of launching, of plain calls."""

    def __init__(self, device: str, *, cold: bool) -> None:
        self.cuda = device == "cuda"
        self.flush = torch.empty(FLUSH_BYTES if self.cuda and cold else 1 << 16, dtype=torch.uint8, device=device)
        size = PROBE_BYTES if self.cuda else 1 << 16
        self.source, self.target = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))
        self.found: dict[str, list[float]] = {name: [] for name in ("events", "plain", "wall", "host", "probe")}
        self.hosts: list[float] = []

    def wipe(self, value: int) -> None:
        """Writes over all that lies here, more than any L2: a kernel that strays finds nothing that an earlier one left."""
        for memory in (self.source, self.target, self.flush):
            memory.fill_(value)

    def probe(self) -> None:
        """The copy of fixed size."""
        self.found["probe"].append(timed(lambda: self.target.copy_(self.source), self.cuda, PROBE_PAUSE_SECONDS).event)

    def take(self, work: Callable[[], None], *, queued: bool, counted: bool) -> None:
        """One call, and what it took."""
        taken = timed(work, self.cuda, self._pause() if queued else 0.0)
        if not queued:  # one that was queued may have had to wait, and its pause would be in it
            self.hosts.append(taken.host)
        if counted and queued:
            self.found["events"].append(taken.event)
        elif counted:
            for name, seconds in (("plain", taken.event), ("wall", taken.wall), ("host", taken.host)):
                self.found[name].append(seconds)

    def enough(self, spent: float) -> bool:
        """Whether more calls would say little more, or take too long."""
        events = self.found["events"]
        if len(events) < LEAST or len(self.found["plain"]) < LEAST_PLAIN:
            return False
        timing = median_with_interval(events)
        narrow = len(events) >= LEAST_CALLS and timing.high - timing.low <= NARROW * timing.median
        return narrow or spent > MOST_SECONDS

    def _pause(self) -> float:
        """Seconds in which the host has surely launched a call, by those before."""
        least, most = PAUSE_SECONDS
        return min(most, least + PAUSE_OVER_HOST * median_with_interval(self.hosts).median)


def timed(work: Callable[[], Any], cuda: bool, pause: float = 0.0) -> Call:
    """What one work takes. pause: seconds, about, that the device is kept waiting first, while the host launches the work.

    Without a GPU there is one clock and no queue.
    """
    if not cuda:
        start = time.perf_counter()
        work()
        wall = time.perf_counter() - start
        return Call(wall, wall, wall)
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    if pause:
        torch.cuda._sleep(int(pause * CYCLES_A_SECOND))
    start = time.perf_counter()
    first.record()
    work()
    last.record()
    host = time.perf_counter() - start
    torch.cuda.synchronize()  # of every stream, so that work on another one is waited for too
    return Call(host, time.perf_counter() - start, first.elapsed_time(last) / 1e3)


def _kinds(calls: int, dice: random.Random) -> Iterator[tuple[int, bool]]:
    """(number, queued) of each call; warm-ups have negative numbers and are plain. Of each group one is plain, which is drawn."""
    warm_ups = dice.randint(*WARM_UPS)
    yield from ((number - warm_ups, False) for number in range(warm_ups))
    size = QUEUED_A_PLAIN + 1
    for number in range(0, -(-calls // QUEUED_A_PLAIN) * size, size):
        plain = dice.randrange(size)
        yield from ((number + at, at != plain) for at in range(size))
