"""Routed experts frozen in fp8 with one scale for a block of weights, as DeepSeek-V3's files hold them.

A rank holds its share of a layer's experts: codes of one byte, and scales. A product turns a few experts at a time into bf16,
forward and backward, by the formula of the conversion (fp32 product of code and scale, rounded to bf16): what is computed with
is bit for bit what a folder converted to bf16 holds, and no more of it than `DECODED_BYTES` exists at any moment. Where experts
have few rows on a GPU, as in decoding, weights exist a tile at a time alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from windtunnel.recipe import UserError

from .blocks import DECODED_BYTES
from .expert_parallel import ExpertGroup, through_experts
from .frozen_fp8 import E4M3, holds_experts

PARTS = {"gate_up_proj": 2, "down_proj": 1}
"""transformers' tensors of all experts, and how many matrices of a file each expert has in them, one above the other."""


@dataclass(frozen=True)
class BlockFP8:
    """A rank's share of one of these tensors.

    Attributes:
        codes: (E, P, O, I) e4m3, P matrices of each expert that are one above the other.
        scale: (E, P, block rows, block columns) fp32.
        block: rows and columns that share a scale; the last ones are cut off by the matrix's edge.
    """

    codes: Tensor
    scale: Tensor
    block: tuple[int, int]

    @property
    def outputs(self) -> int:
        """Return how many rows an expert's weight has."""
        return self.codes.size(1) * self.codes.size(2)

    @property
    def inputs(self) -> int:
        """Return the columns of an expert's weight."""
        return self.codes.size(3)

    def decode(self, first: int, last: int, dtype: torch.dtype) -> Tensor:
        """Return the weights (last - first, P * O, I) of experts; rounded to bf16 whatever the dtype."""
        codes, scale = self.codes[first:last], self.scale[first:last]
        if codes.is_cuda:
            from .triton_experts import decode_blocks, decodes_here  # Triton is there where a GPU is

            if decodes_here(codes):
                return decode_blocks(codes, scale, self.block).flatten(1, 2).to(dtype)
        # PyTorch's own operations, on CPUs and where the kernel does not apply: the same formula, hence the same bits.
        rows, columns = codes.shape[2:]
        weight = codes.to(torch.bfloat16)
        scale = scale.repeat_interleave(self.block[0], 2)[:, :, :rows]
        if columns % self.block[1]:
            weight.mul_(scale.repeat_interleave(self.block[1], 3)[..., :columns])
        else:
            weight.unflatten(3, (-1, self.block[1])).mul_(scale[..., None])
        return weight.flatten(1, 2).to(dtype)

    def some(self, counts: list[int], dtype: torch.dtype) -> Iterator[tuple[Tensor, int, int, list[int]]]:
        """Yield weights of a few experts that have rows, with the first row, the one after the last, and rows of each."""
        # As many experts as fit into that much memory, at least one.
        step = max(1, DECODED_BYTES // (2 * self.outputs * self.inputs))
        start = 0
        for first in range(0, len(counts), step):
            here = counts[first : first + step]
            end = start + sum(here)
            if end > start:
                yield self.decode(first, first + len(here), dtype), start, end, here
            start = end


class _Product(torch.autograd.Function):
    """Rows (S, I), sorted by expert, each times its expert's weight transposed. Nothing but the codes is kept for backward."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weights: BlockFP8, counts: list[int]) -> Tensor:
        ctx.given = weights, counts
        out = rows.new_empty(rows.size(0), weights.outputs)
        if rows.is_cuda and rows.dtype == torch.bfloat16:
            from .triton_experts import multiplies_few, multiply_few

            # Few rows, as in decoding: decoding whole matrices would read and write far more than the products.
            if multiplies_few(weights.codes, weights.block, counts):
                multiply_few(rows.contiguous(), weights.codes, weights.scale, weights.block, counts, out)
                return out
        for weight, start, end, here in weights.some(counts, rows.dtype):
            _grouped(rows[start:end], weight.transpose(1, 2), here, out[start:end])
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        weights, counts = ctx.given
        out = grad.new_empty(grad.size(0), weights.inputs)
        for weight, start, end, here in weights.some(counts, grad.dtype):
            _grouped(grad[start:end].contiguous(), weight, here, out[start:end])
        return out, None, None


def _grouped(rows: Tensor, weight: Tensor, counts: list[int], out: Tensor) -> None:
    """Multiply rows (S, I), so many for each of some matrices (n, I, O), into `out` (S, O)."""
    aligned = rows.dtype == torch.bfloat16 and weight.size(1) % 8 == 0 and weight.size(2) % 8 == 0
    if rows.is_cuda and aligned and len(counts) > 1:
        # One kernel for all: with a few rows each, products one by one are bound by their launches.
        ends = torch.tensor(counts, device=rows.device).cumsum(0, dtype=torch.int32)
        out.copy_(F.grouped_mm(rows, weight, offs=ends))
        return
    start = 0
    for number, count in enumerate(counts):
        if count:
            torch.mm(rows[start : start + count], weight[number], out=out[start : start + count])
        start += count


@dataclass(frozen=True)
class SharedExperts:
    """What is known of an `FP8Experts`: its ranks, experts of the layer over all ranks, and the blocks of its scales.

    Attributes:
        shapes: of transformers' tensors of all experts: 'gate_up_proj' and 'down_proj', (E, P * O, I).
    """

    group: ExpertGroup
    count: int
    block: tuple[int, int]
    shapes: dict[str, tuple[int, int, int]]

    @staticmethod
    def of(module: nn.Module) -> SharedExperts | None:
        """Return what is known of a module whose experts are frozen in fp8 blocks; None of any other."""
        return getattr(module, "shared_experts", None)

    @property
    def own(self) -> range:
        """Return the experts of this rank."""
        return self.group.own(self.count)

    @property
    def parameters(self) -> int:
        """Count the weights of all experts of the layer, on whatever ranks."""
        return sum(count * rows * columns for count, rows, columns in self.shapes.values())


class FP8Experts(nn.Module):
    """Experts of one layer, a share of them on each rank; mixed into transformers' class, whose activation is used."""

    shared_experts: SharedExperts
    _apply_gate: Any

    def weights(self, name: str) -> BlockFP8:
        """Return this rank's part of 'gate_up_proj' or 'down_proj'."""
        return BlockFP8(self.get_buffer(f"{name}_codes"), self.get_buffer(f"{name}_blocks"), self.shared_experts.block)

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Send each token through its experts, on whatever ranks they are.

        Args:
            hidden_states: (N, C), this rank's tokens.
            top_k_index: (N, K) numbers of experts.
            top_k_weights: (N, K) shares of the experts in each token's result.

        Returns:
            (N, C).
        """
        facts = self.shared_experts
        return through_experts(
            hidden_states, top_k_index, top_k_weights, count=facts.count, group=facts.group, local=self._local
        )  # fmt: skip

    def _local(self, rows: Tensor, counts: list[int]) -> Tensor:
        x: Tensor = _Product.apply(rows, self.weights("gate_up_proj"), counts)
        x = _Product.apply(self._apply_gate(x), self.weights("down_proj"), counts)
        return x


def share_experts_fp8(experts: nn.Module, group: ExpertGroup, block: tuple[int, int]) -> None:
    """Turn transformers' module of all experts of a layer, without memory, into one of this rank's share, in place.

    Raises:
        UserError: the experts cannot be shared out evenly, or are laid out in a way that is not known here.
    """
    plain = ("has_bias", False), ("is_transposed", False), ("has_gate", True), ("is_concatenated", True)
    if not holds_experts(experts) or any(getattr(experts, key, value) != value for key, value in plain):
        raise UserError(
            f"model.weights: fp8-experts cannot be made of {type(experts).__name__}, whose layout is not known here",
            "set model.weights: bf16",
        )
    shapes: dict[str, tuple[int, int, int]] = {}
    for name, parts in PARTS.items():
        weight = experts._parameters.pop(name)
        assert weight is not None
        count, rows, columns = shapes[name] = tuple(weight.shape)  # type: ignore[assignment]
        rows, own = rows // parts, len(group.own(count))
        grid = -(-rows // block[0]), -(-columns // block[1])
        codes = torch.empty(own, parts, rows, columns, dtype=E4M3, device=weight.device)
        scale = torch.empty(own, parts, *grid, dtype=torch.float32, device=weight.device)
        # Buffers that are not saved: FSDP2 leaves them where they are, and checkpoints hold what is trained alone.
        experts.register_buffer(f"{name}_codes", codes, persistent=False)
        experts.register_buffer(f"{name}_blocks", scale, persistent=False)
    experts.shared_experts = SharedExperts(group, count, block, shapes)  # type: ignore[assignment]
    # The class is changed, not the module: transformers' own has the activation, and others refer to it.
    experts.__class__ = _shared_class(type(experts))  # type: ignore[arg-type]  # classes can be hashed


@cache
def _shared_class(kind: type[nn.Module]) -> type[nn.Module]:
    return type(f"FP8{kind.__name__}", (FP8Experts, kind), {})


def shared_experts_of(model: nn.Module) -> dict[str, FP8Experts]:
    """Return a model's modules of shared experts by name, in the order of its layers."""
    return {name: module for name, module in model.named_modules() if isinstance(module, FP8Experts)}
