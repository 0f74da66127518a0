"""What a scale model is made of besides the recipe's rules: a small Hugging Face config, and an excerpt of the corpus."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.recipe import UserError

if TYPE_CHECKING:
    from windtunnel.data import Conversation, CorpusFile, PreparedData

MOST_FILES, LEAST_DOCUMENT = 50, 4096
"""Files of a corpus that an excerpt is taken from, and the bytes to which no document is cut."""

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
    """Return the same model with 2 layers of each kind's beginning, 4 heads of 16 channels and 512 tokens.

    Ratios that decide code paths stay: heads to key/value heads (up to 4), tied tables, windows, experts, latent attention.
    """
    small = {key: value for key, value in raw.items() if key not in _DROPPED}
    for key, size in _SIZES.items():
        if isinstance(small.get(key), int) and not isinstance(small[key], bool):
            # 0 and -1 switch parts of a model off.
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


def write_excerpt(files: Sequence[CorpusFile], separator: str | None, path: Path, size: int) -> None:
    """Write the beginnings of the files, an equal share of each and about `size` bytes in all, as JSON lines.

    Raises:
        UserError: a file cannot be read, or the excerpt not be written.
    """
    from windtunnel.data import read_documents

    chosen = files[:: -(-len(files) // MOST_FILES)]
    share = max(1, size // len(chosen))
    try:
        with open(path, "w", encoding="utf-8") as lines:
            for file in chosen:
                left = share
                batches = read_documents(file, separator, longest=max(share, LEAST_DOCUMENT))
                for text in (batch.document(i) for batch in batches for i in range(len(batch))):
                    kept = text.encode()[:left].decode("utf-8", "ignore")
                    lines.write(json.dumps({"text": kept}) + "\n")
                    left -= len(kept.encode())
                    if left <= 0 or not kept:
                        break
    except OSError as error:
        raise UserError(f"excerpt of the corpus: {error.filename}: {error.strerror or error}") from None


def write_theses_excerpt(prepared: PreparedData, path: Path, size: int) -> None:
    """Write about `size` bytes of prepared theses as JSON lines, of every split as many and spread over its period.

    Raises:
        UserError: the excerpt cannot be written.
    """
    try:
        with open(path, "w", encoding="utf-8") as lines:
            for split, count in prepared.facts["kept"].items():
                bytes_each = (prepared.folder / f"{split}.jsonl").stat().st_size / count
                wanted = max(1, round(size / len(prepared.facts["kept"]) / bytes_each))
                for thesis in itertools.islice(prepared.theses(split), 0, None, -(-count // wanted)):
                    lines.write(json.dumps(thesis.to_record(), ensure_ascii=True) + "\n")
    except OSError as error:
        raise UserError(f"excerpt of the corpus: {error.filename}: {error.strerror or error}") from None


def write_prompts_excerpt(records: Iterable[dict[str, Any]], path: Path, size: int) -> None:
    """Write the first records, about `size` bytes of them, as JSON lines.

    Raises:
        UserError: a file cannot be read, or the excerpt not be written.
    """
    try:
        with open(path, "w", encoding="utf-8") as lines:
            for record in records:
                size -= lines.write(json.dumps(record, ensure_ascii=True, default=str) + "\n")
                if size <= 0:
                    break
    except OSError as error:
        raise UserError(f"excerpt of the corpus: {error.filename}: {error.strerror or error}") from None


def write_conversations_excerpt(conversations: Iterable[Conversation], path: Path, size: int) -> None:
    """Write the first conversations, about `size` bytes of them, as JSON lines with messages.

    Raises:
        UserError: a file cannot be read, or the excerpt not be written.
    """
    try:
        with open(path, "w", encoding="utf-8") as lines:
            for conversation in conversations:
                tools = {} if conversation.tools is None else {"tools": conversation.tools}
                size -= lines.write(json.dumps({"messages": conversation.messages, **tools}, ensure_ascii=True) + "\n")
                if size <= 0:
                    break
    except OSError as error:
        raise UserError(f"excerpt of the corpus: {error.filename}: {error.strerror or error}") from None
