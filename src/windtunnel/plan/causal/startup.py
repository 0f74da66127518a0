"""Seconds before the first step and after the last, by part."""

from __future__ import annotations

from windtunnel.rig import Rig

from .constants import HFConstants
from .totals import Totals
from .workload import Workload


def stored_bytes(work: Workload) -> float:
    """Bytes of the model as it is published: bf16, but for DeepSeek-V3 and its like, published in fp8."""
    return (1.03 if work.shape.family == "deepseek_v3" else 2.0) * work.shape.parameters


def startup_seconds(sums: Totals, rig: Rig, c: HFConstants, checkpoint_gib: float) -> dict[str, float]:
    """Processes, weights, compilation, and the last checkpoint."""
    work = sums.work
    parts = {
        "processes and communicators": c.process_seconds * (1 + 0.1 * (rig.nodes - 1) ** 0.5),
        "weights from disk": stored_bytes(work) / (c.load_gbs * 1e9),
        "last checkpoint": checkpoint_gib * 2**30 / (c.save_gbs * 1e9 * rig.nodes),
    }
    if work.compile:
        parts["compiling"] = c.compile_seconds * len(sums.kinds)
    return parts
