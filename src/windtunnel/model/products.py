"""Matrix products of the layers on GPUs, with gradients of the weights summed in fp32 straight into `.grad`.

Autograd would round each micro-batch's gradient to bf16, convert it and add it by a pass of its own;
here the product itself accumulates. Weights receive their gradients during backward and hand None to
autograd, as tables do (`tables`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def adjacent(tensors: Sequence[Tensor | None]) -> Tensor | None:
    """Return the matrices as one (sum of rows, columns) view where they stand one after another in memory, else None."""
    head = tensors[0]
    if any(t is None or not t.is_contiguous() for t in tensors) or head is None:
        return None
    # The optimizer lays parameters of a kind one behind the other, so that this mostly holds.
    expected = head.data_ptr()
    for t in tensors:
        assert t is not None
        if t.data_ptr() != expected or t.untyped_storage().data_ptr() != head.untyped_storage().data_ptr():
            return None
        expected += t.numel() * t.element_size()
    rows = sum(t.size(0) for t in tensors if t is not None)
    return head.detach().as_strided((rows, head.size(1)), (head.size(1), 1))


def stacked(weights: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Return the matrices below one another in `dtype`."""
    together = adjacent(weights)
    return together.to(dtype) if together is not None else torch.cat([w.detach().to(dtype) for w in weights])


def made_again(weights: Sequence[Tensor], x: Tensor) -> bool:
    """Return whether the backward pass stacks these weights anew rather than keep them: they are in x's precision as they are.

    Sharded weights are then freed in between, and gathered to where they were.
    """
    return all(weight.dtype == x.dtype for weight in weights)


def gradients(weights: Sequence[Tensor]) -> list[Tensor]:
    """Return the weights' gradients, made where there are none yet: one matrix where they stand below one another in memory."""
    for weight in weights:
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
    together = adjacent([w.grad for w in weights])
    return [together] if together is not None else [w.grad for w in weights if w.grad is not None]


def accumulate(weights: Sequence[Tensor], grad_NO: Tensor, x_NI: Tensor) -> None:
    """Add grad^T x to weight.grad for weights (O, I) below one another, products and sums in fp32.

    Weights in x's own precision, gathered from other ranks, have no gradient yet: theirs is the product.
    """
    if all(weight.grad is None and weight.dtype == x_NI.dtype for weight in weights):
        products = (grad_NO.t() @ x_NI).split([weight.size(0) for weight in weights])
        for weight, product in zip(weights, products, strict=True):
            weight.grad = product
        return
    start = 0
    for target in gradients(weights):
        part = grad_NO[:, start : start + target.size(0)].t()
        start += target.size(0)
        # Products of fp32 tensors add into fp32 by themselves; others need to be told the sum's dtype.
        if target.dtype == x_NI.dtype:
            target.addmm_(part, x_NI)
        else:
            torch.addmm(target, part, x_NI, out_dtype=torch.float32, out=target)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, matrix, *weights):  # type: ignore[no-untyped-def]
        flat, kept = x.reshape(-1, x.size(-1)), matrix
        if matrix is None:
            matrix = stacked(weights, x.dtype)
            kept = None if made_again(weights, x) else matrix
        ctx.save_for_backward(flat, kept)
        ctx.weights = weights
        return (flat @ matrix.t()).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        x, matrix = ctx.saved_tensors
        flat = grad.reshape(-1, grad.size(-1))
        accumulate(ctx.weights, flat, x)
        matrix = stacked(ctx.weights, x.dtype) if matrix is None else matrix
        dx = (flat @ matrix).view(*grad.shape[:-1], -1) if ctx.needs_input_grad[0] else None
        return dx, None, *(None for _ in ctx.weights)


class _GatedLinear(torch.autograd.Function):
    """`_Linear` and a small product of the first channels, whose gradient is added in place."""

    @staticmethod
    def forward(ctx, x, gate_weight, *weights):  # type: ignore[no-untyped-def]
        flat, matrix = x.reshape(-1, x.size(-1)), stacked(weights, x.dtype)
        small = gate_weight.detach().to(x.dtype)
        ctx.save_for_backward(flat, None if made_again(weights, x) else matrix, small)
        ctx.weights, ctx.gate_weight = weights, gate_weight
        out, gate = flat @ matrix.t(), flat[:, : small.size(1)] @ small.t()
        return out.view(*x.shape[:-1], -1), gate.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx, grad, dgate):  # type: ignore[no-untyped-def]
        x, matrix, small = ctx.saved_tensors
        flat, dgate = grad.reshape(-1, grad.size(-1)), dgate.reshape(-1, dgate.size(-1))
        accumulate(ctx.weights, flat, x)
        accumulate([ctx.gate_weight], dgate, x[:, : small.size(1)])
        matrix = stacked(ctx.weights, x.dtype) if matrix is None else matrix
        dx = flat @ matrix
        dx[:, : small.size(1)] += dgate @ small
        return dx.view(*grad.shape[:-1], -1), None, *(None for _ in ctx.weights)


class _MLP(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, up, down, up16, down16):  # type: ignore[no-untyped-def]
        from .triton_relu import relu_squared_

        flat = x.reshape(-1, x.size(-1))
        up16 = up.detach().to(x.dtype) if up16 is None else up16
        down16 = down.detach().to(x.dtype) if down16 is None else down16
        hidden = relu_squared_(flat @ up16.t())
        ctx.save_for_backward(flat, hidden, up16, down16)
        ctx.up, ctx.down = up, down
        return (hidden @ down16.t()).view(x.shape)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        from .triton_relu import relu_squared_backward_

        x, hidden, up16, down16 = ctx.saved_tensors
        flat = grad.reshape(-1, grad.size(-1))
        accumulate([ctx.down], flat, hidden)
        dhidden = relu_squared_backward_(flat @ down16, hidden)
        accumulate([ctx.up], dhidden, x)
        return (dhidden @ up16).view(grad.shape), None, None, None, None


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, up, gate, down, up16, down16):  # type: ignore[no-untyped-def]
        from .triton_swiglu import swiglu_forward

        flat, kept = x.reshape(-1, x.size(-1)), up16
        if up16 is None:
            up16 = stacked([up, gate], x.dtype)
            kept = None if made_again([up, gate], x) else up16
        down16 = down.detach().to(x.dtype) if down16 is None else down16
        both = flat @ up16.t()
        ctx.save_for_backward(flat, both, kept, down16)
        ctx.up, ctx.gate, ctx.down = up, gate, down
        return (swiglu_forward(both) @ down16.t()).view(x.shape)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        from .triton_swiglu import swiglu_backward_

        x, both, up16, down16 = ctx.saved_tensors
        flat = grad.reshape(-1, grad.size(-1))
        product = flat @ down16
        dboth = swiglu_backward_(product, both)
        accumulate([ctx.down], flat, product)
        accumulate([ctx.up, ctx.gate], dboth, x)
        up16 = stacked([ctx.up, ctx.gate], x.dtype) if up16 is None else up16
        return (dboth @ up16).view(grad.shape), None, None, None, None, None


def linear(x: Tensor, *weights: Tensor, matrix: Tensor | None = None) -> Tensor:
    """Return x (..., I) times each weight (O, I) transposed, side by side: (..., sum of O) in x's precision.

    Args:
        x: the input.
        *weights: each (O, I), fp32.
        matrix: the weights below one another in x's dtype, where the caller has them.
    """
    return _Linear.apply(x, matrix, *weights)


def gated_linear(x: Tensor, gate_weight: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return `linear`, and x's first channels times gate_weight (K, channels) transposed: (..., K)."""
    return _GatedLinear.apply(x, gate_weight, *weights)


def mlp(x: Tensor, up: Tensor, down: Tensor, up16: Tensor | None = None, down16: Tensor | None = None) -> Tensor:
    """Return relu(x up^T)^2 down^T; keeps relu^2 for the backward pass, not what went into it.

    Args:
        x: (..., C).
        up: (H, C), fp32.
        down: (C, H), fp32.
        up16: `up` in x's dtype, where the caller has it.
        down16: `down` in x's dtype, where the caller has it.
    """
    return _MLP.apply(x, up, down, up16, down16)


def swiglu(
    x: Tensor, up: Tensor, gate: Tensor, down: Tensor, up16: Tensor | None = None, down16: Tensor | None = None
) -> Tensor:  # fmt: skip
    """Return (silu(x gate^T) * x up^T) down^T; keeps the two factors for the backward pass, not their product.

    Args:
        x: (..., C).
        up: (H, C), fp32.
        gate: (H, C), fp32.
        down: (C, H), fp32.
        up16: `up` over `gate` in x's dtype, (2H, C), where the caller has it.
        down16: `down` in x's dtype, where the caller has it.
    """
    return _SwiGLU.apply(x, up, gate, down, up16, down16)
