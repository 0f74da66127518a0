"""Choosing the next token from logits: greedy, temperature, top-k, top-p."""

from __future__ import annotations

import torch
from torch import Tensor


def choose(logits_NV: Tensor, temperature_N: Tensor, top_p_N: Tensor, top_k_N: Tensor, uniform_N: Tensor) -> Tensor:
    """Return the next token of each row; a row's result depends on that row alone.

    The caller draws the randomness, one number a row, so that every sequence can have its own seed.

    Args:
        logits_NV: (N, V) fp32.
        temperature_N: 0 is greedy.
        top_p_N: nucleus sampling (arXiv:1904.09751): the fewest likeliest tokens whose probability reaches this; 1 is off.
        top_k_N: only this many likeliest tokens; 0 is off.
        uniform_N: in [0, 1).

    Returns:
        (N,) int64.
    """
    best = logits_NV.argmax(-1)
    if not bool((temperature_N > 0).any()):
        return best
    scaled = logits_NV / temperature_N.clamp(min=1e-4)[:, None]
    ordered, token = scaled.sort(dim=-1, descending=True, stable=True)
    probability = ordered.softmax(-1)
    before = probability.cumsum(-1) - probability
    rank = torch.arange(logits_NV.size(-1), device=logits_NV.device)
    limit = torch.where(top_k_N > 0, top_k_N, logits_NV.size(-1))
    keep = (rank < limit[:, None]) & (before < top_p_N[:, None])
    keep[:, 0] = True
    kept = torch.where(keep, probability, 0.0)
    total = kept.cumsum(-1)
    # Drawn on the scale of what is kept. Rounding may leave the draw at the very top: the last kept token then.
    draw = uniform_N.to(kept.dtype)[:, None] * total[:, -1:]
    index = torch.minimum((total <= draw).sum(-1), keep.sum(-1) - 1)
    sampled = token.gather(1, index[:, None])[:, 0]
    return torch.where(temperature_N > 0, sampled, best)


def top_log_probabilities(logits_NV: Tensor, chosen_N: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities (nats, before temperature): of the chosen tokens (N,), and of the `count` likeliest with their ids."""
    log_p = torch.log_softmax(logits_NV.float(), -1)
    top = log_p.topk(min(count, log_p.size(-1)), dim=-1)
    return log_p.gather(1, chosen_N[:, None])[:, 0], top.values, top.indices
