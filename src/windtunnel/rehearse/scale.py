"""A Hugging Face model made small by rule: its config.json with tiny numbers and every code path."""

from __future__ import annotations

from typing import Any

# As small as kernels take: channels in multiples of 16, two layers, so that one follows another.
LAYERS, HEADS, HEAD_DIM, HIDDEN, VOCAB, EXPERTS = 2, 4, 16, 128, 512, 8
VLLM_HEAD_DIM = 32
"""The narrowest heads that vLLM has kernels for on a CPU."""

# Of all architectures, beside the heads': a key that a model's config lacks is not added.
_SIZES: dict[str, int] = {
    "intermediate_size": HIDDEN,
    "vocab_size": VOCAB,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "num_experts": EXPERTS,
    "num_local_experts": EXPERTS,
    "n_routed_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "sliding_window": 64,
    "hidden_size_per_layer_input": 16,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
}
# Lists by layer number, which would name layers that are gone; the format is the recipe's to say.
_DROPPED = ("mlp_only_layers", "no_rope_layers", "dtype", "torch_dtype")
_TOKENS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None}
"""Those of the real vocabulary would not be in the small one."""


def small_config(raw: dict[str, Any], vocab: int = VOCAB, head_dim: int = HEAD_DIM) -> dict[str, Any]:
    """Return the same model with 2 layers of each kind's beginning, 4 heads of 16 channels and 512 tokens.

    Ratios that decide code paths stay: heads to key/value heads (up to 4), tied tables, windows, experts, latent attention.
    """
    small = {key: value for key, value in raw.items() if key not in _DROPPED}
    heads = {"hidden_size": HEADS * head_dim, "head_dim": head_dim, "query_pre_attn_scalar": head_dim}
    for key, size in (_SIZES | heads).items():
        if isinstance(small.get(key), int) and not isinstance(small[key], bool):
            # 0 and -1 switch parts of a model off.
            small[key] = min(small[key], size) if small[key] > 0 else small[key]
    small["vocab_size"] = vocab
    count = raw.get("num_attention_heads")
    if isinstance(count, int):
        kv = raw.get("num_key_value_heads")
        small["num_attention_heads"] = HEADS
        if isinstance(kv, int) and kv > 0:
            small["num_key_value_heads"] = max(1, HEADS // max(1, count // kv))
    kinds = raw.get("layer_types")
    if isinstance(kinds, list) and kinds:
        # A layer of each kind at least: each has code of its own.
        chosen = list(dict.fromkeys(kinds))
        small["layer_types"] = (chosen * LAYERS)[: max(LAYERS, len(chosen))]
        small["num_hidden_layers"] = len(small["layer_types"])
    else:
        small["num_hidden_layers"] = LAYERS
    if isinstance(raw.get("max_window_layers"), int):
        small["max_window_layers"] = 1
    if isinstance(raw.get("sliding_window_pattern"), int):
        small["sliding_window_pattern"] = 2
    return small | _TOKENS
