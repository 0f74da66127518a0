"""Tensorwise fp8 matrix products for training (arXiv:2209.05433): e4m3 forward, e5m2 gradients, dense rate on Hopper and later.

Weights are quantised once an optimizer step, activations and gradients once a product, each in both
orders by one kernel; sharded weights whenever they have been gathered. Evaluation and inference stay in the compute dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .products import gradients, stacked
from .residual import GradientAmax

if TYPE_CHECKING:
    from .gpt import GPT

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
# Hardware's requirement on both sides of a matrix; below 128 quantisation costs more than it saves.
LEAST_SIDE, MULTIPLE = 128, 16


@dataclass(frozen=True)
class Quantised:
    """A weight (O, I) in e4m3: as it is, transposed, and the factor () that undoes the scaling."""

    rows: Tensor
    columns: Tensor
    inverse: Tensor


def fits(weights: Sequence[Tensor]) -> bool:
    """Return whether these weights can multiply in fp8 on this device."""
    sides = [n for w in weights for n in w.shape]
    capable = weights[0].is_cuda and torch.cuda.get_device_capability(weights[0].device) >= (9, 0)
    return capable and min(sides) >= LEAST_SIDE and all(n % MULTIPLE == 0 for n in sides)


@torch.no_grad()
def quantise_weights(weights: Sequence[Tensor]) -> Quantised:
    """Quantise weights below one another, by way of bf16, as products take them otherwise."""
    from .triton_fp8 import find_amax, quantise_both

    # By bf16 first, so that fp8 and bf16 runs of the same weights differ by fp8 alone.
    matrix = stacked(weights, torch.bfloat16)
    return Quantised(*quantise_both(matrix, find_amax(matrix), E4M3))


def _multiply(a_MK: Tensor, b_NK: Tensor, scale_a: Tensor, scale_b: Tensor, fast: bool) -> Tensor:
    """Return a b^T in bf16; both row-major, which is the order the hardware wants."""
    return torch._scaled_mm(a_MK, b_NK.t(), scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16, use_fast_accum=fast)


def _add_gradient(weights: Sequence[Tensor], product: Tensor) -> None:
    # Gathered weights in the products' dtype: FSDP2 takes their gradient from `.grad` and sums it in fp32.
    if all(weight.grad is None and weight.dtype == product.dtype for weight in weights):
        for weight, part in zip(weights, product.split([w.size(0) for w in weights]), strict=True):
            weight.grad = part
        return
    targets = gradients(weights)
    for target, part in zip(targets, product.split([t.size(0) for t in targets]), strict=True):
        target += part


def _entering(x: Tensor, amax: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Quantise a product's input (..., I): as it is and transposed, both flat, and the factor that undoes the scaling."""
    from .triton_fp8 import find_amax, quantise_both

    flat = x.reshape(-1, x.size(-1))
    return quantise_both(flat, find_amax(flat) if amax is None else amax, E4M3)


def _returning(grad: Tensor, found: GradientAmax | None) -> tuple[Tensor, Tensor, Tensor]:
    """Quantise the gradient of a product's output likewise; where who computed it knows its largest magnitude, by that."""
    from .triton_fp8 import find_amax, quantise_both

    flat, amax = grad.reshape(-1, grad.size(-1)), found.take() if found is not None else None
    return quantise_both(flat, find_amax(flat) if amax is None else amax, E5M2)


def _held(quantised: Quantised | None, weights: Sequence[Tensor]) -> Quantised:
    """Return what is held of weights in fp8, or quantise them now."""
    return quantise_weights(weights) if quantised is None else quantised


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, amax: Tensor | None, quantised: Quantised | None, gate_weight: Tensor | None,
        gradient_amax: GradientAmax | None, *weights: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        rows, columns, inverse = _entering(x, amax)
        ctx.quantised, ctx.weights, ctx.gate_weight, ctx.gradient_amax = quantised, weights, gate_weight, gradient_amax
        small, first = None, None
        gate = x.new_empty(0)
        if gate_weight is not None:
            small = gate_weight.detach().to(x.dtype)
            first = x.reshape(-1, x.size(-1))[:, : small.size(1)].contiguous()
            gate = (first @ small.t()).view(*x.shape[:-1], -1)
        ctx.save_for_backward(columns, inverse, small, first)
        # Fast accumulation loses little in the forward pass; gradients keep full accumulation.
        held = _held(quantised, weights)
        out = _multiply(rows, held.rows, inverse, held.inverse, fast=True)
        return out.view(*x.shape[:-1], -1), gate

    @staticmethod
    def backward(ctx: Any, grad: Tensor, dgate: Tensor) -> tuple[Tensor | None, ...]:
        columns, inverse, small, first = ctx.saved_tensors
        g_rows, g_columns, g_inverse = _returning(grad, ctx.gradient_amax)
        _add_gradient(ctx.weights, _multiply(g_columns, columns, g_inverse, inverse, fast=False))
        held = _held(ctx.quantised, ctx.weights)
        dx = _multiply(g_rows, held.columns, g_inverse, held.inverse, fast=False)
        if small is not None:
            dgate = dgate.reshape(-1, dgate.size(-1))
            _add_gradient([ctx.gate_weight], dgate.t() @ first)
            dx[:, : small.size(1)] += dgate @ small
        return dx.view(*grad.shape[:-1], -1), None, None, None, None, *(None for _ in ctx.weights)


class _MLP(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, amax: Tensor | None, quantised_up: Quantised | None, quantised_down: Quantised | None,
        gradient_amax: GradientAmax | None, up: Tensor, down: Tensor,
    ) -> Tensor:  # fmt: skip
        from .triton_fp8 import find_amax, quantise_relu_squared

        rows, columns, inverse = _entering(x, amax)
        held_up, held_down = _held(quantised_up, [up]), _held(quantised_down, [down])
        hidden = _multiply(rows, held_up.rows, inverse, held_up.inverse, fast=True)
        amax_hidden = find_amax(hidden, signed=True)
        y_rows, y_inverse = quantise_relu_squared(hidden, amax_hidden)
        ctx.save_for_backward(columns, inverse, hidden, amax_hidden, y_inverse)
        ctx.up, ctx.down, ctx.quantised_up, ctx.quantised_down = up, down, quantised_up, quantised_down
        ctx.gradient_amax = gradient_amax
        return _multiply(y_rows, held_down.rows, y_inverse, held_down.inverse, fast=True).view(x.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from .triton_fp8 import find_amax, quantise_relu_squared_backward

        columns, inverse, hidden, amax_hidden, y_inverse = ctx.saved_tensors
        g_rows, g_columns, g_inverse = _returning(grad, ctx.gradient_amax)
        held_up, held_down = _held(ctx.quantised_up, [ctx.up]), _held(ctx.quantised_down, [ctx.down])
        dy = _multiply(g_rows, held_down.columns, g_inverse, held_down.inverse, fast=False)
        # The one pass over `hidden` also gives relu^2 again, transposed: keeping it would cost a byte an element.
        d_rows, d_columns, d_inverse, y_columns = quantise_relu_squared_backward(dy, find_amax(dy), hidden, amax_hidden)
        _add_gradient([ctx.down], _multiply(g_columns, y_columns, g_inverse, y_inverse, fast=False))
        _add_gradient([ctx.up], _multiply(d_columns, columns, d_inverse, inverse, fast=False))
        dx = _multiply(d_rows, held_up.columns, d_inverse, held_up.inverse, fast=False)
        return dx.view(grad.shape), None, None, None, None, None, None


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, amax: Tensor | None, quantised_both: Quantised | None, quantised_down: Quantised | None,
        gradient_amax: GradientAmax | None, up: Tensor, gate: Tensor, down: Tensor,
    ) -> Tensor:  # fmt: skip
        from .triton_fp8_swiglu import quantise_swiglu, swiglu_largest

        rows, columns, inverse = _entering(x, amax)
        held_both, held_down = _held(quantised_both, [up, gate]), _held(quantised_down, [down])
        both = _multiply(rows, held_both.rows, inverse, held_both.inverse, fast=True)
        largest = swiglu_largest(both)
        y_rows, y_inverse = quantise_swiglu(both, largest)
        ctx.save_for_backward(columns, inverse, both, largest, y_inverse)
        ctx.weights, ctx.quantised_both, ctx.quantised_down = (up, gate, down), quantised_both, quantised_down
        ctx.gradient_amax = gradient_amax
        return _multiply(y_rows, held_down.rows, y_inverse, held_down.inverse, fast=True).view(x.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from .triton_fp8 import find_amax
        from .triton_fp8_swiglu import quantise_swiglu_backward

        columns, inverse, both, largest, y_inverse = ctx.saved_tensors
        up, gate, down = ctx.weights
        g_rows, g_columns, g_inverse = _returning(grad, ctx.gradient_amax)
        held_both, held_down = _held(ctx.quantised_both, [up, gate]), _held(ctx.quantised_down, [down])
        dy = _multiply(g_rows, held_down.columns, g_inverse, held_down.inverse, fast=False)
        # As in `_MLP`, the product is made again, transposed, by the pass that its gradients need anyway.
        d_rows, d_columns, d_inverse, y_columns = quantise_swiglu_backward(dy, find_amax(dy), both, largest)
        _add_gradient([down], _multiply(g_columns, y_columns, g_inverse, y_inverse, fast=False))
        _add_gradient([up, gate], _multiply(d_columns, columns, d_inverse, inverse, fast=False))
        dx = _multiply(d_rows, held_both.columns, d_inverse, held_both.inverse, fast=False)
        return dx.view(grad.shape), None, None, None, None, None, None, None


def fp8_linear(
    x: Tensor,
    quantised: Quantised | None,
    *weights: Tensor,
    amax: Tensor | None = None,
    gradient_amax: GradientAmax | None = None,
) -> Tensor:
    """Return x (..., I) bf16 times each weight (O, I) transposed, side by side: (..., sum of O).

    Args:
        x: the input, bf16.
        quantised: the weights below one another, in fp8; None: they are quantised for each pass.
        *weights: the weights, which get the gradient.
        amax: (1,) largest magnitude of x, looked for if None.
        gradient_amax: receives the largest magnitude of the output's gradient.
    """
    return _Linear.apply(x, amax, quantised, None, gradient_amax, *weights)[0]


def fp8_gated_linear(
    x: Tensor, quantised: Quantised | None, gate_weight: Tensor, *weights: Tensor, amax: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return `fp8_linear`, and x's first channels times gate_weight (K, channels) transposed in bf16: (..., K)."""
    return _Linear.apply(x, amax, quantised, gate_weight, None, *weights)


def fp8_mlp(
    x: Tensor, quantised_up: Quantised | None, quantised_down: Quantised | None, up: Tensor, down: Tensor,
    *, amax: Tensor | None = None, gradient_amax: GradientAmax | None = None,
) -> Tensor:  # fmt: skip
    """Return relu(x up^T)^2 down^T."""
    return _MLP.apply(x, amax, quantised_up, quantised_down, gradient_amax, up, down)


def fp8_swiglu(
    x: Tensor, quantised_both: Quantised | None, quantised_down: Quantised | None, up: Tensor, gate: Tensor, down: Tensor, *,
    amax: Tensor | None = None, gradient_amax: GradientAmax | None = None,
) -> Tensor:  # fmt: skip
    """Return (silu(x gate^T) * x up^T) down^T. quantised_both: of up over gate."""
    return _SwiGLU.apply(x, amax, quantised_both, quantised_down, gradient_amax, up, gate, down)


def enable_fp8(model: GPT) -> int:
    """Let the blocks' matrices multiply in fp8 while training; returns how many do. The head stays in bf16.

    Matrices with a side under 128 or not a multiple of 16 keep bf16, and so does everything in eval mode
    or under no_grad. Whoever changes weights calls `model.weights_changed()`.
    """
    model.fp8 = True
    return refresh_fp8(model)


def enable_gathered_fp8(model: GPT) -> None:
    """Do as `enable_fp8` for sharded weights: nothing of them is held in fp8, products quantise what was gathered for them."""
    for part in model.parts():
        part.fp8 |= {name: None for name, weights in part.products().items() if fits(weights)}


def refresh_fp8(model: GPT) -> int:
    """Quantise the weights as they are now, in place where they have been before; returns how many matrices."""
    count = 0
    for part in model.parts():
        for name, weights in part.products().items():
            if not fits(weights):
                continue
            # Once a step, however often a block is used in it.
            made, held = quantise_weights(weights), part.fp8.get(name)
            if held is None:
                part.fp8[name] = made
            else:  # recorded work reads them where they were
                for place, tensor in ((held.rows, made.rows), (held.columns, made.columns), (held.inverse, made.inverse)):
                    place.copy_(tensor)
            count += len(weights)
    return count
