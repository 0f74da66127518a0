"""A token drawn from each row of logits, with its log-probability, in one launch: three passes over a row that caches hold.

PyTorch's operators for it (a softmax, a cumulative sum, two counts, an argmax) read and write as many fp32 copies of all logits,
which of 256 rows of 49,152 tokens took a fifth of a step of SmolLM2-135M's shape.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 4096, 8
COLDEST = 1e-4
"""Lower temperatures are this one, as in `sampling.choose`."""


@triton.jit
def _draw(logits, temperature, uniform, tokens, logs, vocab, COLDEST: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    start = logits + row.to(tl.int64) * vocab
    most = tl.full([BLOCK], float("-inf"), tl.float32)
    best = tl.zeros([BLOCK], tl.int32)
    for begin in range(0, vocab, BLOCK):
        value = tl.load(start + begin + at, mask=begin + at < vocab, other=float("-inf")).to(tl.float32)
        best = tl.where(value > most, begin + at, best)
        most = tl.maximum(most, value)
    peak = tl.max(most, 0)
    greedy = tl.min(tl.where(most == peak, best, vocab), 0)
    given = tl.load(temperature + row)
    warmth = tl.where(given == 0, 1.0, tl.maximum(given, COLDEST))
    total = 0.0
    for begin in range(0, vocab, BLOCK):
        value = tl.load(start + begin + at, mask=begin + at < vocab, other=float("-inf")).to(tl.float32)
        total += tl.sum(tl.exp((value - peak) / warmth), 0)
    # The token at which the sum of probabilities, in the order of the vocabulary, passes the draw.
    wanted, before = tl.load(uniform + row) * total, 0.0
    passed, last = 0, 0
    for begin in range(0, vocab, BLOCK):
        value = tl.load(start + begin + at, mask=begin + at < vocab, other=float("-inf")).to(tl.float32)
        weight = tl.exp((value - peak) / warmth)
        summed = before + tl.cumsum(weight, 0)
        passed += tl.sum(((summed <= wanted) & (begin + at < vocab)).to(tl.int32), 0)
        last = tl.maximum(last, tl.max(tl.where(weight > 0, begin + at, 0), 0))
        before += tl.sum(weight, 0)
    # Rounding may leave the draw at the very top: then the last token that adds anything.
    drawn = tl.where(given == 0, greedy, tl.minimum(passed, last))
    chosen = tl.load(start + drawn).to(tl.float32)
    tl.store(tokens + row, drawn.to(tl.int64))
    tl.store(logs + row, (chosen - peak) / warmth - tl.log(total))


def draw_rows(logits: Tensor, temperature: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `sampling.draw_tokens` does, up to the order of sums.

    Args:
        logits: (N, V), contiguous; computed with in fp32.
        temperature: (N,) fp32; 0 is greedy.
        uniform: (N,) fp32 in [0, 1).

    Returns:
        (N,) int64 and (N,) fp32, in nats.
    """
    rows, vocab = logits.shape
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    logs = torch.empty(rows, dtype=torch.float32, device=logits.device)
    _draw[(rows,)](logits, temperature, uniform, tokens, logs, vocab, COLDEST=COLDEST, BLOCK=BLOCK, num_warps=WARPS)
    return tokens, logs
