"""Fused pieces of the blocks: each saves less for the backward pass than autograd would.

- norm keeps its output and one factor a row, not its input as well;
- relu^2 keeps its output only: the derivative 2 relu(h) is 2 sqrt(relu(h)^2);
- rotary position + QK norm + value gate keep what attention keeps anyway, since rotation leaves norms unchanged.
"""

from __future__ import annotations

import torch
from torch import Tensor

EPSILON = 1e-6
# Normed queries and keys have unit scale; softmax wants more: the gain is split between the two.
QK_GAIN = 1.2
GATE_RANGE = 3.0


def wide(x: Tensor) -> Tensor:
    """Return x in fp32, or in fp64 where it is that already: what sums and norms are computed in."""
    return x if x.dtype == torch.float64 else x.float()


def _normed(x: Tensor) -> tuple[Tensor, Tensor]:
    value = wide(x)
    factor = torch.rsqrt(value.square().mean(-1, keepdim=True) + EPSILON)
    return (value * factor).to(x.dtype), factor


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        y, factor = _normed(x)
        ctx.save_for_backward(y, factor)
        return y

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        y, factor = ctx.saved_tensors
        value, dy = wide(y), wide(grad)
        return ((dy - value * (value * dy).mean(-1, keepdim=True)) * factor).to(grad.dtype)


def norm(x: Tensor) -> Tensor:
    """Return the RMS norm over the last axis, without parameters (a gain would be absorbed by the next matrix)."""
    # Without gradients its own wrapping would take as long as a small model's norm itself.
    return _Norm.apply(x) if torch.is_grad_enabled() else _normed(x)[0]


class _ReluSquared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        y = torch.relu(x).square()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        (y,) = ctx.saved_tensors
        return (wide(grad) * (2 * torch.sqrt(wide(y)))).to(grad.dtype)


def relu_squared(x: Tensor) -> Tensor:
    """Return relu(x)^2 (arXiv:2109.08668)."""
    return _ReluSquared.apply(x) if torch.is_grad_enabled() else torch.relu(x).square()


def split_heads(
    qkv_BTHD: Tensor, cos: Tensor, sin: Tensor, gate_BTK: Tensor | None, extra_BTKD: Tensor | None,
    heads: int, kv_heads: int, gain: float = QK_GAIN,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Rotate and norm queries and keys, add gated value embeddings to values.

    Args:
        qkv_BTHD: (B, T, heads + 2 kv_heads, D).
        cos: of the positions, broadcastable to (B, T, 1, D/2), fp32.
        sin: likewise.
        gate_BTK: raw gates (B, T, kv_heads); None where there are no value embeddings.
        extra_BTKD: value embeddings (B, T, kv_heads, D); None without gates.
        heads: of queries.
        kv_heads: of keys, and of values.
        gain: normed queries and keys are scaled by it.

    Returns:
        q (B, T, heads, D), k and v (B, T, kv_heads, D).
    """
    turned, v = qkv_BTHD.split([heads + kv_heads, kv_heads], dim=2)
    q, k = _rotate_norm(turned, cos, sin, gain).split([heads, kv_heads], dim=2)
    if gate_BTK is not None and extra_BTKD is not None:
        gate = GATE_RANGE * torch.sigmoid(wide(gate_BTK))
        v = (wide(v) + gate.unsqueeze(-1) * wide(extra_BTKD)).to(v.dtype)
    return q, k, v


def _rotate_norm(x_BTHD: Tensor, cos: Tensor, sin: Tensor, gain: float) -> Tensor:
    a, b = wide(x_BTHD).chunk(2, dim=-1)
    rotated = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
    factor = torch.rsqrt(rotated.square().mean(-1, keepdim=True) + EPSILON)
    return (rotated * (factor * gain)).to(x_BTHD.dtype)


class _SplitHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx, qkv, cos, sin, gate, extra, heads, kv_heads, gain):  # type: ignore[no-untyped-def]
        from .triton_heads import split_forward

        q, k, v, factor = split_forward(qkv, cos, sin, gate, extra, heads, kv_heads, gain)
        ctx.save_for_backward(q, k, factor, cos, sin, gate, extra)
        ctx.gain = gain
        return q, k, v

    @staticmethod
    def backward(ctx, dq, dk, dv):  # type: ignore[no-untyped-def]
        from .triton_heads import split_backward

        q, k, factor, cos, sin, gate, extra = ctx.saved_tensors
        dqkv, dgate, dextra = split_backward(dq, dk, dv, q, k, factor, cos, sin, gate, extra, ctx.gain)
        gated = gate is not None
        return dqkv, None, None, dgate if gated else None, dextra if gated else None, None, None, None


def fused_split_heads(
    qkv_BTHD: Tensor, cos_TD: Tensor, sin_TD: Tensor, gate_BTK: Tensor | None, extra_BTKD: Tensor | None,
    heads: int, kv_heads: int, gain: float = QK_GAIN,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Do `split_heads` for training: positions 0..T-1, cos and sin (T, D/2) fp32; differentiable in qkv, gate and extra."""
    if qkv_BTHD.is_cuda and is_power_of_two(qkv_BTHD.size(-1)):
        return _SplitHeads.apply(qkv_BTHD, cos_TD, sin_TD, gate_BTK, extra_BTKD, heads, kv_heads, gain)
    cos, sin = (t[None, :, None, :] for t in (cos_TD, sin_TD))
    return split_heads(qkv_BTHD, cos, sin, gate_BTK, extra_BTKD, heads, kv_heads, gain)


def is_power_of_two(n: int) -> bool:
    """Return whether the kernels take heads of this size."""
    return n > 0 and n & (n - 1) == 0
