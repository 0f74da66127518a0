"""Which part of a config.json makes its model one that is not supported, and what is."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from windtunnel.recipe import UserError

# model_type -> what it has that the families do not.
STATE_SPACE = "state-space blocks, which keep a state in place of attention's keys and values"
LINEAR = "linear-attention blocks"
ENCODER = "an encoder beside the decoder"
BIDIRECTIONAL = "attention to both sides"
DIFFERENT = "blocks without a gated MLP (an older kind of decoder)"
PARTS: Mapping[str, str] = {
    **dict.fromkeys(("mamba", "mamba2", "falcon_mamba", "codestral_mamba"), STATE_SPACE),
    **dict.fromkeys(("jamba", "zamba", "zamba2", "bamba", "nemotron_h", "granitemoehybrid", "falcon_h1", "plamo2"), STATE_SPACE),
    **dict.fromkeys(("recurrent_gemma", "rwkv", "xlstm"), "recurrent blocks"),
    **dict.fromkeys(
        ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "kimi_linear", "minimax", "olmo_hybrid", "bailing_hybrid"), LINEAR
    ),
    **dict.fromkeys(("lfm2", "lfm2_moe"), "convolution blocks"),
    **dict.fromkeys(("t5", "mt5", "umt5", "bart", "mbart", "pegasus", "marian", "t5gemma", "whisper"), ENCODER),
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "deberta-v2", "modernbert", "electra"), BIDIRECTIONAL),
    **dict.fromkeys(("gpt2", "gpt_neo", "gpt_neox", "gptj", "opt", "bloom", "falcon", "mpt", "phi", "starcoder2"), DIFFERENT),
    **dict.fromkeys(("deepseek_v32", "deepseek_v4", "glm_moe_dsa"), "sparse attention with an index of its own"),
    **dict.fromkeys(("gemma3n_text", "gemma4_text"), "embeddings per layer"),
    "llama4_text": "chunked attention and experts whose inputs are scaled",
}
# A key that is there -> the part that it describes.
TOWERS: Mapping[str, str] = {
    "vision_config": "a vision tower",
    "audio_config": "an audio tower",
    "speech_config": "a speech tower",
    "encoder": "an encoder beside the decoder",
}


def refuse_unsupported(config: Mapping[str, Any], source: str, supported: Iterable[str]) -> None:
    """Raise a UserError that names the part of the model which is not supported, if there is one.

    Args:
        config: the content of a config.json; source: what to call it; supported: model types that are.
    """
    supported = sorted(supported)
    part = _part(config)
    if part is None and config.get("model_type") in supported:
        return
    accepted = f"supported model types: {', '.join(supported)}"
    inner = config.get("text_config")
    wrapped = inner.get("model_type") if isinstance(inner, Mapping) else None
    if wrapped in supported:
        accepted = f"to plan its text model alone, save the object under text_config ({wrapped}) as a config.json"
    if part:
        raise UserError(f"{source}: {part}, which is not supported", accepted)
    model_type = config.get("model_type")
    if model_type is None:
        raise UserError(f"{source}: model_type is missing", accepted)
    near = difflib.get_close_matches(str(model_type), supported, n=3, cutoff=0.6)
    hint = f"nearest: {', '.join(near)}; " if near else ""
    raise UserError(f"{source}: model_type {model_type!r} is not supported", hint + accepted)


def _part(config: Mapping[str, Any]) -> str | None:
    """The key and the part that it describes, as the start of a sentence; None where nothing stands out."""
    if config.get("is_encoder_decoder") is True:
        return f"is_encoder_decoder is true: the model has {ENCODER}"
    for key, part in TOWERS.items():
        if isinstance(config.get(key), Mapping):
            return f"{key} describes {part}"
    if config.get("use_bidirectional_attention") is True:
        return f"use_bidirectional_attention is true: the model has {BIDIRECTIONAL}"
    model_type = config.get("model_type")
    if isinstance(model_type, str) and model_type in PARTS:
        return f"model_type {model_type} has {PARTS[model_type]}"
    return None
