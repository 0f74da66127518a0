"""Hugging Face causal language models as plain arithmetic, without torch: shapes, parameters and FLOPs.

Every count equals what transformers builds from the same config. A model is a sequence of blocks; a block is its matrices,
norms, experts and attention.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .blocks import Block, Experts, LatentAttention, Targets, masked_flops, training_flops

SAME_STEPS = frozenset({"llama", "mistral", "qwen2", "qwen3", "olmo2", "olmo3", "granite", "smollm3", "phi3"})
"""Models whose steps of decoding have the same kernels whatever is in them: no experts, which tokens choose."""
SMALL_LAYER = 8_000_000
"""Parameters of a layer below which the host, not the GPU, bounds a training step: it cannot launch kernels as fast as they run.

SmolLM2-135M's 3.5 million are below, Qwen2.5-0.5B's 15 million are not.
"""


def asks_for_dropout(config: Mapping[str, Any]) -> bool:
    """Return whether a model's config asks for dropout anywhere."""
    return any(
        "dropout" in key or key.endswith("pdrop") for key, value in config.items() if isinstance(value, float) and value > 0
    )


@dataclass(frozen=True)
class HFShape:
    """Every dimension of a causal language model.

    Attributes:
        name: the built-in name, or the file that it was read from; family: config.json's model_type.
        dim: channels of the residual stream; hidden: width of a dense MLP, 0 where every layer has experts.
        heads, kv_heads, head_dim: of attention; with latent attention head_dim is a query's, rotary part included.
        vocab: rows of the embedding and of the head; tied: whether they are one table.
        biases: whether any projection of the blocks has one.
        experts: of the sparse layers; None for a dense model. blocks[i].experts tells which layers are sparse.
        windows: per layer, positions that a token sees; None for the whole past.
        max_positions: longest sequence that config.json names.
        mtp_layers: modules that predict tokens after the next one. Checkpoints hold them, transformers does not
            build them, and no other count here includes them.
        final_norm_parameters: weight of the norm before the head.
        config: the architecture's keys of config.json as JSON text; `raw` reads it.
    """

    name: str
    family: str
    layers: int
    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocab: int
    tied: bool
    biases: bool
    experts: Experts | None
    mla: LatentAttention | None
    windows: tuple[int | None, ...]
    max_positions: int
    blocks: tuple[Block, ...]
    final_norm_parameters: int
    mtp_layers: int = 0
    config: str = field(default="{}", compare=False, repr=False)

    @property
    def same_steps(self) -> bool:
        """Return whether steps of decoding are recorded on a GPU, and so wait for no host."""
        return self.family in SAME_STEPS and not any(self.windows)

    @property
    def small_layers(self) -> bool:
        """Return whether the host bounds a training step; see `SMALL_LAYER`."""
        return self.block_parameters < SMALL_LAYER * self.layers

    @property
    def drops_out(self) -> bool:
        """Return whether the config asks for dropout anywhere."""
        return asks_for_dropout(self.raw)

    @cached_property
    def gates_by_silu(self) -> bool:
        """Return whether MLPs have the activation that their family has unless config.json names another one."""
        return str(self.raw.get("hidden_act") or "silu") in ("silu", "swish")

    @property
    def raw(self) -> dict[str, Any]:
        """Return the config as a mapping for transformers' AutoConfig.for_model(**raw); a fresh copy, which it may change."""
        content: dict[str, Any] = json.loads(self.config)
        return content

    @cached_property
    def kinds(self) -> dict[Block, int]:
        """Return the blocks that differ, with how many there are of each."""
        # By a few kinds of blocks, not by all layers: a plan's search asks for these counts over and over.
        same: dict[int, int] = {}
        for block in self.blocks:  # alike ones are mostly one object, which is told faster than that two are equal
            same[id(block)] = same.get(id(block), 0) + 1
        counts: dict[Block, int] = {}
        for block in {id(block): block for block in self.blocks}.values():
            counts[block] = counts.get(block, 0) + same[id(block)]
        return counts

    def unshared(self, ranks: int) -> str:
        """Return what so many tensor-parallel ranks of vLLM cannot share evenly; '' where they can."""
        if self.heads % ranks:
            return f"the {self.heads} heads"
        # A key-value head that has too few ranks is kept by several of them.
        if self.mla is None and self.kv_heads % ranks and ranks % self.kv_heads:
            return f"the {self.kv_heads} heads of keys and values"
        widths = (self.hidden, self.experts.hidden if self.experts else 0)
        wide = next((width for width in widths if width % ranks), None)
        return "" if wide is None else f"an MLP of {wide:,} channels"

    @property
    def embedding_parameters(self) -> int:
        """Count the parameters of the table of token embeddings."""
        return self.vocab * self.dim

    @property
    def head_parameters(self) -> int:
        """Count the parameters that the output head has of its own: 0 where it is the embedding table."""
        return 0 if self.tied else self.vocab * self.dim

    @property
    def head_matrix_parameters(self) -> int:
        """Count the parameters that the output head multiplies, tied or not."""
        return self.vocab * self.dim

    @cached_property
    def block_parameters(self) -> int:
        """Count the parameters of all layers."""
        return sum(count * block.parameters for block, count in self.kinds.items())

    @cached_property
    def parameters(self) -> int:
        """Count all parameters, a tied table once, buffers that are saved with them included (as published counts do)."""
        return self.embedding_parameters + self.block_parameters + self.final_norm_parameters + self.head_parameters

    @cached_property
    def active_parameters(self) -> int:
        """Count the parameters that take part in one token: all but the routed experts it does not pass through."""
        # From the whole, so that what is no block counts once and fully.
        return self.parameters - sum(n * (block.parameters - block.active_parameters) for block, n in self.kinds.items())

    @cached_property
    def expert_parameters(self) -> int:
        """Count the parameters of all routed experts of all layers."""
        return sum(count * block.expert_parameters for block, count in self.kinds.items())

    @cached_property
    def buffer_parameters(self) -> int:
        """Return those of `parameters` that are saved but reached by no gradient: DeepSeek-V3's expert biases, else 0."""
        return sum(count * block.buffer_parameters for block, count in self.kinds.items())

    @cached_property
    def matrix_parameters(self) -> int:
        """Count the parameters of the blocks' matrices, all experts counted; without embedding and head."""
        return sum(count * block.matrix_parameters for block, count in self.kinds.items())

    @cached_property
    def active_matrix_parameters(self) -> int:
        """Count the parameters of the blocks' matrices that one token is multiplied with; without the head."""
        return sum(count * block.active_matrix_parameters for block, count in self.kinds.items())

    @property
    def mtp_parameters(self) -> int:
        """Count the parameters of the prediction modules as checkpoints hold them, with their copies of embedding and head.

        A module is a block like the last, a projection of two concatenated vectors, three norms, and a copy of both tables.
        """
        module = self.blocks[-1].parameters + 2 * self.dim * self.dim + 3 * self.dim + 2 * self.vocab * self.dim
        return self.mtp_layers * module

    @property
    def published_bytes(self) -> float:
        """Return the bytes of its files on the hub: bf16, of DeepSeek-V3 and its like fp8 with a scale for 128 x 128 weights."""
        if self.family != "deepseek_v3":
            return 2.0 * (self.parameters + self.mtp_parameters)
        matrices = self.matrix_parameters + self.mtp_layers * (self.blocks[-1].matrix_parameters + 2 * self.dim * self.dim)
        return (1 + 4 / 128**2) * matrices + 2.0 * (self.parameters + self.mtp_parameters - matrices)

    def flops_per_token(self, sequence: int) -> float:
        """Return the training FLOPs a token of a packed sequence, forward and backward, the head included."""
        return training_flops(self.blocks, sequence) + 6.0 * self.head_matrix_parameters

    def masked_flops_per_token(self, sequence: int) -> float:
        """Return what of those FLOPs no kernel computes: attention to positions that come after a token."""
        return masked_flops(self.blocks, sequence)

    def kv_bytes_per_token(self, element_bytes: float = 2) -> float:
        """Return the bytes of KV cache that a token takes over all layers, while every window still holds it."""
        return element_bytes * sum(count * block.cached_elements for block, count in self.kinds.items())

    def kv_bytes(self, sequence: int, element_bytes: float = 2) -> float:
        """Return the bytes of KV cache of one sequence: layers with a window keep no more than it."""
        return element_bytes * sum(count * block.cached_elements * block.visible(sequence) for block, count in self.kinds.items())

    def lora_parameters(self, rank: int, targets: Targets = "all") -> int:
        """Count the parameters of LoRA adapters on the layers' linear modules; routers and routed experts get none."""
        return sum(block.lora_parameters(rank, targets) for block in self.blocks)
