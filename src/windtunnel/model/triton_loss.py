"""Softcapped cross-entropy on the GPU: one kernel reads the raw logits twice and writes their gradient in place."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _kernel(logits, targets, losses, vocab, width, stride, softcap, GRADIENT: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    base = logits + row * stride
    columns = tl.arange(0, BLOCK)
    # tanh is bounded, so softcap itself is a safe maximum: one pass sums the exponentials.
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, width, BLOCK):
        at = start + columns
        raw = tl.load(base + at, mask=at < vocab, other=0.0).to(tl.float32)
        capped = 1 - 2 / (tl.exp(2 * raw / softcap) + 1)
        total += tl.where(at < vocab, tl.exp(softcap * capped - softcap), 0.0)
    summed = tl.sum(total, axis=0)
    valid = target >= 0
    chosen = tl.load(base + tl.where(valid, target, 0)).to(tl.float32)
    chosen = softcap * (1 - 2 / (tl.exp(2 * chosen / softcap) + 1))
    tl.store(losses + row, tl.where(valid, tl.log(summed) + softcap - chosen, 0.0))
    if GRADIENT:
        keep = tl.where(valid, 1.0, 0.0)
        for start in range(0, width, BLOCK):
            at = start + columns
            raw = tl.load(base + at, mask=at < vocab, other=0.0).to(tl.float32)
            capped = 1 - 2 / (tl.exp(2 * raw / softcap) + 1)
            probability = tl.exp(softcap * capped - softcap) / summed
            grad = (probability - tl.where(at == target, 1.0, 0.0)) * (1 - capped * capped) * keep
            tl.store(base + at, tl.where(at < vocab, grad, 0.0).to(logits.dtype.element_ty), mask=at < width)


def loss_and_gradient_(logits: Tensor, targets: Tensor, vocab: int, softcap: float, gradient: bool) -> Tensor:
    """Losses (N,) fp32 of raw logits (N, V); with `gradient` the logits become the gradient of the losses' sum."""
    losses = torch.empty(logits.size(0), dtype=torch.float32, device=logits.device)
    width = logits.size(1)
    block = min(4096, triton.next_power_of_2(width))
    warps = 8 if block >= 2048 else 4
    _kernel[(logits.size(0),)](
        logits, targets, losses, vocab, width, logits.stride(0), softcap, GRADIENT=gradient, BLOCK=block, num_warps=warps
    )
    return losses
