"""Softcapped cross-entropy on the GPU: raw logits become the gradient of the loss in place."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Rows up to this long are held in registers: read once, written once.
HELD = 32768


@triton.jit
def _capped(raw, softcap):
    # tanh(z) = 1 - 2 / (e^(2 z) + 1): exact at both ends, no overflow to NaN.
    return 1 - 2 / (tl.exp(2 * raw / softcap) + 1)


@triton.jit
def _held(logits, targets, losses, vocab, width, stride, softcap, GRADIENT: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    base = logits + row * stride
    at = tl.arange(0, BLOCK)
    raw = tl.load(base + at, mask=at < vocab, other=0.0)
    valid = target >= 0
    chosen = _capped(tl.load(base + tl.where(valid, target, 0)).to(tl.float32), softcap) * softcap
    capped = _capped(raw.to(tl.float32), softcap)
    # tanh is bounded, so softcap itself is a safe maximum.
    weight = tl.where(at < vocab, tl.exp(softcap * capped - softcap), 0.0)
    summed = tl.sum(weight, axis=0)
    tl.store(losses + row, tl.where(valid, tl.log(summed) + softcap - chosen, 0.0))
    if GRADIENT:
        scale = tl.where(valid, 1.0, 0.0)
        grad = (weight * (scale / summed) - tl.where(at == target, 1.0, 0.0)) * (1 - capped * capped)
        tl.store(base + at, grad.to(logits.dtype.element_ty), mask=at < width)


@triton.jit
def _streamed(logits, targets, losses, vocab, width, stride, softcap, GRADIENT: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    base = logits + row * stride
    columns = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, width, BLOCK):
        at = start + columns
        capped = _capped(tl.load(base + at, mask=at < vocab, other=0.0).to(tl.float32), softcap)
        total += tl.where(at < vocab, tl.exp(softcap * capped - softcap), 0.0)
    summed = tl.sum(total, axis=0)
    valid = target >= 0
    chosen = _capped(tl.load(base + tl.where(valid, target, 0)).to(tl.float32), softcap) * softcap
    tl.store(losses + row, tl.where(valid, tl.log(summed) + softcap - chosen, 0.0))
    if GRADIENT:
        scale = tl.where(valid, 1.0, 0.0)
        for start in range(0, width, BLOCK):
            at = start + columns
            capped = _capped(tl.load(base + at, mask=at < vocab, other=0.0).to(tl.float32), softcap)
            weight = tl.where(at < vocab, tl.exp(softcap * capped - softcap), 0.0)
            grad = (weight * (scale / summed) - tl.where(at == target, 1.0, 0.0)) * (1 - capped * capped)
            tl.store(base + at, tl.where(at < vocab, grad, 0.0).to(logits.dtype.element_ty), mask=at < width)


def loss_and_gradient_(logits: Tensor, targets: Tensor, vocab: int, softcap: float, gradient: bool) -> Tensor:
    """Losses (N,) fp32 of raw logits (N, V); with `gradient` the logits become the gradient of the losses' sum."""
    losses = torch.empty(logits.size(0), dtype=torch.float32, device=logits.device)
    width = logits.size(1)
    block = triton.next_power_of_2(width)
    kernel, block, warps = (_held, block, max(1, min(16, block // 1024))) if block <= HELD else (_streamed, 4096, 8)
    kernel[(logits.size(0),)](
        logits, targets, losses, vocab, width, logits.stride(0), softcap, GRADIENT=gradient, BLOCK=block, num_warps=warps
    )
    return losses
