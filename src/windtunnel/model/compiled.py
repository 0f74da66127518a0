"""FlashAttention-4's kernels compiled before a model's first step, each pass by itself; and models without them.

What is compiled stays on disk, and whoever attends with the same heads finds it there. The kernels' keys do not hold how many
sequences there are, so that one is enough.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from . import attention
from .shape import GPTShape

HEAD_DIMS = (64, 128)


def compile_attention(shape: GPTShape, dtype: torch.dtype, *, backward: bool) -> None:
    """Compile what a model attends with, on the current GPU, for one pass of training.

    Args:
        shape: of the model.
        dtype: of its queries, keys and values.
        backward: for this pass; else for the one forward.
    """
    T, D = shape.sequence, shape.head_dim
    # The same conditions as `attention.attend` has: what it would not use need not be compiled.
    if D not in HEAD_DIMS or dtype not in (torch.bfloat16, torch.float16):
        return
    for window in sorted(set(shape.windows)):
        q, k, v = (
            torch.zeros(1, T, heads, D, dtype=dtype, device="cuda", requires_grad=True)
            for heads in (shape.heads, shape.kv_heads, shape.kv_heads)
        )
        near = window if window < T else None
        if backward:
            _go_backward(q.detach(), k.detach(), v.detach(), near, shape.causal)
        else:
            attention.attend(q, k, v, near, shape.causal)


def _go_backward(q: Tensor, k: Tensor, v: Tensor, window: int | None, causal: bool) -> None:
    """Call the backward pass as `attention.attend` and autograd do, without the pass forward, whose kernel it does not need."""
    left, right = (None, None) if window is None else (window, 0)
    _, T, H, _ = q.shape
    attention.flash_kernels()._flash_attn_bwd(
        q, k, v, torch.zeros_like(q), torch.zeros_like(q), q.new_zeros(1, H, T, dtype=torch.float32), None, causal, 0.0,
        window_size_left=left, window_size_right=right, deterministic=torch.are_deterministic_algorithms_enabled(),
    )  # fmt: skip


@contextlib.contextmanager
def without_attention() -> Iterator[None]:
    """Let FlashAttention-4 compute nothing: its outputs and gradients are zeros, and nothing of it is imported or compiled."""
    # Asked for at every call by this name, so that exchanging it here is enough.
    true = attention.flash_kernels
    attention.flash_kernels = _Hollow  # type: ignore[assignment]
    try:
        yield
    finally:
        attention.flash_kernels = true


class _Hollow:
    """Stands in for the module of the kernels."""

    @staticmethod
    def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, **_: Any) -> tuple[Tensor]:
        return (_Zeros.apply(q, k, v),)


class _Zeros(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(q, k, v)
        return torch.zeros_like(q)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return tuple(torch.zeros_like(each) for each in ctx.saved_tensors)
