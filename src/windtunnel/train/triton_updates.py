"""GPU kernels behind `MuonAdamW`: the updates of `muon`, each in as few passes over memory as torch.compile makes of them.

Their numbers are arguments, so that one kernel serves parameters of all sizes and a start compiles four, not four for each size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .muon import iterate

BLOCK = 1024


@triton.jit
def _lerp(start, end, weight):
    # As PyTorch computes it: exact at both ends.
    return tl.where(weight < 0.5, start + weight * (end - start), end - (end - start) * (1 - weight))


@triton.jit
def _look_ahead(grad, momentum, out, N, beta, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    keep = at < N
    g = tl.load(grad + at, mask=keep)
    m = _lerp(tl.load(momentum + at, mask=keep), g, 1 - beta)
    tl.store(momentum + at, m, mask=keep)
    tl.store(out + at, _lerp(g, m, beta).to(out.dtype.element_ty), mask=keep)


@triton.jit
def _move(weight, update, factor, SIZE, C, lr, decay, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    matrix = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = at < SIZE
    weight += matrix * SIZE + at
    if ROWS:
        factor += matrix * (SIZE // C) + at // C
    else:
        factor += matrix * C + at % C
    u = tl.load(update + matrix * SIZE + at, mask=keep).to(tl.float32) * tl.load(factor, mask=keep)
    w = tl.load(weight, mask=keep)
    tl.store(weight, w - (lr * u + tl.where(u * w >= 0, lr * decay * w, 0.0)), mask=keep)


@triton.jit
def _adamw(weight, grad, first, second, N, beta1, beta2, rate, shrink, unbias, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    keep = at < N
    g = tl.load(grad + at, mask=keep)
    a = _lerp(tl.load(first + at, mask=keep), g, 1 - beta1)
    b = _lerp(tl.load(second + at, mask=keep), g * g, 1 - beta2)
    tl.store(first + at, a, mask=keep)
    tl.store(second + at, b, mask=keep)
    denominator = tl.sqrt_rn(tl.div_rn(b, unbias)) + 1e-10
    w = tl.load(weight + at, mask=keep) * shrink
    tl.store(weight + at, w - tl.div_rn(rate * a, denominator), mask=keep)


def muon_update(
    weight: Tensor, grad: Tensor, momentum: Tensor, second: Tensor,
    lr: Tensor, beta: Tensor, beta2: Tensor, decay: Tensor, low_precision: bool,
) -> None:  # fmt: skip
    """Do as `muon.muon_update`, on tensors that are contiguous."""
    K, R, C = weight.shape
    x = torch.empty_like(weight, dtype=torch.bfloat16 if low_precision else None)
    _look_ahead[(triton.cdiv(x.numel(), BLOCK),)](grad, momentum, x, x.numel(), beta.item(), BLOCK=BLOCK)
    # As `muon.orthogonalise`, in place: a second copy of all matrices would be the step's peak.
    x.div_(torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True, dtype=torch.float32) * 1.01 + 1e-6)
    x = iterate(x)
    axis = -1 if R >= C else -2
    # A norm is read from bf16 and summed in fp32 in one pass: nothing as large as the matrices is made for it.
    norm = torch.linalg.vector_norm(x, dim=axis, keepdim=True, dtype=torch.float32)
    second.lerp_(norm.square() / x.size(axis), (1 - beta2).item())
    scale = second.clamp_min(1e-10).rsqrt()
    # Both norms without the division by how many elements a mean is of: it cancels out.
    before, after = (torch.linalg.vector_norm(each, dim=(-2, -1), keepdim=True) for each in (norm, norm * scale))
    factor = scale * (before / after.clamp_min(1e-10 * x.size(axis) ** 0.5))
    grid = (triton.cdiv(R * C, BLOCK), K)
    _move[grid](weight, x, factor, R * C, C, lr.item(), decay.item(), ROWS=R >= C, BLOCK=BLOCK)


def adamw_update(
    weight: Tensor, grad: Tensor, first: Tensor, second: Tensor,
    lr: Tensor, beta1: Tensor, beta2: Tensor, decay: Tensor, step: Tensor,
) -> None:  # fmt: skip
    """Do as `muon.adamw_update`, on tensors that are contiguous."""
    rate, shrink, unbias = lr / (1 - beta1**step), 1 - lr * decay, 1 - beta2**step
    _adamw[(triton.cdiv(weight.numel(), BLOCK),)](
        weight, grad, first, second, weight.numel(), beta1.item(), beta2.item(), rate.item(), shrink.item(), unbias.item(),
        BLOCK=BLOCK,
    )  # fmt: skip
