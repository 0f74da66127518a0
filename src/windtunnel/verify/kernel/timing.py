"""What is believed of times that a candidate's process measured, seen from the parent.

The clock runs in the candidate's CUDA context, so no single number is trusted: events must agree with the wall clock, a call
behind other work with one on an idle GPU, no call may beat the roofline, and the parent's own clock bounds the sum. The result
is a median with an interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from windtunnel.verify.kernel.roofline import Work, floor_seconds

LEAST = 10  # queued calls
QUEUED_A_PLAIN = 2
LEAST_PLAIN = LEAST // QUEUED_A_PLAIN
APART = 0.35  # relative, between clocks
LAUNCH_SECONDS = 60e-6  # beside that: the host's work around one call, and the GPU's between two kernels
Z = 1.96  # 95 %


@dataclass(frozen=True)
class Samples:
    """Seconds of single calls. events: by CUDA events, launched while the GPU was kept waiting: the GPU's time alone.

    plain, wall, host: of other calls, to an idle GPU: by events, by the host's clock with a synchronisation, and how long the
    host took to launch them. probe: a copy of fixed size, run between the calls: how fast the GPU was meanwhile.
    """

    events: Sequence[float]
    plain: Sequence[float]
    wall: Sequence[float]
    host: Sequence[float]
    probe: Sequence[float]


@dataclass(frozen=True)
class Timing:
    """Seconds: the median of single calls with its 95 % interval."""

    median: float
    low: float
    high: float
    count: int


@dataclass(frozen=True)
class Doubt:
    """Why times are not believed."""

    reason: str
    message: str
    evidence: Mapping[str, float] = field(default_factory=dict)


def median_with_interval(seconds: Sequence[float]) -> Timing:
    """The median and the order statistics that bound it with 95 %, whatever the distribution."""
    ordered = sorted(seconds)
    count = len(ordered)
    assert count, "no samples"
    half = Z * math.sqrt(count) / 2
    low = max(0, math.floor(count / 2 - half))
    high = min(count - 1, math.ceil(count / 2 + half))
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    return Timing(middle, ordered[low], ordered[high], count)


def read_samples(value: object) -> Samples | None:
    """Samples from a child's reply, None unless they are positive finite numbers, and enough of them."""
    if not isinstance(value, Mapping):
        return None
    lists = {}
    for name in (entry.name for entry in fields(Samples)):
        numbers = value.get(name)
        if not isinstance(numbers, list) or not all(isinstance(n, float) and 0 < n < math.inf for n in numbers):
            return None
        lists[name] = numbers
    found = Samples(**lists)
    paired = len(found.plain) == len(found.wall) == len(found.host) >= LEAST_PLAIN
    return found if paired and len(found.events) >= LEAST and found.probe else None


def doubt(samples: Samples, work: Work, gpu: str, parent_seconds: float) -> Doubt | None:
    """Why these times cannot be, or None. parent_seconds: how long the parent saw the child live."""
    event, plain, wall = (median_with_interval(seconds).median for seconds in (samples.events, samples.plain, samples.wall))
    most = wall * (1 + APART)
    said = plain if event <= most else event
    if said > most or is_late(wall, said):
        return Doubt(
            "clock-disagrees",
            f"CUDA events say {said * 1e6:.1f} us a call, the wall clock {wall * 1e6:.1f} us: work hides from one of them.",
            {"events": said, "wall": wall},
        )
    rest = _median_beyond(samples.plain, samples.host)
    if is_late(rest, event):
        return Doubt(
            "clock-disagrees",
            f"on an idle GPU a call goes on for {rest * 1e6:.1f} us after the host has launched it, and behind other work it "
            f"takes {event * 1e6:.1f} us: part of it runs beside that work.",
            {"events": event, "wall": rest},
        )
    if sum(samples.wall) + sum(samples.events) > parent_seconds:
        return Doubt("clock-disagrees", "the times add up to more than the process lived.")
    floor, least = floor_seconds(work, gpu), min(event, plain)
    if least < floor:
        return Doubt(
            "impossible-speed",
            f"{least * 1e6:.2f} us a call is below the least possible {floor * 1e6:.2f} us: not all work was done.",
        )
    return None


def _median_beyond(longer: Sequence[float], shorter: Sequence[float]) -> float:
    """By how much the one is longer than the other, call by call."""
    differences = sorted(first - second for first, second in zip(longer, shorter, strict=True))
    return differences[len(differences) // 2]


def is_late(wall: float, event: float) -> bool:
    """Whether one clock saw more of a call, in seconds, than the other and the host's work around it explain."""
    return wall > event * (1 + APART) + LAUNCH_SECONDS


def speedup(candidate: Samples, baseline: Samples) -> float:
    """How many times faster than the baseline, both put in relation to the copy that ran between their calls."""
    ours = median_with_interval(candidate.events).median / median_with_interval(candidate.probe).median
    theirs = median_with_interval(baseline.events).median / median_with_interval(baseline.probe).median
    return theirs / ours
