"""A model's config.json: found and read, its keys checked as they are used, without torch.

What is not supported is refused with the part of the model that is the reason, where that is known.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from windtunnel.recipe import UserError, parse_json

# A config.json has a few kilobytes; more is something else, such as weights.
LARGEST = 16 * 2**20
# No dimension of a model comes near.
LARGEST_SIZE = 10**8


def refuse_adapter(folder: Path, key: str) -> None:
    """Refuse a folder that peft wrote: its weights are no model by themselves.

    Args:
        folder: to look at.
        key: of the recipe, which names the folder.

    Raises:
        UserError: says of which model it is an adapter, and how to make one model of both.
    """
    if not (folder / "adapter_config.json").is_file():
        return
    try:
        base = str(json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))["base_model_name_or_path"])
    except (OSError, ValueError, KeyError, TypeError):
        base = "an unknown model"
    raise UserError(
        f"{key}: {folder} holds an adapter (of {base}), and training begins with whole weights",
        "merge it into its base (peft: merge_and_unload, then save_pretrained) and name that folder",
    )


def read_config(path: Path) -> dict[str, Any]:
    """Return the mapping in a config.json, or in the one of a folder.

    Raises:
        UserError: missing, unreadable, not JSON, or not an object.
    """
    expected = "give a Hugging Face model's config.json, its folder, or a built-in name"
    file = path
    try:
        file = path / "config.json" if path.is_dir() else path
        if not file.is_file():  # nor a pipe, which would never end
            if path.is_dir():
                refuse_adapter(path, "model.config")
            raise UserError(f"model.config: {path} {'has no config.json' if path.is_dir() else 'is no file'}", expected)
        # Looked at before it is read: a recipe may name a file of weights by mistake.
        size = file.stat().st_size
        if size > LARGEST:
            raise UserError(f"model.config: {file} has {size / 2**20:.0f} MiB, too much for a config.json", expected)
        content = parse_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"model.config: cannot read {file}: {error.strerror or error}", expected) from None
    except UnicodeDecodeError:
        raise UserError(f"model.config: {file} is not text", expected) from None
    except ValueError as error:
        raise UserError(f"model.config: {file} is not JSON: {error}", expected) from None
    if not isinstance(content, dict):
        raise UserError(f"model.config: {file} holds a {_kind(content)}, not an object of keys", expected)
    return content


class Keys:
    """The keys of one config.json over a family's defaults; whatever cannot be is a UserError with file and key."""

    def __init__(self, source: str, values: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self.source = source
        self.values = values
        self.defaults = defaults

    def fail(self, key: str, problem: str, fix: str) -> UserError:
        """Return the error to raise about a key."""
        return UserError(f"{self.source}: {key} {problem}", fix)

    def name_of(self, *keys: str) -> str:
        """Tell which of a key's spellings the file uses; the first where it uses none."""
        return next((key for key in keys if self.values.get(key) is not None), keys[0])

    def size(self, *keys: str, least: int = 1, most: int = LARGEST_SIZE) -> int:
        """Return a whole number from `least` to `most`, under any of the key's spellings; it must be there or have a default."""
        value = self.optional_size(*keys, least=least, most=most)
        if value is None:
            raise self.fail(keys[0], "is missing", f"add {keys[0]}, a whole number, as the model's authors publish it")
        return value

    def optional_size(self, *keys: str, least: int = 1, most: int = LARGEST_SIZE) -> int | None:
        """Return a size as `size` does, or None where it is neither there nor has a default."""
        key = self.name_of(*keys)
        value = self._get(key)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.fail(key, f"is {str(value)[:80]}", f"{key} must be a whole number from {least} to {most:,}")
        return value

    def flag(self, key: str) -> bool:
        """Return a truth value; false where it is neither there nor has a default."""
        value = self._get(key)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self.fail(key, f"is {str(value)[:80]}", f"{key} must be true or false")
        return value

    def listed(self, key: str, length: int | None, kind: type) -> list[Any] | None:
        """Return a list of `kind`, of `length` elements unless that is None; None where the key is absent."""
        value = self._get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(v, kind) for v in value):
            raise self.fail(key, f"is {_kind(value)}", f"{key} must be a list of {kind.__name__}")
        if length is not None and len(value) != length:
            raise self.fail(key, f"has {len(value)} elements", f"give one for each of the {length} layers (num_hidden_layers)")
        return value

    def _get(self, key: str) -> Any:
        # An explicit null counts: Mistral's "sliding_window": null means none, its default is 4096.
        return self.values[key] if key in self.values else self.defaults.get(key)


def _kind(value: Any) -> str:
    return {list: "list", str: "string", type(None): "null", bool: "boolean"}.get(type(value), "number")


# model_type -> what it has that the families do not.
STATE_SPACE = "state-space blocks, which keep a state in place of attention's keys and values"
LINEAR = "linear-attention blocks"
ENCODER = "an encoder beside the decoder"
BIDIRECTIONAL = "attention to both sides"
DIFFERENT = "blocks without a gated MLP (an older kind of decoder)"
UNGATED = "an MLP without a gate"
PARALLEL = "attention and MLP beside one another"
FUSED = "gate and up in one matrix beside queries, keys and values apart"
NEIGHBOURS = "rotary positions that turn neighbouring channels"
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
    **dict.fromkeys(("arcee", "apertus", "nanochat", "nemotron", "persimmon"), UNGATED),
    **dict.fromkeys(("cohere", "cohere2"), PARALLEL),
    **dict.fromkeys(("glm", "glm4"), FUSED),
    **dict.fromkeys(("stablelm", "phimoe"), "norms with biases"),
    **dict.fromkeys(("helium", "ernie4_5", "ernie4_5_moe"), NEIGHBOURS),
    "exaone4": "rotary positions in the layers with windows alone",
    "hunyuan_v1_dense": "norms of queries and keys behind their rotary positions",
    "bitnet": "norms inside attention and MLP",
    "diffllama": "differential attention",
    "jetmoe": "experts of attention",
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
    """Raise a UserError if a model is not supported; it names the part that is not, where that is known.

    Args:
        config: the content of a config.json.
        source: what to call it.
        supported: model types that are supported.
    """
    supported = sorted(supported)
    # What is known not to be supported is named first: its model type may be known all the same.
    part = _part(config)
    if part is None and config.get("model_type") in supported:
        return
    accepted = f"supported model types: {', '.join(supported)}"
    inner = config.get("text_config")
    # Models of several kinds of input hold a text model that may be supported by itself.
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
    why = ": which part of it differs is not known here" if isinstance(model_type, str) else ""
    raise UserError(f"{source}: model_type {model_type!r} is not supported{why}", hint + accepted)


def _part(config: Mapping[str, Any]) -> str | None:
    """Return the key and the part that it describes, as the start of a sentence; None where nothing stands out."""
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
