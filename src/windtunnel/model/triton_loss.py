"""Softcapped cross-entropy on the GPU: raw logits become the gradient of the loss in place."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2E = math.log2(math.e)


@triton.jit
def _capped(raw, inward):
    # tanh(z) = 1 - 2 / (e^(2 z) + 1): exact at both ends, no overflow to NaN. `inward` is 2 log2(e) / softcap.
    return 1 - 2 / (tl.exp2(raw * inward) + 1)


@triton.jit
def _kernel(logits, targets, losses, vocab, width, stride, softcap, inward, outward, GRADIENT: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    base = logits + row * stride
    columns = tl.arange(0, BLOCK)
    # tanh is bounded, so softcap itself is a safe maximum: one pass sums the exponentials.
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, width, BLOCK):
        at = start + columns
        capped = _capped(tl.load(base + at, mask=at < vocab, other=0.0).to(tl.float32), inward)
        total += tl.where(at < vocab, tl.exp2(capped * outward - outward), 0.0)
    summed = tl.sum(total, axis=0)
    valid = target >= 0
    chosen = _capped(tl.load(base + tl.where(valid, target, 0)).to(tl.float32), inward) * softcap
    tl.store(losses + row, tl.where(valid, tl.log(summed) + softcap - chosen, 0.0))
    if GRADIENT:
        scale = tl.where(valid, 1.0, 0.0)
        for start in range(0, width, BLOCK):
            at = start + columns
            capped = _capped(tl.load(base + at, mask=at < vocab, other=0.0).to(tl.float32), inward)
            weight = tl.where(at < vocab, tl.exp2(capped * outward - outward), 0.0)
            grad = (weight * (scale / summed) - tl.where(at == target, 1.0, 0.0)) * (1 - capped * capped)
            tl.store(base + at, tl.where(at < vocab, grad, 0.0).to(logits.dtype.element_ty), mask=at < width)


def loss_and_gradient_(logits: Tensor, targets: Tensor, vocab: int, softcap: float, gradient: bool) -> Tensor:
    """Return the losses (N,) fp32 of raw logits (N, V); with `gradient` the logits become the gradient of the losses' sum."""
    losses = torch.empty(logits.size(0), dtype=torch.float32, device=logits.device)
    width = logits.size(1)
    block = min(4096, triton.next_power_of_2(width))
    _kernel[(logits.size(0),)](
        logits, targets, losses, vocab, width, logits.stride(0), softcap, 2 * LOG2E / softcap, softcap * LOG2E,
        GRADIENT=gradient, BLOCK=block, num_warps=8 if block >= 2048 else 4,
    )  # fmt: skip
    return losses
