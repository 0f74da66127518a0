"""What is believed of measured times, seen from the parent.

The clock is the judge's, and so is the stream; but a kernel may skip work without being caught by values. So no call may beat the
roofline, the least time that a GPU needs for the task: every output byte must be written, every floating input byte be read where
no index selects among them, and the products of the reference be multiplied, but for those by zero. The result is a median with
an interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

LEAST = 10  # calls
Z = 1.96  # 95 %
MARGIN = 0.8  # clocks and data sheets are not exact


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


@dataclass(frozen=True)
class Peak:
    """bytes_per_second: memory. flops: dense tensor-core FLOP/s by dtype; float32 is that of TF32."""

    bytes_per_second: float
    flops: dict[str, float]


# NVIDIA's data sheets (H100 SXM, H200, A100 80GB SXM, B200 of 2024), without sparsity: peaks, so that nothing honest is below.
PEAKS = {
    "H200": Peak(4.8e12, {"float16": 989e12, "bfloat16": 989e12, "float32": 494e12}),
    "H100": Peak(3.35e12, {"float16": 989e12, "bfloat16": 989e12, "float32": 494e12}),
    "A100": Peak(2.04e12, {"float16": 312e12, "bfloat16": 312e12, "float32": 156e12}),
    "B200": Peak(8.0e12, {"float16": 2250e12, "bfloat16": 2250e12, "float32": 1125e12}),
}


@dataclass(frozen=True)
class Work:
    """What one call must at least do. indexed: some input selects what is read, so that inputs are not counted."""

    output_bytes: int
    input_bytes: int
    flops: int
    dtype: str
    indexed: bool = False


def peak_of(gpu: str) -> Peak | None:
    """Return the peaks of a GPU by its driver's name, None where they are not known."""
    return next((peak for name, peak in PEAKS.items() if name in gpu), None)


def floor_seconds(work: Work, gpu: str) -> float:
    """Return the seconds below which a cold call is impossible; 0 for a GPU that is not known."""
    peak = peak_of(gpu)
    if peak is None:
        return 0.0
    moved = work.output_bytes + (0 if work.indexed else work.input_bytes)
    computed = work.flops / peak.flops.get(work.dtype, peak.flops["float16"])
    return MARGIN * max(moved / peak.bytes_per_second, computed)


def median_with_interval(seconds: Sequence[float]) -> Timing:
    """Return the median and the order statistics that bound it with 95 %, whatever the distribution."""
    ordered = sorted(seconds)
    count = len(ordered)
    assert count, "no samples"
    # Of a binomial: how many of the calls lie below the true median.
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
