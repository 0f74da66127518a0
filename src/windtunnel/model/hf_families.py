"""Which architectures of transformers are known, and where each differs from Llama: a table, without torch.

Read from the modelling code of transformers 5.23; tests compare every family with what it builds. The rules at the top say
which positions each layer sees, read from a config as transformers reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from .hf_config import Keys

Windows = tuple[int | None, ...]
WindowRule = Callable[["Keys", int], Windows]
KNOWN_TYPES = ("full_attention", "sliding_attention")


def none(keys: Keys, layers: int) -> Windows:
    """Return windows by which every layer sees the whole past."""
    return (None,) * layers


def every_layer(keys: Keys, layers: int) -> Windows:
    """Return `sliding_window` on all layers, where it is not null."""
    return (keys.optional_size("sliding_window"),) * layers


def every_layer_if_switched(keys: Keys, layers: int) -> Windows:
    """Return `sliding_window` on all layers, where `use_sliding_window` says so."""
    return every_layer(keys, layers) if keys.flag("use_sliding_window") else none(keys, layers)


def last_layers(keys: Keys, layers: int) -> Windows:
    """Return the windows with `use_sliding_window`: by `layer_types`, else the layers from `max_window_layers` on."""
    if not keys.flag("use_sliding_window"):
        return none(keys, layers)
    return by_type(keys, layers, lambda i: i >= keys.size("max_window_layers", least=0))


def alternate_first_layers(keys: Keys, layers: int) -> Windows:
    """Return the windows with `use_sliding_window`: by `layer_types`, else every other layer before `max_window_layers`."""
    if not keys.flag("use_sliding_window"):
        return none(keys, layers)
    return by_type(keys, layers, lambda i: i % 2 == 0 and i < keys.size("max_window_layers", least=0))


def layers_without_rope(keys: Keys, layers: int) -> Windows:
    """Return the windows with `use_sliding_window`: by `layer_types`, else the layers without rotary positions (SmolLM3)."""
    if not keys.flag("use_sliding_window"):
        return none(keys, layers)
    rotary = keys.listed("no_rope_layers", layers, int)
    interval = keys.size("no_rope_layer_interval")
    return by_type(keys, layers, lambda i: not rotary[i] if rotary else (i + 1) % interval == 0)


def full_every(interval: int, key: str | None = None) -> WindowRule:
    """Return the windows by `layer_types`, else every `interval`-th layer sees all.

    The file's `key` may name another interval.
    """

    def rule(keys: Keys, layers: int) -> Windows:
        step = keys.optional_size(key) or interval if key else interval
        return by_type(keys, layers, lambda i: (i + 1) % step != 0)

    return rule


def by_type(keys: Keys, layers: int, sliding: Callable[[int], bool]) -> Windows:
    """Return windows as `layer_types` lists them; `sliding` decides where the file has no list.

    Raises:
        UserError: a type that is neither full nor sliding attention.
    """
    window = keys.optional_size("sliding_window")
    # The newer way: where the file has a list, it alone decides.
    types = keys.listed("layer_types", layers, str)
    if types is None:
        return tuple(window if sliding(i) else None for i in range(layers))
    unknown = next((t for t in types if t not in KNOWN_TYPES), None)
    if unknown:
        raise keys.fail("layer_types", f"has {unknown!r}, which is not supported", f"supported: {', '.join(KNOWN_TYPES)}")
    return tuple(window if t == "sliding_attention" else None for t in types)


# A bias is there, is not, or as a key of the config says.
Bias = bool | str


@dataclass(frozen=True)
class Sparse:
    """How a family mixes experts.

    Attributes:
        layers: which layers have experts: all; those after `first_k_dense_replace`; or every `decoder_sparse_step`-th except
            `mlp_only_layers`.
        biases: whether router and experts have biases.
        hidden: key with the width of one expert.
        balance: whether the router keeps a saved bias per expert that balances their load.
        shared: module of the experts that every token passes.
        shared_width: key with their width; shared_count: key with how many there are, each as wide as a routed one.
        shared_gate: whether a gate of one channel scales them.
    """

    layers: Literal["all", "after_dense", "step"] = "all"
    router: str = "mlp.gate"
    biases: bool = False
    balance: bool = False
    count: tuple[str, ...] = ("num_experts", "num_local_experts")
    hidden: str = "moe_intermediate_size"
    shared: str | None = None
    shared_width: str | None = None
    shared_count: str | None = None
    shared_gate: bool = False


@dataclass(frozen=True)
class Family:
    """What one model_type builds.

    Attributes:
        latent: multi-head latent attention (MLA) in place of q, k and v projections.
        fused: one matrix for q, k and v, and one for gate and up.
        norms: modules over the residual stream or a sublayer's output; norm_weight: whether norms have weights.
        qk_norm: none; over each head, with one weight for all heads; or over all channels.
        windows: which positions each layer sees.
        sinks: a learned attention sink per head.
        whole_heads: transformers refuses a hidden_size that num_attention_heads does not divide, even with head_dim given.
        defaults: what transformers takes for a key that the file lacks.
    """

    latent: bool = False
    fused: bool = False
    qkv_bias: Bias = False
    out_bias: Bias = False
    mlp_bias: Bias = False
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    norm_weight: bool = True
    qk_norm: Literal["none", "heads", "channels"] = "none"
    windows: WindowRule = none
    sinks: bool = False
    sparse: Sparse | None = None
    whole_heads: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)


_AFTER = ("post_attention_layernorm", "post_feedforward_layernorm")
_AROUND = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
_BIASES: dict[str, Any] = {"qkv_bias": "attention_bias", "out_bias": "attention_bias"}
_QWEN: dict[str, Any] = {"sliding_window": 4096, "max_window_layers": 28, "max_position_embeddings": 32768}
_QWEN_EXPERTS: dict[str, Any] = {"layers": "step", "count": ("num_experts", "num_local_experts")}
_DEEPSEEK: dict[str, Any] = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
_DEEPSEEK_EXPERTS: dict[str, Any] = {
    "layers": "after_dense",
    "count": ("n_routed_experts", "num_local_experts", "num_experts"),
    "shared": "mlp.shared_experts",
    "shared_count": "n_shared_experts",
}
_SHORT, _LONG = {"max_position_embeddings": 2048}, {"max_position_embeddings": 131072}

# `defaults` are what the class of transformers' config would fill in: published files leave such keys out.
_DENSE: dict[str, Family] = {
    "llama": Family(**_BIASES, mlp_bias="mlp_bias", whole_heads=True, defaults=_SHORT),
    "mistral": Family(windows=every_layer, defaults={**_LONG, "num_key_value_heads": 8, "sliding_window": 4096}),
    "qwen2": Family(qkv_bias=True, windows=last_layers, defaults={**_QWEN, "num_key_value_heads": 32}),
    "qwen3": Family(
        **_BIASES, qk_norm="heads", windows=last_layers, defaults={**_QWEN, "num_key_value_heads": 32, "head_dim": 128}
    ),
    "olmo": Family(**_BIASES, norm_weight=False, defaults=_SHORT),
    "olmo2": Family(**_BIASES, norms=_AFTER, qk_norm="channels", defaults=_SHORT),
    "olmo3": Family(
        **_BIASES, norms=_AFTER, qk_norm="channels", windows=full_every(4), defaults={**_SHORT, "sliding_window": 4096}
    ),
    "gemma": Family(
        **_BIASES,
        defaults={"num_key_value_heads": 16, "head_dim": 256, "tie_word_embeddings": True, "max_position_embeddings": 8192},
    ),
    "gemma2": Family(
        **_BIASES,
        norms=_AROUND,
        windows=full_every(2),
        whole_heads=True,
        defaults={
            "num_key_value_heads": 4,
            "head_dim": 256,
            "tie_word_embeddings": True,
            "max_position_embeddings": 8192,
            "sliding_window": 4096,
        },
    ),
    "gemma3_text": Family(
        **_BIASES,
        norms=_AROUND,
        qk_norm="heads",
        windows=full_every(6, "sliding_window_pattern"),
        whole_heads=True,
        defaults={**_LONG, "num_key_value_heads": 4, "head_dim": 256, "tie_word_embeddings": True, "sliding_window": 4096},
    ),
    "phi3": Family(fused=True, windows=every_layer, defaults={"max_position_embeddings": 4096}),
    "granite": Family(**_BIASES, mlp_bias="mlp_bias", defaults=_SHORT),
    "smollm3": Family(
        **_BIASES,
        mlp_bias="mlp_bias",
        windows=layers_without_rope,
        defaults={
            "num_key_value_heads": 4,
            "tie_word_embeddings": True,
            "no_rope_layer_interval": 4,
            "max_position_embeddings": 32768,
        },
    ),
    "seed_oss": Family(
        qkv_bias="attention_bias",
        out_bias="attention_out_bias",
        mlp_bias="mlp_bias",
        defaults={"num_key_value_heads": 8, "head_dim": 128, "attention_bias": True, "max_position_embeddings": 524288},
    ),
}

_SPARSE: dict[str, Family] = {
    "mixtral": Family(
        windows=every_layer,
        sparse=Sparse(hidden="intermediate_size", count=("num_local_experts", "num_experts")),
        defaults={**_LONG, "num_key_value_heads": 8},
    ),
    "olmoe": Family(
        **_BIASES,
        qk_norm="channels",
        sparse=Sparse(hidden="intermediate_size"),
        defaults={"max_position_embeddings": 4096},
    ),
    "qwen2_moe": Family(
        qkv_bias="qkv_bias",
        windows=alternate_first_layers,
        sparse=Sparse(
            **_QWEN_EXPERTS,
            shared="mlp.shared_expert",
            shared_width="shared_expert_intermediate_size",
            shared_gate=True,
        ),
        defaults={**_QWEN, "num_key_value_heads": 16, "qkv_bias": True, "decoder_sparse_step": 1},
    ),
    "qwen3_moe": Family(
        **_BIASES,
        qk_norm="heads",
        windows=every_layer_if_switched,
        sparse=Sparse(**_QWEN_EXPERTS),
        defaults={**_QWEN, "num_key_value_heads": 4, "decoder_sparse_step": 1},
    ),
    "gpt_oss": Family(
        **_BIASES,
        windows=full_every(2),
        sinks=True,
        sparse=Sparse(router="mlp.router", biases=True, hidden="intermediate_size", count=("num_local_experts", "num_experts")),
        defaults={**_LONG, "num_key_value_heads": 8, "head_dim": 64, "attention_bias": True, "sliding_window": 128},
    ),
    "deepseek_v2": Family(
        latent=True,
        mlp_bias="mlp_bias",
        sparse=Sparse(**_DEEPSEEK_EXPERTS),
        whole_heads=True,
        defaults={**_DEEPSEEK, **_SHORT, "first_k_dense_replace": 0, "n_shared_experts": 2},
    ),
    "deepseek_v3": Family(
        latent=True,
        sparse=Sparse(**_DEEPSEEK_EXPERTS, balance=True),
        defaults={
            **_DEEPSEEK,
            "num_key_value_heads": 128,
            "first_k_dense_replace": 3,
            "n_shared_experts": 1,
            "n_group": 8,
            "max_position_embeddings": 4096,
        },
    ),
}

FAMILIES: Mapping[str, Family] = {**_DENSE, **_SPARSE}
