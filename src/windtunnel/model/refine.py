"""The elementwise part of a recursive GPT: states are summed and normed in one pass.

For the backward pass only the normed states and one factor a row are kept. Where a tensor is used twice
it is handed out twice, and its gradients are summed in the kernel rather than by one more pass.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .fused import norm


class Refined(NamedTuple):
    """What `refine` gives; each (B, T, C).

    Attributes:
        s: s + a + b, None where it was not wanted; y: y + a + b, None where there was no y.
        u, again: the normed states, for two uses of them.
        x: to be used in the place of x from here on; None where there was none.
    """

    s: Any
    y: Any
    u: Tensor
    again: Tensor
    x: Any


class _Refine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, s, a, b, x, y, keep):  # type: ignore[no-untyped-def]
        from .triton_refine import refine_forward

        shape, C = s.shape, s.size(-1)
        flat_a, flat_b, flat_x, flat_y = (None if t is None else t.reshape(-1, C) for t in (a, b, x, y))
        out, y_out, u, factor = refine_forward(s.reshape(-1, C), flat_a, flat_b, flat_x, flat_y, keep)
        ctx.save_for_backward(u, factor)
        ctx.set_materialize_grads(False)
        # What is None gets no gradient; a and b have the same one, as both are only added.
        ctx.given = [t is not None for t in (a, b, x, y)]
        out, y_out = (None if t is None else t.view(shape) for t in (out, y_out))
        return out, y_out, u.view(shape), u.view(shape), None if x is None else x.view_as(x)

    @staticmethod
    def backward(ctx, dout, dy, du, again, onward):  # type: ignore[no-untyped-def]
        from .triton_refine import refine_backward

        u, factor = ctx.saved_tensors
        has_a, has_b, has_x, has_y = ctx.given
        given = [dout, dy, du, again, onward]
        shape = next((t.shape for t in given if t is not None), u.shape)
        dout, dy_flat, du, again, onward = (None if t is None else t.reshape(u.shape).contiguous() for t in given)
        ds, da, dx = refine_backward(du, again, u, factor, dout, dy_flat, onward, has_x)
        ds, da = ds.view(shape), da.view(shape)
        dx = None if dx is None else dx.view(shape)
        return ds, da if has_a else None, da if has_b else None, dx, dy if has_y else None, None


def refine(
    s: Tensor, a: Tensor | None, b: Tensor | None = None, *, x: Tensor | None = None, y: Tensor | None = None, keep: bool = True
) -> Refined:
    """Return s + a + b, and the norm of it or, given x, of s + a + b - x.

    Args:
        s: the state (B, T, C).
        a: (B, T, C) to add; None for nothing.
        b: likewise.
        x: (B, T, C) to take away before the norm.
        y: (B, T, C); a and b are added to it too.
        keep: whether the sum itself is wanted.
    """
    if s.is_cuda:
        return Refined(*_Refine.apply(s, a, b, x, y, keep))
    total = s
    for change in (a, b):
        if change is not None:
            total = total + change
            y = None if y is None else y + change
    u = norm(total if x is None else total - x)
    return Refined(total if keep else None, y, u, u, x)


class _Moved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, through):  # type: ignore[no-untyped-def]
        return value.view_as(value)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return None, grad


def moved(value: Tensor, through: Tensor) -> Tensor:
    """Return `value` as if it were `through` plus a constant: gradients pass to `through` unchanged."""
    return _Moved.apply(value, through)
