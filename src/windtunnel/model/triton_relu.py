"""GPU kernels behind `products.mlp`: relu^2 in place, forward and backward."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096


@triton.jit
def _forward(h, N, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.maximum(tl.load(h + at, mask=at < N, other=0.0).to(tl.float32), 0.0)
    tl.store(h + at, (value * value).to(h.dtype.element_ty), mask=at < N)


@triton.jit
def _backward(grad, y, N, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    slope = 2 * tl.sqrt(tl.load(y + at, mask=at < N, other=0.0).to(tl.float32))
    value = tl.load(grad + at, mask=at < N, other=0.0).to(tl.float32) * slope
    tl.store(grad + at, value.to(grad.dtype.element_ty), mask=at < N)


def relu_squared_(h: Tensor) -> Tensor:
    """Replace h, contiguous, by relu(h)^2."""
    _forward[(triton.cdiv(h.numel(), BLOCK),)](h, h.numel(), BLOCK=BLOCK, num_warps=8)
    return h


def relu_squared_backward_(grad: Tensor, y: Tensor) -> Tensor:
    """Replace the gradient of y = relu(h)^2 by that of h: times 2 relu(h) = 2 sqrt(y); contiguous."""
    _backward[(triton.cdiv(grad.numel(), BLOCK),)](grad, y, grad.numel(), BLOCK=BLOCK, num_warps=8)
    return grad
