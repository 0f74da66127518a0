"""What is believed of measured times, seen from the parent.

The clock is the judge's, and so is the stream; but a kernel may skip work without being caught by values. So no call may beat the
roofline. The result is a median with an interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from windtunnel.verify.kernel.roofline import Work, floor_seconds

LEAST = 10  # calls
Z = 1.96  # 95 %


@dataclass(frozen=True)
class Samples:
    """Seconds of single calls by CUDA events, launched while the GPU was kept waiting: the GPU's time alone.

    Attributes:
        probe: of a copy of fixed size, run between the calls: how fast the GPU was meanwhile.
    """

    events: Sequence[float]
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
    """Return the median and the order statistics that bound it with 95 %, whatever the distribution."""
    ordered = sorted(seconds)
    count = len(ordered)
    assert count, "no samples"
    half = Z * math.sqrt(count) / 2
    low = max(0, math.floor(count / 2 - half))
    high = min(count - 1, math.ceil(count / 2 + half))
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    return Timing(middle, ordered[low], ordered[high], count)


def read_samples(value: object) -> Samples | None:
    """Return samples from a child's reply, None unless they are positive finite numbers, and enough of them."""
    if not isinstance(value, Mapping):
        return None
    lists = {}
    for name in (entry.name for entry in fields(Samples)):
        numbers = value.get(name)
        if not isinstance(numbers, list) or not all(isinstance(n, float) and 0 < n < math.inf for n in numbers):
            return None
        lists[name] = numbers
    found = Samples(**lists)
    return found if len(found.events) >= LEAST and found.probe else None


def doubt(samples: Samples, work: Work, gpu: str) -> Doubt | None:
    """Return why these times cannot be, or None."""
    event, floor = median_with_interval(samples.events).median, floor_seconds(work, gpu)
    if event >= floor:
        return None
    return Doubt(
        "impossible-speed",
        f"{event * 1e6:.2f} us a call is below the least possible {floor * 1e6:.2f} us: not all work was done.",
        {"events": event, "floor": floor},
    )


def speedup(candidate: Samples, baseline: Samples) -> float:
    """Return how many times faster than the baseline, both put in relation to the copy that ran between their calls."""
    ours = median_with_interval(candidate.events).median / median_with_interval(candidate.probe).median
    theirs = median_with_interval(baseline.events).median / median_with_interval(baseline.probe).median
    return theirs / ours
