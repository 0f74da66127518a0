"""What a scale model is made of besides the recipe's rules: a small Hugging Face config, and an excerpt of the corpus."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.recipe import UserError

if TYPE_CHECKING:
    from windtunnel.data import CorpusFile

MOST_FILES = 200
"""Of a corpus, that an excerpt is taken from."""

LAYERS, HEADS, HEAD_DIM, HIDDEN, VOCAB, EXPERTS = 2, 4, 16, 128, 512, 8

_SIZES: dict[str, int] = {
    "hidden_size": HEADS * HEAD_DIM,
    "intermediate_size": HIDDEN,
    "head_dim": HEAD_DIM,
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
    "query_pre_attn_scalar": HEAD_DIM,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
}
_DROPPED = ("mlp_only_layers", "no_rope_layers", "dtype", "torch_dtype")
_TOKENS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None}
"""Those of the real vocabulary would not be in the small one."""


def small_config(raw: dict[str, Any], vocab: int = VOCAB) -> dict[str, Any]:
    """The same model with 2 layers of each kind's beginning, 4 heads of 16 channels and 512 tokens.

    Ratios that decide code paths stay: heads to key/value heads (up to 4), tied tables, windows, experts, latent attention.
    """
    small = {key: value for key, value in raw.items() if key not in _DROPPED}
    for key, size in _SIZES.items():
        if isinstance(small.get(key), int) and not isinstance(small[key], bool):
            small[key] = min(small[key], size) if small[key] > 0 else small[key]
    small["vocab_size"] = vocab
    heads = raw.get("num_attention_heads")
    if isinstance(heads, int):
        kv = raw.get("num_key_value_heads")
        small["num_attention_heads"] = HEADS
        if isinstance(kv, int) and kv > 0:
            small["num_key_value_heads"] = max(1, HEADS // max(1, heads // kv))
    kinds = raw.get("layer_types")
    if isinstance(kinds, list) and kinds:
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


def write_excerpt(files: Sequence[CorpusFile], separator: str | None, folder: Path, size: int) -> list[Path]:
    """Write about `size` bytes of the files into `folder`, with the same separator; returns the new files.

    Raises:
        UserError: a file cannot be read or the folder not be written.
    """
    step = -(-len(files) // MOST_FILES)
    chosen = files[::step]
    share = max(1, size // len(chosen))
    made = []
    try:
        folder.mkdir(exist_ok=True)
        for number, file in enumerate(chosen):
            path = folder / f"{number:04d}.txt"
            with open(file.path, "rb") as source:
                path.write_bytes(_cut(source.read(share + 1), share, (separator or "\n").encode()))
            made.append(path)
    except OSError as error:
        raise UserError(f"excerpt of the corpus: {error.filename}: {error.strerror or error}") from None
    return made


def _cut(text: bytes, size: int, mark: bytes) -> bytes:
    """At most `size` bytes, ending at the last mark if that keeps half of them, else between characters."""
    if len(text) <= size:
        return text
    found = text.rfind(mark, size // 2, size)
    if found >= 0:
        return text[:found]
    while size > 0 and text[size] & 0xC0 == 0x80:
        size -= 1
    return text[:size]
