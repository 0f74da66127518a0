"""From a config.json to the shape of its model: keys read and checked as they are used, without torch.

What is not supported is refused with the part of the model that is the reason, where that is known.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from windtunnel.recipe import UserError, parse_json

from .blocks import Block, Experts, LatentAttention, Linear, Norm, Part
from .hf import HFShape
from .hf_families import FAMILIES, Bias, Family

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
        """Which of a key's spellings the file uses; the first where it uses none."""
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
        config=json.dumps({key: value for key, value in config.items() if key not in NOT_ARCHITECTURE}),
    )


def _sparse_layers(keys: Keys, family: Family, layers: int) -> list[bool]:
    """Which layers have experts in place of the dense MLP."""
    if family.sparse is None or family.sparse.layers == "all":
        return [family.sparse is not None] * layers
    if family.sparse.layers == "after_dense":
        first = keys.size("first_k_dense_replace", least=0)
        return [i >= first for i in range(layers)]
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
        self.head_dim = self.mla.nope_dim + self.mla.rope_dim if self.mla else self._head_dim()
        self.v_head_dim = self.mla.v_dim if self.mla else self.head_dim

    def _kv_heads(self) -> int:
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
        """Gate, up and down of a SwiGLU-like MLP."""
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
