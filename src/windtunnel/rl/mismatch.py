"""How far apart the log-probabilities are that learner and engine give the same tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

CLOSE = 0.9, 1.1
"""Ratios of probabilities that clipping and importance weights hardly see."""


@dataclass(frozen=True)
class Mismatch:
    """Over tokens; log-probabilities in nats.

    Attributes:
        mean, p95, largest: of |learner - engine|.
        k3: Schulman's estimate of KL(engine || learner): mean of r - 1 - ln r, r the ratio of learner's to engine's probability.
        outside: share of tokens whose ratio is not within [0.9, 1.1].
        tokens: how many.
    """

    mean: float
    p95: float
    largest: float
    k3: float
    outside: float
    tokens: int


def measure_mismatch(learner: Tensor, engine: Tensor) -> Mismatch:
    """Compare log-probabilities of the same tokens, of one shape. What is not finite makes everything infinite."""
    # In fp64: differences of 1e-7 are what fp32 is checked for. Where the tensors are, and fetched once: a GPU waits for each.
    difference = (learner.double() - engine.double()).flatten()
    size, ratio = difference.abs(), difference.exp()
    outside = (ratio < CLOSE[0]) | (ratio > CLOSE[1])
    finite, mean, p95, largest, k3, share = torch.stack([
        difference.isfinite().all().double(), size.mean(), size.quantile(0.95), size.max(), (ratio - 1 - difference).mean(),
        outside.double().mean(),
    ]).tolist()  # fmt: skip
    # NaN would pass every comparison with a limit as False, that is, unseen.
    if not finite:
        return Mismatch(*(float("inf"),) * 4, outside=1.0, tokens=difference.numel())
    return Mismatch(mean, p95, largest, k3, share, difference.numel())
