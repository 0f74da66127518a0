"""What a model's files say of how its weights are coded: the method, which weights share a scale, what is not known here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from windtunnel.model import StoredModel
from windtunnel.recipe import UserError, parse_json

METHODS = (None, "fp8", "fbgemm_fp8", "mxfp4", "mxfp8", "compressed-tensors", "modelopt")
KNOWN = "known: fp8 and fp4 with block scales (DeepSeek, MXFP8, MXFP4), and fp8 with a scale for each row or tensor"
MODELOPT = "hf_quant_config.json"
"""Where NVIDIA's ModelOpt says what others say in config.json."""
PACKED = ".weight_packed"
ACTIVATIONS = (
    ".input_scale", ".input_scale_ub", ".activation_scale", ".input_activation_scale", ".qscale_act", ".input_zero_point",
    "_proj_activation_scale", ".q_scale", ".k_scale", ".v_scale", ".prob_scale", ".k_proj.output_scale", ".v_proj.output_scale",
)  # fmt: skip
"""Scales of activations: a bf16 model has no use for them."""
NOT_KNOWN = {
    ".weight_zero_point": "moves the zero of its weights, and only codes whose zero is 0 are known here",
    ".weight_scale_2": "is a second scale of NVFP4, which is not known here",
    ".weight_global_scale": "is a second scale of NVFP4, which is not known here",
    ".bitmask": "says which weights of a sparse matrix are stored, which is not known here",
}


@dataclass(frozen=True)
class Quantization:
    """How a model's files say that its weights are coded.

    Attributes:
        keys: the keys and values as they stand there; {} where nothing is said.
        blocks: each (rows, columns) of which it is said that such weights share a scale; () where none is named.
        by_row: whether scales of a row or a whole tensor may be meant too.
    """

    keys: dict[str, Any]
    blocks: tuple[tuple[int, int], ...]
    by_row: bool


def read_quantization(source: StoredModel) -> Quantization:
    """Return what a model's config.json, or ModelOpt's file beside it, says. Raises UserError where that cannot be read."""
    keys = _keys(source)
    block = keys.get("weight_block_size")
    if block is not None and not _is_block(block):
        raise UserError(
            f"{source.folder / 'config.json'}: weight_block_size is {block!r}, expected two numbers above zero",
            "take the config.json that belongs to the weights; DeepSeek-V3's says [128, 128]",
        )
    # Every block that is named anywhere: which one a weight has, its scale's shape tells among these.
    found = [] if block is None else [block]
    for name, weights in _groups(keys).items():
        size, structure = weights.get("group_size"), weights.get("block_structure")
        if weights.get("strategy") == "block":
            if not _is_block(structure):
                what = f"config_groups.{name}.weights.block_structure is {structure!r}"
                raise UserError(f"{source.folder / 'config.json'}: {what}, expected two numbers above zero", KNOWN)
            found.append(structure)
        elif weights.get("strategy") == "group" and isinstance(size, int) and size > 0:
            found.append([1, size])
    return Quantization(keys, tuple(dict.fromkeys((rows, columns) for rows, columns in found)), bool(keys) and block is None)


def _keys(source: StoredModel) -> dict[str, Any]:
    # The first that says anything: writers differ in where they put it.
    for place in (source.config, source.config.get("text_config")):
        for key in ("quantization_config", "compression_config"):
            if isinstance(place, dict) and isinstance(place.get(key), dict):
                found: dict[str, Any] = place[key]
                return found
    path = source.folder / MODELOPT
    try:
        beside = parse_json(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as JSON: {error}", "fetch it again") from None
    keys = beside.get("quantization") if isinstance(beside, dict) else None
    return {"quant_method": "modelopt", **keys} if isinstance(keys, dict) else {}


def check_method(source: StoredModel, quantized: Quantization) -> None:
    """Refuse what is coded in a way that is not known here. Raises UserError."""
    keys, folder = quantized.keys, source.folder
    if keys.get("quant_method") not in METHODS:
        raise UserError(f"{folder}: quant_method is {keys['quant_method']}", KNOWN)
    if keys.get("transform_config"):
        raise UserError(
            f"{folder}: its weights were rotated (transform_config), and activations are to be rotated while it runs",
            f"take a checkpoint without transforms; {KNOWN}",
        )
    for name, weights in _groups(keys).items():
        if weights.get("type") == "int":
            raise UserError(f"{folder}: its weights are int{weights.get('num_bits', '')} (config_groups.{name})", KNOWN)
    # Only where the config says mxfp4: other packings have the same endings.
    packed = "mxfp4" in _formats(keys)
    for name in source.tensors:
        if name.endswith((".qweight", *(() if packed else (PACKED,)))):
            raise UserError(f"{folder}: {name} is packed in a way that is not known here", KNOWN)
        what = next((what for ending, what in NOT_KNOWN.items() if name.endswith(ending)), None)
        if what is not None:
            raise UserError(f"{folder}: {name} {what}", KNOWN)


def _groups(keys: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what compressed-tensors says of the weights of each group of layers."""
    groups = keys.get("config_groups")
    held = groups.items() if isinstance(groups, dict) else ()
    return {name: group["weights"] for name, group in held if isinstance(group, dict) and isinstance(group.get("weights"), dict)}


def _formats(keys: dict[str, Any]) -> set[str]:
    """Return how compressed-tensors packs weights, by the first word: mxfp4-pack-quantized is mxfp4."""
    groups = keys.get("config_groups")
    held = [keys, *groups.values()] if isinstance(groups, dict) else [keys]
    return {str(one["format"]).partition("-")[0] for one in held if isinstance(one, dict) and one.get("format")}


def _is_block(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(number) is int and number > 0 for number in value)
