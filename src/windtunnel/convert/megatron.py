"""Hugging Face's tensors and Megatron-Core's, name by name and shape by shape: what is joined, and what a rank holds of it.

Names are those of Megatron-Core's GPTModel built with Transformer Engine, as Megatron-Bridge builds it: the norm before a
projection is a parameter of the projection, and all experts of a layer are one module (`experts.linear_fc1.weight7`).
Three things are done to weights, all of them moves, so that the way there and back keeps every bit:

- queries, keys and values are interleaved by group: the queries of group 0, its key, its value, then those of group 1;
- gate and up projections lie one upon the other, and a tensor-parallel rank has its part of each;
- rows (or columns) are shared out over tensor-parallel ranks, experts over expert-parallel ones, layers over the pipeline.

torch is used by what moves weights alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from windtunnel.recipe import UserError

if TYPE_CHECKING:
    from torch import Tensor

MEGATRON_FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_moe", "deepseek_v3")
"""Values of `model_type` in config.json."""
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Parameter:
    """A parameter of the whole Megatron model and the tensors that it is made of.

    Attributes:
        name: with layers and experts counted over all ranks.
        sources: (name, shape) in Hugging Face's files.
        how: copy, qkv (queries, keys and values by group), or gated (gate upon up).
        split: the dimension that tensor-parallel ranks share; None: each has all of it.
        layer, expert: which, where it belongs to one.
        groups: of qkv, the groups of queries that share a key.
    """

    name: str
    sources: tuple[tuple[str, Shape], ...]
    how: Literal["copy", "qkv", "gated"] = "copy"
    split: int | None = None
    layer: int | None = None
    expert: int | None = None
    groups: int = 1

    @property
    def shape(self) -> Shape:
        """Return the shape in the whole model; tables of the vocabulary are not padded, as Megatron-Bridge builds them."""
        return (sum(shape[0] for _, shape in self.sources), *self.sources[0][1][1:])

    def on_ranks(self, tensor: int) -> Shape:
        """Return the shape on each of so many tensor-parallel ranks."""
        if self.split is None or self.expert is not None:  # an expert is whole on its rank
            return self.shape
        return tuple(size // tensor if at == self.split else size for at, size in enumerate(self.shape))


@dataclass(frozen=True)
class Ranks:
    """How many ranks share a model: its matrices, experts and layers. No expert is cut (expert_tensor_parallel_size 1)."""

    tensor: int = 1
    expert: int = 1
    pipeline: int = 1


def megatron_parameters(config: Mapping[str, Any]) -> tuple[Parameter, ...]:
    """Return every parameter of the Megatron model of a config.json, in the order of its layers.

    Args:
        config: the content of config.json.

    Raises:
        UserError: the family, or something in the config, has no counterpart.
    """
    family = config.get("model_type")
    if family not in MEGATRON_FAMILIES:
        raise UserError(f"model_type {family!r} has no map to Megatron here", f"those that have: {', '.join(MEGATRON_FAMILIES)}")
    # Layers that are neither all dense nor all sparse have no rule here that was tried.
    sparse = config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1
    if family == "qwen3_moe" and sparse:
        raise UserError(
            "qwen3_moe with dense layers (mlp_only_layers, decoder_sparse_step) has no map to Megatron", "another model"
        )
    # Refused, not left out: the model would compute something else and train on.
    biased = next((key for key in ("attention_bias", "mlp_bias") if config.get(key)), None)
    if biased is not None and family != "qwen2":
        raise UserError(
            f"{family} with {biased} has no map to Megatron: Megatron-Bridge would leave the biases out", "another model"
        )
    return tuple(_Model(config).parameters())


class _Model:
    """The sizes in a config.json, and the parameters that follow."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config, self.family = config, config["model_type"]
        self.dim, self.layers, self.vocab = (int(config[k]) for k in ("hidden_size", "num_hidden_layers", "vocab_size"))
        self.heads = int(config["num_attention_heads"])
        self.groups = int(config.get("num_key_value_heads") or self.heads)
        self.head = int(config.get("head_dim") or self.dim // self.heads)
        self.tied = bool(config.get("tie_word_embeddings", False))

    def parameters(self) -> Iterator[Parameter]:
        table = (self.vocab, self.dim)
        yield Parameter("embedding.word_embeddings.weight", (("model.embed_tokens.weight", table),), split=0)
        for layer in range(self.layers):
            yield from self._latent(layer) if self.family == "deepseek_v3" else self._attention(layer)
            yield from self._experts(layer) if self._is_sparse(layer) else self._dense(layer)
        yield Parameter("decoder.final_layernorm.weight", (("model.norm.weight", (self.dim,)),))
        if not self.tied:
            yield Parameter("output_layer.weight", (("lm_head.weight", table),), split=0)

    def _is_sparse(self, layer: int) -> bool:
        if self.family == "deepseek_v3":
            return layer >= int(self.config.get("first_k_dense_replace", 3))
        return self.family == "qwen3_moe"

    def _copy(self, layer: int, name: str, source: str, shape: Shape, split: int | None = None) -> Parameter:
        here = ((f"model.layers.{layer}.{source}", shape),)
        return Parameter(f"decoder.layers.{layer}.{name}", here, split=split, layer=layer)

    def _attention(self, layer: int) -> Iterator[Parameter]:
        yield self._copy(layer, "self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight", (self.dim,))
        queries, keys = self.heads * self.head, self.groups * self.head
        for kind in ("weight", "bias") if self.family == "qwen2" else ("weight",):
            rest = (self.dim,) if kind == "weight" else ()
            sources = tuple(
                (f"model.layers.{layer}.self_attn.{part}_proj.{kind}", (rows, *rest))
                for part, rows in (("q", queries), ("k", keys), ("v", keys))
            )
            name = f"decoder.layers.{layer}.self_attention.linear_qkv.{kind}"
            yield Parameter(name, sources, "qkv", split=0, layer=layer, groups=self.groups)
        # Norms of each head, which the other families do not have.
        if self.family in ("qwen3", "qwen3_moe"):
            for part in ("q", "k"):
                yield self._copy(layer, f"self_attention.{part}_layernorm.weight", f"self_attn.{part}_norm.weight", (self.head,))
        yield self._copy(layer, "self_attention.linear_proj.weight", "self_attn.o_proj.weight", (self.dim, queries), split=1)

    def _latent(self, layer: int) -> Iterator[Parameter]:
        """Yield latent attention: down projections are on every tensor-parallel rank, up projections are shared out."""
        get = self.config.get
        nope, rope, value = (
            int(get(k) or d) for k, d in (("qk_nope_head_dim", 128), ("qk_rope_head_dim", 64), ("v_head_dim", 128))
        )
        latent, low = int(get("kv_lora_rank") or 512), get("q_lora_rank", 1536)
        yield self._copy(layer, "input_layernorm.weight", "input_layernorm.weight", (self.dim,))
        at = "self_attention."
        if low is None:
            yield self._copy(
                layer, at + "linear_q_proj.weight", "self_attn.q_proj.weight", (self.heads * (nope + rope), self.dim), 0
            )
        else:
            yield self._copy(layer, at + "linear_q_down_proj.weight", "self_attn.q_a_proj.weight", (low, self.dim))
            yield self._copy(layer, at + "linear_q_up_proj.layer_norm_weight", "self_attn.q_a_layernorm.weight", (low,))
            yield self._copy(
                layer, at + "linear_q_up_proj.weight", "self_attn.q_b_proj.weight", (self.heads * (nope + rope), low), 0
            )
        yield self._copy(
            layer, at + "linear_kv_down_proj.weight", "self_attn.kv_a_proj_with_mqa.weight", (latent + rope, self.dim)
        )
        yield self._copy(layer, at + "linear_kv_up_proj.layer_norm_weight", "self_attn.kv_a_layernorm.weight", (latent,))
        up = (self.heads * (nope + value), latent)
        yield self._copy(layer, at + "linear_kv_up_proj.weight", "self_attn.kv_b_proj.weight", up, 0)
        yield self._copy(layer, at + "linear_proj.weight", "self_attn.o_proj.weight", (self.dim, self.heads * value), 1)

    def _gated(self, layer: int, name: str, source: str, width: int, expert: int | None = None) -> Iterator[Parameter]:
        suffix = "" if expert is None else str(expert)
        first, second = (f"decoder.layers.{layer}.{name}.linear_fc{n}.weight{suffix}" for n in (1, 2))
        gate, up, down = (f"model.layers.{layer}.{source}.{part}_proj.weight" for part in ("gate", "up", "down"))
        wide = (width, self.dim)
        yield Parameter(first, ((gate, wide), (up, wide)), "gated", split=0, layer=layer, expert=expert)
        yield Parameter(second, ((down, (self.dim, width)),), split=1, layer=layer, expert=expert)

    def _dense(self, layer: int) -> Iterator[Parameter]:
        yield self._copy(layer, "mlp.linear_fc1.layer_norm_weight", "post_attention_layernorm.weight", (self.dim,))
        yield from self._gated(layer, "mlp", "mlp", int(self.config["intermediate_size"]))

    def _experts(self, layer: int) -> Iterator[Parameter]:
        deepseek, count = self.family == "deepseek_v3", experts_of(self.config)
        width = int(self.config["moe_intermediate_size"])
        yield self._copy(layer, "pre_mlp_layernorm.weight", "post_attention_layernorm.weight", (self.dim,))
        yield self._copy(layer, "mlp.router.weight", "mlp.gate.weight", (count, self.dim))
        if deepseek:
            yield self._copy(layer, "mlp.router.expert_bias", "mlp.gate.e_score_correction_bias", (count,))
        for expert in range(count):
            yield from self._gated(layer, "mlp.experts", f"mlp.experts.{expert}", width, expert)
        if deepseek:
            shared = width * int(self.config.get("n_shared_experts") or 1)
            yield from self._gated(layer, "mlp.shared_experts", "mlp.shared_experts", shared)


def experts_of(config: Mapping[str, Any]) -> int:
    """Return the routed experts of a layer, under any of the names that config.json has for them; 0 where there are none."""
    names = ("n_routed_experts", "num_experts", "num_local_experts")
    return next((int(config[name]) for name in names if config.get(name)), 0)


def megatron_problem(config: Mapping[str, Any], ranks: Ranks) -> str | None:
    """Return why so many ranks cannot share the model; None where they can."""
    heads = int(config["num_attention_heads"])
    # Latent attention has no key-value heads of its own: all heads share one vector.
    groups = heads if config["model_type"] == "deepseek_v3" else int(config.get("num_key_value_heads") or heads)
    experts = experts_of(config)
    if heads % ranks.tensor or groups % ranks.tensor:
        what = f"{heads} heads" if heads % ranks.tensor else f"{groups} key-value heads"
        return f"layout.tensor: {what} cannot be shared out over {ranks.tensor} ranks"
    if ranks.expert > 1 and (not experts or experts % ranks.expert):
        return f"layout.expert: {experts or 'no'} experts cannot be shared out over {ranks.expert} ranks"
    if ranks.pipeline > int(config["num_hidden_layers"]):
        return f"layout.pipeline: {config['num_hidden_layers']} layers cannot be shared out over {ranks.pipeline} ranks"
    for parameter in megatron_parameters(config):
        split = parameter.split
        if split is not None and parameter.expert is None:
            # Gate and up are two matrices in one: each is shared out by itself.
            parts = parameter.shape[split] // (2 if parameter.how == "gated" else 1)
            if parts % ranks.tensor:
                return f"layout.tensor: {parts:,} rows or columns of {parameter.name} over {ranks.tensor} ranks"
    return None


def layers_of_stages(layers: int, stages: int) -> list[range]:
    """Return the layers of each pipeline stage: as even as can be, more of them on the first ones."""
    each, more = divmod(layers, stages)
    ends = [0]
    for stage in range(stages):
        ends.append(ends[-1] + each + (stage < more))
    return [range(first, last) for first, last in itertools.pairwise(ends)]


def rank_shapes(parameters: Sequence[Parameter], ranks: Ranks, stage: int) -> dict[str, Shape]:
    """Return name -> shape of what a rank of a pipeline stage holds, with layers and experts counted as it counts them.

    It is the same for all tensor- and expert-parallel ranks of a stage.
    """
    layers = 1 + max(p.layer for p in parameters if p.layer is not None)
    mine = layers_of_stages(layers, ranks.pipeline)[stage]
    experts = 1 + max((p.expert for p in parameters if p.expert is not None), default=-1)
    found: dict[str, Shape] = {}
    for parameter in parameters:
        if parameter.layer is None:
            first = parameter.name.startswith("embedding")
            if stage == (0 if first else ranks.pipeline - 1):
                found[parameter.name] = parameter.on_ranks(ranks.tensor)
        elif parameter.layer in mine and (parameter.expert is None or parameter.expert < experts // ranks.expert):
            local = parameter.name.replace(f"layers.{parameter.layer}.", f"layers.{parameter.layer - mine.start}.", 1)
            found[local] = parameter.on_ranks(ranks.tensor)
    tied = "output_layer.weight" not in {parameter.name for parameter in parameters}
    if tied and ranks.pipeline > 1 and stage == ranks.pipeline - 1:  # a copy of the embedding, where that is not
        found["output_layer.weight"] = parameters[0].on_ranks(ranks.tensor)
    return found


def join(parameter: Parameter, sources: Sequence[Tensor]) -> Tensor:
    """Return Megatron's whole tensor of Hugging Face's."""
    import torch

    if parameter.how == "gated":
        return torch.cat(list(sources))
    if parameter.how == "qkv":
        by_group = [each.reshape(parameter.groups, -1, *each.shape[1:]) for each in sources]
        return torch.cat(by_group, dim=1).flatten(0, 1)
    return sources[0]


def separate(parameter: Parameter, whole: Tensor) -> list[Tensor]:
    """Return Hugging Face's tensors of Megatron's whole one: what `join` was given."""
    rows = [shape[0] for _, shape in parameter.sources]
    if parameter.how == "gated":
        return list(whole.split(rows))
    if parameter.how == "qkv":
        by_group = whole.reshape(parameter.groups, -1, *whole.shape[1:]).split([n // parameter.groups for n in rows], dim=1)
        return [each.flatten(0, 1) for each in by_group]
    return [whole]


def rank_slice(parameter: Parameter, whole: Tensor, rank: int, tensor: int) -> Tensor:
    """Return what a tensor-parallel rank holds of a whole tensor; of an expert all of it."""
    import torch

    if parameter.split is None or parameter.expert is not None or tensor == 1:
        return whole
    if parameter.how == "gated":
        return torch.cat([half.chunk(tensor)[rank] for half in whole.chunk(2)])
    return whole.chunk(tensor, dim=parameter.split)[rank]


def from_slices(parameter: Parameter, slices: Sequence[Tensor]) -> Tensor:
    """Return the whole tensor of what the tensor-parallel ranks hold, in their order."""
    import torch

    if parameter.split is None or parameter.expert is not None or len(slices) == 1:
        return slices[0]
    if parameter.how == "gated":
        halves = [each.chunk(2) for each in slices]
        return torch.cat([half[part] for part in (0, 1) for half in halves])
    return torch.cat(list(slices), dim=parameter.split)
