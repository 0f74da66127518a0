"""Cross-entropy on the GPU: logits become the gradient of the loss in place."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2E = math.log2(math.e)


@triton.jit
def _kernel(
    logits, targets, factors, losses, width, stride, log2e, GRADIENT: tl.constexpr, FACTORS: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    base = logits + row * stride
    columns = tl.arange(0, BLOCK)
    # One pass for maximum and sum: each lane keeps its own, and rescales its sum when its maximum grows.
    largest = tl.full([BLOCK], -1e30, dtype=tl.float32)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, width, BLOCK):
        at = start + columns
        value = tl.load(base + at, mask=at < width, other=-float("inf")).to(tl.float32) * log2e
        larger = tl.maximum(largest, value)
        total = total * tl.exp2(largest - larger) + tl.exp2(value - larger)
        largest = larger
    top = tl.max(largest, axis=0)
    summed = tl.sum(total * tl.exp2(largest - top), axis=0)
    valid = target >= 0
    chosen = tl.load(base + tl.where(valid, target, 0)).to(tl.float32)
    tl.store(losses + row, tl.where(valid, (tl.log2(summed) + top) / log2e - chosen, 0.0))
    if GRADIENT:
        factor = tl.load(factors + row) if FACTORS else 1.0
        scale = tl.where(valid, factor, 0.0)
        for start in range(0, width, BLOCK):
            at = start + columns
            value = tl.load(base + at, mask=at < width, other=-float("inf")).to(tl.float32) * log2e
            grad = tl.exp2(value - top) * (scale / summed) - tl.where(at == target, scale, 0.0)
            tl.store(base + at, grad.to(logits.dtype.element_ty), mask=at < width)


def loss_and_gradient_(logits: Tensor, targets: Tensor, factors: Tensor | None, gradient: bool) -> Tensor:
    """Return the losses of logits, and turn these into a gradient in place.

    Args:
        logits: (N, V), rows contiguous; with `gradient` they become that of the sum of factor times loss.
        targets: (N,), negative where there is none.
        factors: (N,) fp32; None: all are 1.
        gradient: write it; else the logits stay.

    Returns:
        (N,) fp32, without factors.
    """
    losses = torch.empty(logits.size(0), dtype=torch.float32, device=logits.device)
    width = logits.size(1)
    block = min(4096, triton.next_power_of_2(width))
    _kernel[(logits.size(0),)](
        logits, targets, losses if factors is None else factors, losses, width, logits.stride(0), LOG2E, GRADIENT=gradient,
        FACTORS=factors is not None, BLOCK=block, num_warps=8 if block >= 2048 else 4,
    )  # fmt: skip
    return losses
