"""Disk of a run: one checkpoint, and all that the retention policy keeps at its peak."""

from __future__ import annotations

from windtunnel.model import GPTShape
from windtunnel.recipe import Checkpoints

GIB = 2**30


def weights_gib(shape: GPTShape) -> float:
    """fp32 weights, 4 B a parameter."""
    return 4.0 * shape.parameters / GIB


def checkpoint_gib(shape: GPTShape, averaged: bool = False) -> float:
    """Weights and optimizer states: momentum of the matrices, two moments of the rest, all fp32.

    Args:
        averaged: averages of the weights are kept beside them.
    """
    other = shape.parameters - shape.matrix_parameters
    weights = 2 if averaged else 1
    return weights * weights_gib(shape) + (4.0 * shape.matrix_parameters + 8.0 * other) / GIB


def run_disk_gib(
    shape: GPTShape, policy: Checkpoints, hours: float, corpus_tokens: float | None, averaged: bool = False
) -> float:
    """Most that a run holds at once.

    Only the newest checkpoint keeps optimizer states, but the one before keeps its own until the
    newest is complete; then keep_last, keep_best and one an hour as weights; tokens at 2 B each.
    """
    kept = policy.keep_last - 1 + policy.keep_best + (int(hours) if policy.keep_hourly else 0)
    return 2 * checkpoint_gib(shape, averaged) + kept * weights_gib(shape) + 2.0 * (corpus_tokens or 0.0) / GIB
