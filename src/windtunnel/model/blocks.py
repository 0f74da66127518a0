"""The blocks of language models as plain arithmetic, without torch: matrices, norms, experts, attention.

One arithmetic for the package's own GPTs (shape.py) and for Hugging Face models (hf.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

DECODED_BYTES = 256 << 20
"""Of experts that are frozen in fp8 blocks, weights in bf16 at a time, unless a single expert's matrix is larger."""

Part = Literal["attention", "mlp", "shared", "router", "experts"]
Targets = Literal["attention", "all"]


@dataclass(frozen=True)
class Linear:
    """A matrix of a block, or one matrix of each expert.

    Attributes:
        module: where transformers keeps it inside the block, such as self_attn.q_proj.
        part: attention; mlp (dense); shared (an expert that every token passes); router (it chooses experts, or gates
            the shared one); experts (routed ones, held as one tensor over all experts rather than as nn.Linear).
        count: how many there are; used: how many of them multiply one token.
    """

    module: str
    part: Part
    inputs: int
    outputs: int
    bias: bool = False
    count: int = 1
    used: int = 1

    @property
    def matrix_parameters(self) -> int:
        """Count the parameters that are multiplied, over all experts."""
        return self.count * self.inputs * self.outputs

    @property
    def active_matrix_parameters(self) -> int:
        """Count the parameters that one token is multiplied with; its forward pass takes twice as many FLOPs."""
        return self.used * self.inputs * self.outputs

    @property
    def parameters(self) -> int:
        """Count all parameters, those of every expert included."""
        # `bias` is a truth value: one number for each output, or none.
        return self.matrix_parameters + self.count * self.outputs * self.bias

    @property
    def active_parameters(self) -> int:
        """Count the parameters that take part in one token."""
        return self.active_matrix_parameters + self.used * self.outputs * self.bias

    def adapted(self, targets: Targets) -> bool:
        """Return whether a LoRA adapter sits on it; routers and routed experts get none.

        Experts are held as one tensor for all, where an adapter for each would be as large as a model: rank 16 on
        DeepSeek-V3's is 6.7 billion parameters.
        """
        return self.part == "attention" or (targets == "all" and self.part in ("mlp", "shared"))


@dataclass(frozen=True)
class Norm:
    """A normalisation: `channels` it normalises a token, `parameters` of its weight (fewer where heads share it)."""

    module: str
    channels: int
    parameters: int


@dataclass(frozen=True)
class Experts:
    """Mixture of experts in a block.

    Attributes:
        count: routed experts; per_token: how many of them a token passes through.
        hidden: width of one routed expert; shared_hidden: of the experts that every token passes, 0 for none.
    """

    count: int
    per_token: int
    hidden: int
    shared_hidden: int = 0


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): keys and values from one small vector a token.

    Attributes:
        q_rank: width of the queries' latent vector, None where queries are projected directly.
        kv_rank: width of the latent vector that keys and values come from; it is cached with the rotary key.
        nope_dim, rope_dim: channels of a query or key head without and with rotary positions; v_dim: of a value head.
    """

    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int


@dataclass(frozen=True)
class Block:
    """One layer. Layers that are alike share one object.

    Attributes:
        heads, kv_heads: of queries, of keys and values; qk_head_dim, v_head_dim: channels of one.
        hidden: width of the dense MLP, 0 where experts stand in its place.
        window: positions that a token sees, itself included; None for the whole past.
        scalar_parameters: attention's, neither matrix nor norm: learned sinks, one a head.
        buffer_parameters: saved with the weights but reached by no gradient (DeepSeek-V3's expert biases).
    """

    dim: int
    heads: int
    kv_heads: int
    qk_head_dim: int
    v_head_dim: int
    hidden: int
    experts: Experts | None
    mla: LatentAttention | None
    window: int | None
    linears: tuple[Linear, ...]
    norms: tuple[Norm, ...]
    scalar_parameters: int = 0
    buffer_parameters: int = 0

    @property
    def q_dim(self) -> int:
        """Return the channels of the queries."""
        return self.heads * self.qk_head_dim

    @property
    def k_dim(self) -> int:
        """Return the channels of the keys as attention sees them."""
        return self.kv_heads * self.qk_head_dim

    @property
    def v_dim(self) -> int:
        """Return the channels of the values as attention sees them."""
        return self.kv_heads * self.v_head_dim

    @property
    def kv_dim(self) -> int:
        """Return half of the channels of keys and values together: those of either where both are equally wide."""
        return (self.k_dim + self.v_dim) // 2

    @property
    def out_dim(self) -> int:
        """Return the channels that attention returns, before the output projection."""
        return self.heads * self.v_head_dim

    @cached_property
    def attention_parameters(self) -> int:
        """Count the parameters of the projections of attention, with biases and sinks."""
        return self._sum("attention") + self.scalar_parameters

    @cached_property
    def mlp_parameters(self) -> int:
        """Count the parameters of the dense MLP, shared experts and router, its buffer included."""
        return self._sum("mlp") + self._sum("shared") + self._sum("router") + self.buffer_parameters

    @cached_property
    def expert_parameters(self) -> int:
        """Count the parameters of all routed experts."""
        return self._sum("experts")

    @cached_property
    def active_expert_parameters(self) -> int:
        """Count the parameters of the routed experts of one token."""
        return sum(linear.active_parameters for linear in self.linears if linear.part == "experts")

    @cached_property
    def norm_parameters(self) -> int:
        """Count the parameters of the layer's norms."""
        return sum(norm.parameters for norm in self.norms)

    @cached_property
    def parameters(self) -> int:
        """Count all parameters of the layer."""
        return self.attention_parameters + self.mlp_parameters + self.expert_parameters + self.norm_parameters

    @property
    def active_parameters(self) -> int:
        """Count the parameters that take part in one token."""
        return self.parameters - self.expert_parameters + self.active_expert_parameters

    @cached_property
    def matrix_parameters(self) -> int:
        """Count the parameters that are multiplied, all experts counted."""
        return sum(linear.matrix_parameters for linear in self.linears)

    @cached_property
    def active_matrix_parameters(self) -> int:
        """Count the parameters that one token is multiplied with."""
        return sum(linear.active_matrix_parameters for linear in self.linears)

    @property
    def cached_elements(self) -> int:
        """Count the elements that one token takes in the KV cache: keys and values, or the latent vector and the rotary key.

        The latter is what vLLM and recent transformers keep; transformers 5.10 kept expanded keys and values.
        """
        return self.mla.kv_rank + self.mla.rope_dim if self.mla else self.k_dim + self.v_dim

    def visible(self, sequence: int) -> int:
        """Count the positions that the last of `sequence` tokens sees."""
        return sequence if self.window is None else min(self.window, sequence)

    def lora_parameters(self, rank: int, targets: Targets) -> int:
        """Count the parameters of this block's LoRA adapters."""
        return sum(rank * (linear.inputs + linear.outputs) for linear in self.linears if linear.adapted(targets))

    def _sum(self, part: Part) -> int:
        return sum(linear.parameters for linear in self.linears if linear.part == part)


def training_flops(blocks: Sequence[Block], sequence: int) -> float:
    """Return the FLOPs of a token's training pass through blocks, forward and backward: 6 a multiplied parameter + attention.

    Attention counts 12 * heads * head_dim * visible positions, not halved for causality: the convention of published MFU
    figures (PaLM, appendix B). Where keys and values differ in width it is 6 * heads * (both).
    """
    # Scores and weighted values are two products of 2 FLOPs a channel and position; backward is twice forward, so 6 of each.
    attention = sum(6 * block.heads * (block.qk_head_dim + block.v_head_dim) * block.visible(sequence) for block in blocks)
    return 6.0 * sum(block.active_matrix_parameters for block in blocks) + attention


def masked_flops(blocks: Sequence[Block], sequence: int) -> float:
    """Return what of `training_flops` no kernel computes: attention to positions that come after a token."""
    # Of w visible positions only the first w tokens of the sequence lack any, half of them on average: w^2 / 2 over all tokens.
    unseen = [block.visible(sequence) ** 2 / (2.0 * sequence) for block in blocks]
    return sum(6 * b.heads * (b.qk_head_dim + b.v_head_dim) * none for b, none in zip(blocks, unseen, strict=True))
