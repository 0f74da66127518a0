"""From a config.json to the shape of its model: its blocks, laid out by the rules of its family; without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .blocks import Block, Experts, LatentAttention, Linear, Norm, Part
from .hf import HFShape
from .hf_config import Keys, refuse_unsupported
from .hf_families import FAMILIES, Bias, Family

# Keys that say how weights are stored or which code to load, not what to build.
NOT_ARCHITECTURE = ("quantization_config", "compression_config", "auto_map", "_name_or_path", "transformers_version")
# More than any model has: a typing error, not worth the time to lay out.
MOST_LAYERS, MOST_HEADS = 10_000, 10_000


def shape_from_config(name: str, config: Mapping[str, Any], source: str) -> HFShape:
    """Return the shape of the model that `config` describes.

    Args:
        name: what to call the model.
        config: the content of its config.json.
        source: what to call the config in errors, such as its file.

    Raises:
        UserError: an architecture that is not supported, or a key that is missing or impossible.
    """
    refuse_unsupported(config, source, FAMILIES)
    family = FAMILIES[config["model_type"]]
    keys = Keys(source, config, family.defaults)
    layers = keys.size("num_hidden_layers", most=MOST_LAYERS)
    windows = family.windows(keys, layers)
    sparse = _sparse_layers(keys, family, layers)
    build = _Builder(keys, family)
    # Layers that are alike become one object.
    kinds = {kind: build.block(*kind) for kind in dict.fromkeys(zip(windows, sparse, strict=True))}
    blocks = tuple(kinds[kind] for kind in zip(windows, sparse, strict=True))
    dense = next((block for block in blocks if block.experts is None), None)
    return HFShape(
        name=name,
        family=config["model_type"],
        layers=layers,
        dim=build.dim,
        heads=build.heads,
        kv_heads=build.kv_heads,
        head_dim=blocks[0].qk_head_dim,
        hidden=dense.hidden if dense else 0,
        vocab=keys.size("vocab_size"),
        tied=keys.flag("tie_word_embeddings"),
        biases=any(linear.bias for block in kinds.values() for linear in block.linears),
        experts=next((block.experts for block in blocks if block.experts), None),
        mla=blocks[0].mla,
        windows=windows,
        max_positions=keys.size("max_position_embeddings"),
        blocks=blocks,
        final_norm_parameters=build.dim if family.norm_weight else 0,
        mtp_layers=keys.optional_size("num_nextn_predict_layers", "num_mtp_layers", least=0) or 0,
        # As text, since a shape is hashed and compared, and mappings cannot be.
        config=json.dumps({key: value for key, value in config.items() if key not in NOT_ARCHITECTURE}),
    )


def _sparse_layers(keys: Keys, family: Family, layers: int) -> list[bool]:
    """Tell which layers have experts in place of the dense MLP."""
    if family.sparse is None or family.sparse.layers == "all":
        return [family.sparse is not None] * layers
    if family.sparse.layers == "after_dense":
        first = keys.size("first_k_dense_replace", least=0)
        return [i >= first for i in range(layers)]
    # Counted from 1, as Qwen does.
    step = keys.size("decoder_sparse_step")
    dense = keys.listed("mlp_only_layers", None, int) or []
    count = keys.size(*family.sparse.count, least=0)
    return [count > 0 and i not in dense and (i + 1) % step == 0 for i in range(layers)]


class _Builder:
    """Builds the blocks of one config."""

    def __init__(self, keys: Keys, family: Family) -> None:
        self.keys, self.family = keys, family
        self.dim = keys.size("hidden_size")
        self.heads = keys.size("num_attention_heads", most=MOST_HEADS)
        self.mla = self._latent() if family.latent else None
        self.kv_heads = self._kv_heads()
        # With latent attention a query's head, its rotary part included.
        self.head_dim = self.mla.nope_dim + self.mla.rope_dim if self.mla else self._head_dim()
        self.v_head_dim = self.mla.v_dim if self.mla else self.head_dim

    def _kv_heads(self) -> int:
        # Older configs do not have the key: every head then has keys and values of its own.
        count = self.keys.optional_size("num_key_value_heads") or self.heads
        if self.heads % count == 0 and not (self.mla and count != self.heads):
            return count
        divisors = [n for n in range(1, self.heads + 1) if self.heads % n == 0]
        relation = "is not" if self.mla else "does not divide"
        problem = f"is {count}, which {relation} num_attention_heads {self.heads}"
        fix = f"with latent attention it must be {self.heads}" if self.mla else f"it must be one of {divisors}"
        raise self.keys.fail("num_key_value_heads", problem, fix)

    def _head_dim(self) -> int:
        given = self.keys.optional_size("head_dim")
        if self.dim % self.heads and (given is None or self.family.whole_heads):
            problem = f"is {self.dim}, which num_attention_heads {self.heads} does not divide"
            raise self.keys.fail("hidden_size", problem, f"make hidden_size a multiple of {self.heads}, or change the heads")
        width = given or self.dim // self.heads
        if width % 2:
            problem = f"is {width}: rotary positions turn channels in pairs"
            raise self.keys.fail("head_dim", problem, "it must be even; without it, it is hidden_size / num_attention_heads")
        return width

    def _latent(self) -> LatentAttention:
        keys = self.keys
        rope = keys.size("qk_rope_head_dim")
        if rope % 2:
            raise keys.fail("qk_rope_head_dim", f"is {rope}: rotary positions turn channels in pairs", "it must be even")
        if self.family.whole_heads and self.dim % self.heads:
            problem = f"is {self.dim}, which num_attention_heads {self.heads} does not divide"
            raise keys.fail("hidden_size", problem, f"make hidden_size a multiple of {self.heads}, or change the heads")
        return LatentAttention(
            q_rank=keys.optional_size("q_lora_rank"),
            kv_rank=keys.size("kv_lora_rank"),
            nope_dim=keys.size("qk_nope_head_dim"),
            rope_dim=rope,
            v_dim=keys.size("v_head_dim"),
        )

    def block(self, window: int | None, sparse: bool) -> Block:
        """Return one layer with that window, with experts or with a dense MLP."""
        attention, attention_norms = self._latent_attention(self.mla) if self.mla else self._attention()
        experts = self._experts() if sparse else None
        hidden = 0 if experts else self.keys.size("intermediate_size")
        mlp = self._mixture(experts) if experts else self._gated("mlp", "mlp", hidden, self._has(self.family.mlp_bias))
        return Block(
            dim=self.dim,
            heads=self.heads,
            kv_heads=self.kv_heads,
            qk_head_dim=self.head_dim,
            v_head_dim=self.v_head_dim,
            hidden=hidden,
            experts=experts,
            mla=self.mla,
            window=window,
            linears=(*attention, *mlp),
            norms=(*attention_norms, *(self._norm(name, self.dim) for name in self.family.norms)),
            scalar_parameters=self.heads if self.family.sinks else 0,
            buffer_parameters=experts.count if experts and self.family.sparse and self.family.sparse.balance else 0,
        )

    def _has(self, bias: Bias) -> bool:
        return self.keys.flag(bias) if isinstance(bias, str) else bias

    def _norm(self, name: str, channels: int, parameters: int | None = None) -> Norm:
        weights = channels if parameters is None else parameters
        return Norm(name, channels, weights if self.family.norm_weight else 0)

    def _attention(self) -> tuple[list[Linear], list[Norm]]:
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        bias, out_bias = self._has(self.family.qkv_bias), self._has(self.family.out_bias)
        out = Linear("self_attn.o_proj", "attention", q, self.dim, out_bias)
        if self.family.fused:
            return [Linear("self_attn.qkv_proj", "attention", self.dim, q + 2 * kv, bias), out], []
        inward = [
            Linear(f"self_attn.{name}_proj", "attention", self.dim, width, bias)
            for name, width in zip("qkv", (q, kv, kv), strict=True)
        ]
        norms = []
        if self.family.qk_norm != "none":
            shared = self.head_dim if self.family.qk_norm == "heads" else None
            norms = [self._norm("self_attn.q_norm", q, shared), self._norm("self_attn.k_norm", kv, shared)]
        return [*inward, out], norms

    def _latent_attention(self, mla: LatentAttention) -> tuple[list[Linear], list[Norm]]:
        q, bias = self.heads * self.head_dim, self.keys.flag("attention_bias")
        norms = []
        if mla.q_rank is None:
            queries = [Linear("self_attn.q_proj", "attention", self.dim, q)]
        else:
            down = Linear("self_attn.q_a_proj", "attention", self.dim, mla.q_rank, bias)
            queries = [down, Linear("self_attn.q_b_proj", "attention", mla.q_rank, q)]
            norms = [self._norm("self_attn.q_a_layernorm", mla.q_rank)]
        rest = [
            Linear("self_attn.kv_a_proj_with_mqa", "attention", self.dim, mla.kv_rank + mla.rope_dim, bias),
            Linear("self_attn.kv_b_proj", "attention", mla.kv_rank, self.heads * (mla.nope_dim + mla.v_dim)),
            Linear("self_attn.o_proj", "attention", self.heads * mla.v_dim, self.dim, bias),
        ]
        return [*queries, *rest], [*norms, self._norm("self_attn.kv_a_layernorm", mla.kv_rank)]

    def _gated(self, module: str, part: Part, hidden: int, bias: bool) -> list[Linear]:
        """Return gate, up and down of a SwiGLU-like MLP."""
        down = Linear(f"{module}.down_proj", part, hidden, self.dim, bias)
        if self.family.fused:
            return [Linear(f"{module}.gate_up_proj", part, self.dim, 2 * hidden, bias), down]
        return [*(Linear(f"{module}.{name}_proj", part, self.dim, hidden, bias) for name in ("gate", "up")), down]

    def _experts(self) -> Experts:
        keys, sparse = self.keys, self.family.sparse
        assert sparse is not None
        count = keys.size(*sparse.count)
        used = keys.size("num_experts_per_tok")
        if used > count:
            name = keys.name_of(*sparse.count)
            raise keys.fail("num_experts_per_tok", f"is {used}, but {name} is {count}", f"it must be at most {count}")
        groups = keys.optional_size("n_group") if self.mla else None
        if groups and count % groups:
            problem = f"is {groups}, which does not divide the {count} experts"
            raise keys.fail("n_group", problem, f"it must divide {keys.name_of(*sparse.count)}")
        hidden = keys.size(sparse.hidden)
        shared = keys.size(sparse.shared_width) if sparse.shared_width else 0
        if sparse.shared_count:
            shared = hidden * keys.size(sparse.shared_count, least=0)
        return Experts(count, used, hidden, shared)

    def _mixture(self, experts: Experts) -> list[Linear]:
        sparse = self.family.sparse
        assert sparse is not None
        linears = [
            Linear(sparse.router, "router", self.dim, experts.count, sparse.biases),
            self._routed("gate_up_proj", self.dim, 2 * experts.hidden, experts, sparse.biases),
            self._routed("down_proj", experts.hidden, self.dim, experts, sparse.biases),
        ]
        if sparse.shared:
            linears += self._gated(sparse.shared, "shared", experts.shared_hidden, self._has(self.family.mlp_bias))
        if sparse.shared_gate:
            linears.append(Linear(f"{sparse.shared}_gate", "router", self.dim, 1))
        return linears

    def _routed(self, name: str, inputs: int, outputs: int, experts: Experts, bias: bool) -> Linear:
        return Linear(f"mlp.experts.{name}", "experts", inputs, outputs, bias, experts.count, experts.per_token)
