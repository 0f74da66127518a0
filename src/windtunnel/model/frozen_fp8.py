"""Frozen weights in fp8: one byte a weight (e4m3) and one power of two a row, made bf16 again for each product.

The bytes are held as a bf16 tensor of half the width, because that is what FSDP2 shards and gathers as it is
in every version of PyTorch. Power-of-two scales make the dequantised weights exact in bf16.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from windtunnel.recipe import UserError

E4M3 = torch.float8_e4m3fn
E4M3_MAX = 448.0


@dataclass(frozen=True)
class FrozenFP8:
    """Which parameters of a module were replaced, and their shapes (..., O, I).

    For the weight `w` the module holds `w_fp8` (..., O, I / 2) bf16 and `w_scale` (..., O, 1) bf16, neither trained.
    """

    shapes: dict[str, torch.Size]

    @staticmethod
    def of(module: nn.Module) -> FrozenFP8 | None:
        """Return the record of a module whose weights are frozen in fp8."""
        return getattr(module, "frozen_fp8", None)

    @property
    def held(self) -> set[str]:
        """Return the names of what the module has in the weights' place."""
        return {f"{name}{suffix}" for name in self.shapes for suffix in ("_fp8", "_scale")}

    def original_shapes(self, shapes: dict[str, torch.Size]) -> dict[str, torch.Size]:
        """Return the shapes of a module's parameters as they were before."""
        return {key: shape for key, shape in shapes.items() if key not in self.held} | self.shapes

    def encode(self, full: dict[str, Tensor]) -> dict[str, Tensor]:
        """Turn a module's parameters as they were before into those it holds now."""
        held = {key: tensor for key, tensor in full.items() if key not in self.shapes}
        for name in self.shapes:
            held[f"{name}_fp8"], held[f"{name}_scale"] = encode_fp8(full[name])
        return held

    def decode(self, held: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
        """Return the decoded weights in `dtype`, the other way round; in bf16 and wider they are exact."""
        full = {key: tensor for key, tensor in held.items() if key not in self.held}
        for name in self.shapes:
            full[name] = decode_fp8(held[f"{name}_fp8"], held[f"{name}_scale"], dtype)
        return full


def encode_fp8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Turn (..., O, I) into its bytes as (..., O, I / 2) bf16 and a power of two for each row, (..., O, 1) bf16."""
    largest = weight.abs().amax(-1, keepdim=True).float().clamp(min=1e-30)
    # The least power of two by which the largest weight fits: decoding by it is exact in bf16.
    scale = torch.exp2(torch.ceil(torch.log2(largest / E4M3_MAX)))
    return (weight.float() / scale).to(E4M3).view(torch.bfloat16), scale.to(torch.bfloat16)


def decode_fp8(packed: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return the weight (..., O, I), without its scale if that is None.

    Sharding that computes in fp32 hands `packed` over in fp32; as no pair of codes is a NaN of bf16, that loses nothing.
    """
    weight = packed.to(torch.bfloat16).view(E4M3).to(dtype)
    return weight if scale is None else weight.mul_(scale)


class FrozenFP8Linear(nn.Linear):
    """A linear layer whose weight lies in `weight_fp8` and `weight_scale`."""

    weight_fp8: nn.Parameter
    weight_scale: nn.Parameter

    def forward(self, input: Tensor) -> Tensor:
        """Return the product (..., O) of `input` (..., I) and the weight, plus the bias."""
        # A row's scale is that of an output: it is multiplied into the few outputs, not into the weights.
        out = _linear(input, self.weight_fp8) * self.weight_scale.view(-1)
        return out if self.bias is None else out + self.bias


def freeze_linear_fp8(linear: nn.Linear) -> None:
    """Turn a linear layer, on any device or none, into a FrozenFP8Linear in place; its values are encoded."""
    _replace(linear, ["weight"])
    linear.__class__ = FrozenFP8Linear


def freeze_experts_fp8(experts: nn.Module) -> None:
    """Do the same for a module of transformers that holds all experts' weights in two tensors."""
    if getattr(experts, "has_bias", False) or getattr(experts, "is_transposed", False) or not getattr(experts, "has_gate", True):
        raise UserError(
            f"model.weights: fp8 experts cannot be made of {type(experts).__name__}, whose layout is not known here",
            "set model.weights: bf16",
        )
    _replace(experts, ["gate_up_proj", "down_proj"])
    experts.__class__ = _frozen_class(type(experts))  # type: ignore[arg-type]  # classes can be hashed


def holds_experts(module: nn.Module) -> bool:
    """Return whether this is one of transformers' modules with all experts' weights in two tensors (E, O, I)?"""
    names = ("gate_up_proj", "down_proj")
    return all(isinstance(p := module._parameters.get(name), nn.Parameter) and p.dim() == 3 for name in names)


def _replace(module: nn.Module, names: list[str]) -> None:
    record = FrozenFP8({name: getattr(module, name).shape for name in names})
    for name, shape in record.shapes.items():
        if shape[-1] % 2:
            raise UserError(
                f"model.weights: fp8 needs even widths; {type(module).__name__}.{name} is {tuple(shape)}",
                "set model.weights: bf16",
            )
        weight = module._parameters.pop(name)
        assert weight is not None
        # Without memory there is nothing to encode yet: it comes when the files are read.
        packed, scale = encode_fp8(weight.detach()) if not weight.is_meta else _empty(shape)
        for suffix, tensor in (("_fp8", packed), ("_scale", scale)):
            module.register_parameter(f"{name}{suffix}", nn.Parameter(tensor, requires_grad=False))
    module.frozen_fp8 = record  # type: ignore[assignment]


def _empty(shape: torch.Size) -> tuple[Tensor, Tensor]:
    held = [(*shape[:-1], shape[-1] // 2), (*shape[:-1], 1)]
    packed, scale = (torch.empty(size, dtype=torch.bfloat16, device="meta") for size in held)
    return packed, scale


# Opaque to torch.compile, so that the bf16 weight is never kept for the backward pass but made again there.


@torch.library.custom_op("windtunnel::frozen_fp8_linear", mutates_args=())
def _linear(x: Tensor, packed: Tensor) -> Tensor:
    return F.linear(x, decode_fp8(packed, None, x.dtype))


@_linear.register_fake
def _(x: Tensor, packed: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], packed.shape[0])


@torch.library.custom_op("windtunnel::frozen_fp8_linear_backward", mutates_args=())
def _linear_backward(grad: Tensor, packed: Tensor) -> Tensor:
    return grad @ decode_fp8(packed, None, grad.dtype)


@_linear_backward.register_fake
def _(grad: Tensor, packed: Tensor) -> Tensor:
    return grad.new_empty(*grad.shape[:-1], packed.shape[1] * 2)


def _linear_setup(ctx, inputs, output):  # type: ignore[no-untyped-def]
    ctx.save_for_backward(inputs[1])


def _linear_gradient(ctx, grad):  # type: ignore[no-untyped-def]
    return torch.ops.windtunnel.frozen_fp8_linear_backward(grad, ctx.saved_tensors[0]), None


_linear.register_autograd(_linear_gradient, setup_context=_linear_setup)


@torch.library.custom_op("windtunnel::frozen_fp8_grouped", mutates_args=())
def _grouped(x: Tensor, packed: Tensor, scale: Tensor, ends: Tensor) -> Tensor:
    """Return rows of x (S, I), sorted by expert, each times its expert's weight (O, I) transposed; ends (E,) int32."""
    return F.grouped_mm(x, decode_fp8(packed, scale, x.dtype).transpose(-2, -1), offs=ends)


@_grouped.register_fake
def _(x: Tensor, packed: Tensor, scale: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], packed.shape[1])


@torch.library.custom_op("windtunnel::frozen_fp8_grouped_backward", mutates_args=())
def _grouped_backward(grad: Tensor, packed: Tensor, scale: Tensor, ends: Tensor) -> Tensor:
    return F.grouped_mm(grad.contiguous(), decode_fp8(packed, scale, grad.dtype), offs=ends)


@_grouped_backward.register_fake
def _(grad: Tensor, packed: Tensor, scale: Tensor, ends: Tensor) -> Tensor:
    return grad.new_empty(grad.shape[0], packed.shape[2] * 2)


def _grouped_setup(ctx, inputs, output):  # type: ignore[no-untyped-def]
    ctx.save_for_backward(*inputs[1:])


def _grouped_gradient(ctx, grad):  # type: ignore[no-untyped-def]
    return torch.ops.windtunnel.frozen_fp8_grouped_backward(grad, *ctx.saved_tensors), None, None, None


_grouped.register_autograd(_grouped_gradient, setup_context=_grouped_setup)


class FrozenFP8Experts(nn.Module):
    """Experts whose weights lie in `gate_up_proj_fp8`, `down_proj_fp8` and their scales; mixed into transformers' class."""

    gate_up_proj_fp8: nn.Parameter
    gate_up_proj_scale: nn.Parameter
    down_proj_fp8: nn.Parameter
    down_proj_scale: nn.Parameter
    _apply_gate: Any

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Send each token through its experts: sort the rows by expert, two grouped products, and back.

        Args:
            hidden_states: (N, C).
            top_k_index: (N, K) numbers of experts.
            top_k_weights: (N, K) shares of the experts in each token's result.

        Returns:
            (N, C).
        """
        K = top_k_index.size(-1)
        chosen, order = torch.sort(top_k_index.reshape(-1))
        counted = chosen.float() if chosen.device.type == "cpu" else chosen.int()  # what histc takes on each
        count = self.gate_up_proj_fp8.size(0)
        ends = torch.cumsum(torch.histc(counted, bins=count, min=0, max=count - 1), dim=0, dtype=torch.int32)
        x = hidden_states[order // K]
        x = self._apply_gate(_grouped(x, self.gate_up_proj_fp8, self.gate_up_proj_scale, ends))
        x = _grouped(x, self.down_proj_fp8, self.down_proj_scale, ends)
        x = x * top_k_weights.reshape(-1)[order][:, None]
        back = torch.empty_like(order)
        back[order] = torch.arange(order.size(0), device=order.device)
        return x[back].view(-1, K, x.size(-1)).sum(dim=1).to(hidden_states.dtype)


@cache
def _frozen_class(kind: type[nn.Module]) -> type[nn.Module]:
    """Return one class for all blocks' experts, so that torch.compile compiles them once."""
    return type(f"FrozenFP8{kind.__name__}", (FrozenFP8Experts, kind), {})
