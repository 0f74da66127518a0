"""GPU kernels behind `products.swiglu`: silu(gate) * hidden of two halves side by side, forward and backward."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _forward(both, out, H, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < H
    hidden = tl.load(both + row * 2 * H + at, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(both + row * 2 * H + H + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * H + at, (gate * tl.sigmoid(gate) * hidden).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _backward(grad, both, dboth, H, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < H
    hidden = tl.load(both + row * 2 * H + at, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(both + row * 2 * H + H + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(grad + row * H + at, mask=inside, other=0.0).to(tl.float32)
    s = tl.sigmoid(gate)
    silu = gate * s
    tl.store(dboth + row * 2 * H + at, (up * silu).to(dboth.dtype.element_ty), mask=inside)
    slope = s * (1 + gate * (1 - s))
    tl.store(dboth + row * 2 * H + H + at, (up * hidden * slope).to(dboth.dtype.element_ty), mask=inside)
    # The product again, where its gradient was: whoever needs it for a weight's gradient need not have kept it.
    tl.store(grad + row * H + at, (silu * hidden).to(grad.dtype.element_ty), mask=inside)


def swiglu_forward(both: Tensor) -> Tensor:
    """Return silu(second half) * first half of both (N, 2H), contiguous: (N, H)."""
    N, H = both.size(0), both.size(1) // 2
    out = both.new_empty(N, H)
    _forward[(N, triton.cdiv(H, BLOCK))](both, out, H, BLOCK=BLOCK, num_warps=4)
    return out


def swiglu_backward_(grad: Tensor, both: Tensor) -> Tensor:
    """Return the gradient of both (N, 2H); `grad` (N, H) of the product becomes the product itself. Contiguous."""
    N, H = grad.shape
    dboth = torch.empty_like(both)
    _backward[(N, triton.cdiv(H, BLOCK))](grad, both, dboth, H, BLOCK=BLOCK, num_warps=4)
    return dboth
