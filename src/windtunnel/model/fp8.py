"""Tensorwise fp8 matrix products for training (arXiv:2209.05433): e4m3 forward, e5m2 gradients, dense rate on Hopper and later."""

from __future__ import annotations

import torch
from torch import Tensor

from .gpt import GPT
from .layers import Linear


def _quantise(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x scaled to fill `dtype`'s range, and the fp32 factor that undoes it."""
    limit = torch.finfo(dtype).max
    inverse = (x.abs().amax().float() / limit).clamp(min=1e-12)
    return (x.float() / inverse).clamp(-limit, limit).to(dtype), inverse


def _product(a_MK: Tensor, b_NK: Tensor, scale_a: Tensor, scale_b: Tensor, dtype: torch.dtype, fast: bool) -> Tensor:
    """a @ b.T; both row-major, which is the layout the hardware wants."""
    return torch._scaled_mm(a_MK, b_NK.t(), scale_a=scale_a, scale_b=scale_b, out_dtype=dtype, use_fast_accum=fast)


class _Matmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):  # type: ignore[no-untyped-def]
        x8, x_scale = _quantise(x, torch.float8_e4m3fn)
        w8, w_scale = _quantise(weight.to(x.dtype), torch.float8_e4m3fn)
        ctx.save_for_backward(x8, x_scale, w8, w_scale)
        # Fast accumulation loses little in the forward pass; gradients keep full accumulation.
        return _product(x8, w8, x_scale, w_scale, x.dtype, fast=True)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        x8, x_scale, w8, w_scale = ctx.saved_tensors
        g8, g_scale = _quantise(grad, torch.float8_e5m2)
        grad_x = _product(g8, w8.t().contiguous(), g_scale, w_scale, grad.dtype, fast=False)
        grad_w = _product(g8.t().contiguous(), x8.t().contiguous(), g_scale, x_scale, grad.dtype, fast=False)
        return grad_x, grad_w.float()


def fp8_matmul(x: Tensor, weight: Tensor) -> Tensor:
    """x (..., in) times weight (out, in) transposed through fp8; x is bf16, the weight fp32."""
    return _Matmul.apply(x.reshape(-1, x.size(-1)), weight).view(*x.shape[:-1], weight.size(0))


def enable_fp8(model: GPT) -> int:
    """Let the blocks' matrices multiply in fp8; returns how many do. The head stays in bf16.

    Matrices with a side under 128 or not a multiple of 16 keep bf16 (hardware's requirement).
    """
    count = 0
    for module in model.blocks.modules():
        if isinstance(module, Linear) and min(module.weight.shape) >= 128 and all(n % 16 == 0 for n in module.weight.shape):
            module.matmul = fp8_matmul
            count += 1
    return count


def disable_fp8(model: GPT) -> None:
    """Back to the compute dtype, as evaluation wants it."""
    from .layers import plain_matmul

    for module in model.blocks.modules():
        if isinstance(module, Linear):
            module.matmul = plain_matmul
