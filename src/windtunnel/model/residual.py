"""The residual stream: what enters and leaves a layer, each step fused with the norm that follows it.

    mix_norm:  x = scale * (x + delta) + mix * first,  y = norm(x)     (before attention)
    add_norm:  x = x + delta,                          y = norm(x)     (before the MLP, and before the head)

For the backward pass only y, one factor a row and `first` are kept.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .fused import norm, wide


class GradientAmax:
    """Hands the largest magnitude of a gradient from the function that computes it to the one that quantises it.

    It is wired where the gradient has one producer and one consumer. Empty: the consumer looks for itself.
    """

    def __init__(self) -> None:
        self.value: Tensor | None = None

    def take(self) -> Tensor | None:
        """Return the value, at most once."""
        value, self.value = self.value, None
        return value


class _Residual(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, delta, first, scale, mix, want_out, want_amax, gradient_amax):  # type: ignore[no-untyped-def]
        from .triton_residual import residual_forward

        C = x.size(-1)
        flat_delta, flat_first = (None if t is None else t.reshape(-1, C) for t in (delta, first))
        out, y, factor, amax = residual_forward(x.reshape(-1, C), flat_delta, flat_first, scale, mix, want_out, want_amax)
        ctx.save_for_backward(y, factor, flat_first, scale, mix)
        ctx.set_materialize_grads(False)
        ctx.has_delta, ctx.gradient_amax, ctx.shape = delta is not None, gradient_amax, x.shape
        ctx.mark_non_differentiable(amax)
        # A view that autograd counts as another tensor: each layer's gradient of `first` then comes by way of the next
        # layer's.
        onward = None if first is None else first.view_as(first)
        return None if out is None else out.view(x.shape), y.view(x.shape), onward, amax

    @staticmethod
    def backward(ctx, dout, dy, donward, _):  # type: ignore[no-untyped-def]
        from .triton_residual import residual_backward

        y, factor, first, scale, mix = ctx.saved_tensors
        dy = torch.zeros_like(y) if dy is None else dy.reshape(y.shape).contiguous()
        dout, donward = (None if t is None else t.reshape(y.shape).contiguous() for t in (dout, donward))
        slot = ctx.gradient_amax
        dx, dfirst, sums, amax = residual_backward(dy, y, factor, dout, first, donward, scale, mix, slot is not None)
        if slot is not None:
            slot.value = amax
        dx = dx.view(ctx.shape)
        ddelta = dx if ctx.has_delta else None
        if dfirst is None or sums is None:
            return dx, ddelta, None, None, None, None, None, None
        return dx, ddelta, dfirst.view(ctx.shape), sums[0], sums[1], None, None, None


def mix_norm(
    x: Tensor, delta: Tensor | None, first: Tensor, scale: Tensor, mix: Tensor,
    *, want_amax: bool = False, gradient_amax: GradientAmax | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Enter a layer.

    Args:
        x: the residual stream (B, T, C).
        delta: what the layer before adds to it (B, T, C); None for nothing.
        first: the embeddings, which every layer mixes in (B, T, C).
        scale: of the stream, 0-d fp32; on GPUs it must not be zero.
        mix: of the embeddings, 0-d fp32.
        want_amax: also find max |y|.
        gradient_amax: receives max |gradient of delta| in the backward pass.

    Returns:
        x, y; `first` again, to be handed to the next layer: its gradient is then summed on the way back
        rather than by one more pass a layer; and amax (1,) or None.
    """
    if x.is_cuda:
        out, y, onward, amax = _Residual.apply(x, delta, first, scale, mix, True, want_amax, gradient_amax)
        return out, y, onward, amax if want_amax else None
    value = x if delta is None else x + delta
    out = (scale * wide(value) + mix * wide(first)).to(x.dtype)
    y = norm(out)
    return out, y, first, y.detach().abs().amax().float().view(1) if want_amax else None


def add_norm(
    x: Tensor, delta: Tensor, *, want_amax: bool = False, gradient_amax: GradientAmax | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return x + delta, its norm, and amax (1,) or None; see `mix_norm`."""
    if x.is_cuda:
        out, y, _, amax = _Residual.apply(x, delta, None, None, None, True, want_amax, gradient_amax)
        return out, y, amax if want_amax else None
    out = x + delta
    y = norm(out)
    return out, y, y.detach().abs().amax().float().view(1) if want_amax else None


def last_norm(x: Tensor, delta: Tensor | None, *, gradient_amax: GradientAmax | None = None) -> Tensor:
    """Return norm(x + delta), where the sum itself is not needed any more; delta None for norm(x)."""
    if x.is_cuda:
        return _Residual.apply(x, delta, None, None, None, False, False, gradient_amax)[1]
    return norm(x if delta is None else x + delta)
