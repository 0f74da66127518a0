"""The least time that a GPU needs for a task: whoever claims less did not do the work.

Every output byte must be written, every floating input byte be read where no index selects among them, and the products of
the reference be multiplied, but for those by zero. Numbers are the vendors' peaks, so that nothing honest is below.
"""

from __future__ import annotations

from dataclasses import dataclass

MARGIN = 0.8  # clocks and data sheets are not exact


@dataclass(frozen=True)
class Peak:
    """bytes_per_second: memory. flops: dense tensor-core FLOP/s by dtype; float32 is that of TF32."""

    bytes_per_second: float
    flops: dict[str, float]


# NVIDIA's data sheets (H100 SXM, H200, A100 80GB SXM, B200 of 2024), without sparsity.
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
