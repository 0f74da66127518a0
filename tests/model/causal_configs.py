"""A small config.json of every supported family, and variants that turn its options on."""

from __future__ import annotations

from typing import Any

BASE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 101,
    "max_position_embeddings": 128,
    # Tokens of the real vocabularies would not fit this small one.
    "pad_token_id": None,
}
EXPERTS: dict[str, Any] = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 8,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 4,
    "v_head_dim": 10,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 2,
}
ABSENT = object()
BIASES = {"attention_bias": True, "mlp_bias": True}
TIED = {"tie_word_embeddings": True}

# Family -> changes to BASE; the first is the plain one.
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "llama": [{}, {**BIASES, **TIED}, {"head_dim": 10, "num_key_value_heads": None}],
    "mistral": [{"sliding_window": 32}, {"sliding_window": None, "head_dim": 16, **TIED}],
    "qwen2": [{}, TIED, {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2}],
    "qwen3": [
        {"head_dim": 16},
        {"attention_bias": True, **TIED},
        {"use_sliding_window": True, "layer_types": ["full_attention"] * 5},
    ],
    "olmo": [{}, {"attention_bias": True}],
    "olmo2": [{}, {"attention_bias": True, **TIED}],
    "olmo3": [{}, {"layer_types": ["sliding_attention"] * 2 + ["full_attention"] * 3, "sliding_window": 8}],
    "gemma": [{"head_dim": 16}, {"tie_word_embeddings": False, "attention_bias": True}],
    "gemma2": [{"head_dim": 16}, {"sliding_window": 16}],
    "gemma3_text": [{"head_dim": 16}, {"sliding_window_pattern": 2, "sliding_window": 16}],
    "phi3": [{}, {"sliding_window": 32, **TIED}],
    "granite": [{}, {**BIASES, **TIED}],
    "smollm3": [{}, {**BIASES, "use_sliding_window": True, "sliding_window": 16}, {"no_rope_layers": [1, 0, 1, 1, 0]}],
    "seed_oss": [{"head_dim": 16}, {"mlp_bias": True, "attention_out_bias": True, "attention_bias": False}],
    "mixtral": [{"num_local_experts": 6, "num_experts_per_tok": 2}, {"num_experts": 4, "num_experts_per_tok": 1, **TIED}],
    "olmoe": [{"num_experts": 6, "num_experts_per_tok": 2}, {"num_experts": 6, "num_experts_per_tok": 2, "attention_bias": True}],
    "qwen2_moe": [
        {**EXPERTS, "shared_expert_intermediate_size": 56},
        {**EXPERTS, "shared_expert_intermediate_size": 56, "qkv_bias": False, "mlp_only_layers": [0, 3]},
        {
            **EXPERTS,
            "shared_expert_intermediate_size": 56,
            "decoder_sparse_step": 2,
            "use_sliding_window": True,
            "max_window_layers": 3,
        },
    ],
    "qwen3_moe": [
        {**EXPERTS, "head_dim": 16},
        {**EXPERTS, "decoder_sparse_step": 2, "attention_bias": True, "use_sliding_window": True},
        {**EXPERTS, "num_experts": ABSENT, "num_local_experts": 4},
    ],
    "gpt_oss": [{"num_local_experts": 6, "num_experts_per_tok": 2, "head_dim": 16}],
    "deepseek_v2": [LATENT, {**LATENT, "q_lora_rank": None, **BIASES, "first_k_dense_replace": 0}],
    "deepseek_v3": [LATENT, {**LATENT, "q_lora_rank": None, "attention_bias": True, **TIED}],
}
CASES = [(family, i) for family, variants in VARIANTS.items() for i in range(len(variants))]
REQUIRED = {
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "pad_token_id",
    "num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size",
    "shared_expert_intermediate_size",
}  # fmt: skip


def small_config(family: str, variant: int = 0, **changes: Any) -> dict[str, Any]:
    """A config.json that transformers builds in no time."""
    config = {"model_type": family, **BASE, **VARIANTS[family][variant], **changes}
    return {key: value for key, value in config.items() if value is not ABSENT}


def bare_config(family: str) -> dict[str, Any]:
    """Only keys without a default: everything else is what transformers takes for missing keys."""
    config = {key: value for key, value in small_config(family).items() if key in REQUIRED}
    # A multiple of every family's default number of key and value heads.
    heads = 128 if family == "deepseek_v3" else 32
    return {"model_type": family, **config, "hidden_size": 128, "num_attention_heads": heads}
