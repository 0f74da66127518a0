"""Checkpoints and disk of a fine-tuning run."""

from __future__ import annotations

from windtunnel.recipe import Checkpoints

from .memory import static_bytes
from .startup import stored_bytes
from .totals import Totals

GIB = 2**30


def checkpoint_gib(sums: Totals) -> float:
    """What a checkpoint must hold to resume: trained weights and optimizer states; frozen weights are not saved again."""
    held = static_bytes(sums, 1)
    if sums.work.adapter is not None:
        held = {name: size for name, size in held.items() if name != "weights"}
    return sum(held.values()) / GIB


def export_gib(sums: Totals) -> float:
    """Weights alone, in bf16: those that were trained."""
    return 2.0 * sums.trained / GIB


def disk_gib(sums: Totals, policy: Checkpoints, hours: float, corpus_tokens: float | None) -> float:
    """Most that a run holds at once: the model as downloaded, two whole checkpoints while one replaces the other,
    kept ones as weights alone, tokens at 4 B each."""
    kept = policy.keep_last - 1 + policy.keep_best + (int(hours) if policy.keep_hourly else 0)
    base = stored_bytes(sums.work) / GIB
    return base + 2 * checkpoint_gib(sums) + kept * export_gib(sums) + 4.0 * (corpus_tokens or 0.0) / GIB
