"""GPU kernels of silu(gate) * hidden: of two halves side by side, as `products.swiglu` has them, or of two tensors."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _forward(hidden, gate, out, H, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < H
    h = tl.load(hidden + row * stride + at, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(gate + row * stride + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * H + at, (g * tl.sigmoid(g) * h).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _backward(grad, hidden, gate, dhidden, dgate, H, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < H
    h = tl.load(hidden + row * stride + at, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(gate + row * stride + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(grad + row * H + at, mask=inside, other=0.0).to(tl.float32)
    s = tl.sigmoid(g)
    silu = g * s
    tl.store(dhidden + row * stride + at, (up * silu).to(dhidden.dtype.element_ty), mask=inside)
    slope = s * (1 + g * (1 - s))
    tl.store(dgate + row * stride + at, (up * h * slope).to(dgate.dtype.element_ty), mask=inside)
    # The product again, where its gradient was: whoever needs it for a weight's gradient need not have kept it.
    tl.store(grad + row * H + at, (silu * h).to(grad.dtype.element_ty), mask=inside)


def swiglu_forward(both: Tensor) -> Tensor:
    """Return silu(second half) * first half of both (N, 2H), contiguous: (N, H)."""
    H = both.size(1) // 2
    return _product(both, both[:, H:], H)


def swiglu_of(gate: Tensor, hidden: Tensor) -> Tensor:
    """Return silu(gate) * hidden; all (N, H), contiguous."""
    return _product(hidden, gate, gate.size(1))


def _product(hidden: Tensor, gate: Tensor, H: int) -> Tensor:
    out = hidden.new_empty(hidden.size(0), H)
    _forward[(hidden.size(0), triton.cdiv(H, BLOCK))](hidden, gate, out, H, hidden.stride(0), BLOCK=BLOCK, num_warps=4)
    return out


def swiglu_backward_(grad: Tensor, both: Tensor) -> Tensor:
    """Return the gradient of both (N, 2H); `grad` (N, H) of the product becomes the product itself. Contiguous."""
    N, H = grad.shape
    dboth, halves = torch.empty_like(both), slice(H, None)
    grid = (N, triton.cdiv(H, BLOCK))
    _backward[grid](grad, both, both[:, halves], dboth, dboth[:, halves], H, 2 * H, BLOCK=BLOCK, num_warps=4)
    return dboth


def swiglu_backward_in_place_(grad: Tensor, gate: Tensor, hidden: Tensor) -> None:
    """Turn gate and hidden into their gradients, and the product's gradient into the product; all (N, H), contiguous."""
    N, H = grad.shape
    _backward[(N, triton.cdiv(H, BLOCK))](grad, hidden, gate, hidden, gate, H, H, BLOCK=BLOCK, num_warps=4)
