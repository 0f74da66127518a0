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

    What is given a row had better be on the host: nothing is waited for then.

    Returns:
        (N,) int64.
    """
    best = logits_NV.argmax(-1)
    # Greedy rows alone need no probabilities.
    if not bool((temperature_N > 0).any()):
        return best
    whole = (top_p_N >= 1) & ((top_k_N <= 0) | (top_k_N >= logits_NV.size(-1)))
    every, some = bool(whole.all()), bool(whole.any())
    temperature_N, top_p_N, top_k_N, uniform_N, whole = (
        given.to(logits_NV.device, non_blocking=True) for given in (temperature_N, top_p_N, top_k_N, uniform_N, whole)
    )
    # Greedy rows go along, and are chosen differently in the end: one path for a mixed batch.
    scaled = logits_NV / temperature_N.clamp(min=1e-4)[:, None]
    if every:
        sampled = _of_all(scaled, uniform_N)
    elif some:
        sampled = torch.where(whole, _of_all(scaled, uniform_N), _of_likeliest(scaled, top_p_N, top_k_N, uniform_N))
    else:
        sampled = _of_likeliest(scaled, top_p_N, top_k_N, uniform_N)
    return torch.where(temperature_N > 0, sampled, best)


def draw_tokens(logits_NV: Tensor, temperature_N: Tensor, uniform_N: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `choose` does where nothing is cut off, and each token's log-probability, without a look of the host.

    Args:
        logits_NV: (N, V) fp32.
        temperature_N: 0 is greedy; log-probabilities are those at a temperature of 1 then.
        uniform_N: in [0, 1).

    Returns:
        (N,) int64 and (N,) fp32, in nats.
    """
    # No branch by what is on the device: the host would wait for it at every token.
    greedy = temperature_N == 0
    drawn = _of_all(logits_NV / temperature_N.clamp(min=1e-4)[:, None], uniform_N)
    tokens = torch.where(greedy, logits_NV.argmax(-1), drawn)
    scaled = logits_NV / torch.where(greedy, 1.0, temperature_N)[:, None]
    return tokens, scaled.gather(1, tokens[:, None])[:, 0] - scaled.logsumexp(-1)


def _of_all(scaled_NV: Tensor, uniform_N: Tensor) -> Tensor:
    """Return the token at which the sum of probabilities, in the order of the vocabulary, passes the draw.

    Sorting is most of the time of sampling from a large vocabulary, and nothing is cut off here.
    """
    total = scaled_NV.softmax(-1).cumsum(-1)
    draw = uniform_N.to(total.dtype)[:, None] * total[:, -1:]
    # Rounding may leave the draw at the very top: then the last token that adds anything.
    last = (total < total[:, -1:]).sum(-1)
    return torch.minimum((total <= draw).sum(-1), last)


def _of_likeliest(scaled_NV: Tensor, top_p_N: Tensor, top_k_N: Tensor, uniform_N: Tensor) -> Tensor:
    ordered, token = scaled_NV.sort(dim=-1, descending=True, stable=True)
    probability = ordered.softmax(-1)
    # What comes before a token decides: the one that passes top-p still belongs to it.
    before = probability.cumsum(-1) - probability
    rank = torch.arange(scaled_NV.size(-1), device=scaled_NV.device)
    limit = torch.where(top_k_N > 0, top_k_N, scaled_NV.size(-1))
    keep = (rank < limit[:, None]) & (before < top_p_N[:, None])
    keep[:, 0] = True
    kept = torch.where(keep, probability, 0.0)
    total = kept.cumsum(-1)
    # Drawn on the scale of what is kept. Rounding may leave the draw at the very top: the last kept token then.
    draw = uniform_N.to(kept.dtype)[:, None] * total[:, -1:]
    index = torch.minimum((total <= draw).sum(-1), keep.sum(-1) - 1)
    return token.gather(1, index[:, None])[:, 0]


def top_log_probabilities(logits_NV: Tensor, chosen_N: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probabilities (nats, before temperature) of the chosen tokens (N,), and of the `count` likeliest with ids."""
    log_p = torch.log_softmax(logits_NV.float(), -1)
    top = log_p.topk(min(count, log_p.size(-1)), dim=-1)
    return log_p.gather(1, chosen_N[:, None])[:, 0], top.values, top.indices
