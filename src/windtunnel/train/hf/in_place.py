"""Linear layers and gated MLPs whose backward pass works where its inputs lie.

What a compiler makes of transformers' and peft's own formulas writes everything anew that is as wide as an MLP: in the
backward pass of a block of Qwen2.5-7B beside an adapter of rank 16, eleven tensors of 16,384 x 18,944 were alive at once, five
GB more than are needed. Here gate, up and the gradient of their product are three, and stay the same three.

The formulas are those of transformers and peft; only roundings of bf16 differ, of which there are fewer.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FORMULA = "self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))"
"""What a gated MLP computes, in transformers' words."""


def work_in_place(blocks: Sequence[nn.Module]) -> None:
    """Make linear layers with an adapter, and MLPs of silu(gate) * up, overwrite their inputs in the backward pass.

    Call it before the blocks are compiled, and only for blocks that are recomputed in the backward pass: where activations are
    kept, the compiler copies them before they are overwritten, and nothing is saved.
    """
    found = [module for block in blocks for module in block.modules()]
    chosen: list[tuple[nn.Module, type]] = [(module, _GatedForward) for module in found if _is_gated(module)]
    chosen += [(module, _AdaptedForward) for module in found if _adapted_linear(module) is not None]
    for module, forward in chosen:
        # The class is another, not one module's `forward`: that a compiler would look at block by block, and compile each anew.
        module.__class__ = _mixed(forward, type(module))  # type: ignore[arg-type]  # classes can be hashed


@functools.cache
def _mixed(forward: type, kind: type[nn.Module]) -> type[nn.Module]:
    return type(f"InPlace{kind.__name__}", (forward, kind), {})


def _is_gated(module: nn.Module) -> bool:
    """Return whether a module is an MLP of transformers by `FORMULA`, with SiLU and a plain last layer."""
    if not {"gate_proj", "up_proj", "down_proj", "act_fn"} <= {name for name, _ in module.named_children()}:
        return False
    try:
        written = " ".join(inspect.getsource(type(module).forward).split())
    except (OSError, TypeError):
        return False
    down: Any = module.down_proj
    plain = _is_plain(down) or _adapted_linear(down) is not None
    return FORMULA in written and type(module.act_fn).__name__ in ("SiLU", "SiLUActivation") and plain


def _is_plain(module: nn.Module) -> bool:
    """Return whether a module is a linear layer as PyTorch has it: not one whose weight is held in another way."""
    return type(module) is nn.Linear


def _adapted_linear(module: nn.Module) -> nn.Linear | None:
    """Return the frozen layer of a linear layer with one plain adapter; None of any other module."""
    if not hasattr(module, "lora_A"):
        return None  # before peft is imported, which takes a second that training of all weights need not wait
    from peft.tuners.lora import Linear

    if type(module) is not Linear or module.active_adapters != ["default"] or module.lora_variant:
        return None
    base = module.get_base_layer()
    plain = _is_plain(base) and not base.weight.requires_grad and isinstance(module.lora_dropout["default"], nn.Identity)
    return base if plain else None  # type: ignore[return-value]


def _parts(module: Any) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, float]:
    """Return a linear layer's weight and bias, and its adapter's two matrices and scale; None where it has none.

    Read at each call: within a block's forward pass parameters are exchanged for what they are in compute precision.
    """
    if isinstance(module, nn.Linear):
        return module.weight, module.bias, None, None, 0.0
    base = module.base_layer
    return base.weight, base.bias, module.lora_A["default"].weight, module.lora_B["default"].weight, module.scaling["default"]


class _AdaptedForward:
    """Mixed into peft's linear layer."""

    def forward(self, x: Tensor) -> Tensor:
        weight, bias, a, b, scale = _parts(self)
        assert a is not None
        assert b is not None
        out, _ = adapted_linear(x.reshape(-1, x.size(-1)), weight, bias, a, b, scale)
        return out.view(*x.shape[:-1], -1)


class _GatedForward:
    """Mixed into an MLP of transformers."""

    gate_proj: nn.Module
    up_proj: nn.Module
    down_proj: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.size(-1))
        return gated_down(self.gate_proj(rows), self.up_proj(rows), *_parts(self.down_proj)).view(*x.shape[:-1], -1)


# What goes forward is one operation each: a compiler that is told to compute a block again in its backward pass must see whole
# operations, or it keeps what is within them (PyTorch 2.11). Their backward passes are open to it.


@torch.library.custom_op("windtunnel::adapted_linear", mutates_args=())
def adapted_linear(x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Return y = x W^T + bias + scale (x A^T) B^T (N, O), and x A^T (N, r).

    Args:
        x: (N, I).
        weight: W (O, I), frozen.
        bias: (O,), frozen.
        a: (r, I).
        b: (O, r).
        scale: of what the adapter adds.
    """
    low = x @ a.T
    return F.linear(x, weight, bias).addmm_(low, b.T, alpha=scale), low


@adapted_linear.register_fake
def _(x, weight, bias, a, b, scale):  # type: ignore[no-untyped-def]
    return x.new_empty(x.size(0), weight.size(0)), x.new_empty(x.size(0), a.size(0))


def _keep_adapted(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, _, a, b, ctx.scale = inputs
    ctx.save_for_backward(x, output[1], weight, a, b)
    ctx.set_materialize_grads(False)


def _differentiate_adapted(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    x, low, weight, a, b = ctx.saved_tensors
    toward = (grad @ b) * ctx.scale
    of_x = grad @ weight
    add_product_(of_x, toward, a, 1.0)
    return of_x, None, None, toward.T @ x, (grad.T @ low) * ctx.scale, None


adapted_linear.register_autograd(_differentiate_adapted, setup_context=_keep_adapted)


@torch.library.custom_op("windtunnel::gated_down", mutates_args=())
def gated_down(
    gate: Tensor, up: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor | None, b: Tensor | None, scale: float
) -> Tensor:
    """Return z W^T + bias, and what an adapter adds as in `adapted_linear`, of z = silu(gate) * up; gate and up are (N, I)."""
    product = _swiglu(gate, up)
    out = F.linear(product, weight, bias)
    return out if a is None or b is None else out.addmm_(product @ a.T, b.T, alpha=scale)


@gated_down.register_fake
def _(gate, up, weight, bias, a, b, scale):  # type: ignore[no-untyped-def]
    return gate.new_empty(gate.size(0), weight.size(0))


def _keep_gated(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    # Not the product, nor its product with A: both are made again from these.
    gate, up, weight, _, a, b, ctx.scale = inputs
    ctx.save_for_backward(gate, up, weight, a, b)


def _differentiate_gated(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    gate, up, weight, a, b = ctx.saved_tensors
    _, _, need_weight, need_bias = ctx.needs_input_grad[:4]
    wide = grad @ weight
    if a is not None:
        toward = (grad @ b) * ctx.scale
        add_product_(wide, toward, a, 1.0)
    # From here on `wide` is the product itself, and gate and up are their own gradients.
    swiglu_backward_(wide, gate, up)
    of_weight, of_bias = grad.T @ wide if need_weight else None, grad.sum(0) if need_bias else None
    if a is None:
        return gate, up, of_weight, of_bias, None, None, None
    return gate, up, of_weight, of_bias, toward.T @ wide, (grad.T @ (wide @ a.T)) * ctx.scale, None


gated_down.register_autograd(_differentiate_gated, setup_context=_keep_gated)


def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    if gate.is_cuda:
        from windtunnel.model import swiglu_of

        return swiglu_of(gate, up)
    return F.silu(gate) * up


@torch.library.custom_op("windtunnel::add_product_", mutates_args=("total",))
def add_product_(total: Tensor, a: Tensor, b: Tensor, scale: float) -> None:
    """Add scale a b to total (N, M) in place; the sum is rounded once."""
    total.addmm_(a, b, alpha=scale)


@torch.library.custom_op("windtunnel::swiglu_backward_", mutates_args=("grad", "gate", "up"))
def swiglu_backward_(grad: Tensor, gate: Tensor, up: Tensor) -> None:
    """Turn gate and up into their gradients, and the gradient of z = silu(gate) * up into z, in place; all (N, H)."""
    if grad.is_cuda:
        from windtunnel.model import swiglu_backward_in_place_

        swiglu_backward_in_place_(grad, gate, up)
        return
    sigmoid = torch.sigmoid(gate.float())
    silu = gate.float() * sigmoid
    slope = sigmoid * (1 + gate.float() * (1 - sigmoid))
    product, of_gate, of_up = silu * up.float(), grad.float() * up.float() * slope, grad.float() * silu
    grad.copy_(product)
    gate.copy_(of_gate)
    up.copy_(of_up)
