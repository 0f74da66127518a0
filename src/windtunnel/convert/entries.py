"""What a conversion makes of which tensors: weights and their scales are paired, layers chosen, the config corrected.

Everything that can be wrong with a checkpoint's names, types and grids is an error here, before a byte is written.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from windtunnel.model import FETCH_AGAIN, Stored, StoredModel
from windtunnel.recipe import UserError

from .decode import CODINGS, Coding, grid_of
from .quantization import ACTIVATIONS, PACKED, Quantization, check_method, read_quantization

To = Literal["bf16", "fp8"]
BLOCK = (128, 128)
GROUP = 32
"""Weights that share a scale in MX formats."""
SCALE_TYPES = ("F32", "BF16", "F16", "F8_E8M0", "U8")
CODED = {"F8_E4M3": "e4m3", "F8_E5M2": "e5m2", "F4": "e2m1"}
LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
MIXTRAL_EXPERT = re.compile(r"\.experts\.\d+\.w[123]\.weight$")
"""How Mixtral and its like call an expert's gate, down and up projection."""
EXPERT = re.compile(r"(.*\.experts)\.(\d{1,6})\.(gate|up|down)_proj\.weight")
MTP = re.compile(r"^(?:model\.)?mtp\.")
FURTHER = "num_nextn_predict_layers"


@dataclass(frozen=True)
class Output:
    """A tensor that is written."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class Entry:
    """One tensor of the source and what is made of it.

    Attributes:
        outputs: the tensor itself; in fp8 also its scale.
        kind: 'copy' its bytes, 'decode' them into bf16, 'encode' them into fp8.
        matrices: how many (rows, columns) it holds one after the other, as weights and not as bytes.
        block: rows and columns that share a scale.
        transposed: each matrix is written as (columns, rows), as gpt-oss holds its experts in bf16.
    """

    outputs: tuple[Output, ...]
    kind: Literal["copy", "decode", "encode"]
    weight: Stored
    scale: Stored | None = None
    coding: Coding | None = None
    matrices: int = 1
    rows: int = 1
    columns: int = 1
    block: tuple[int, int] = BLOCK
    transposed: bool = False

    @property
    def grid(self) -> tuple[int, int]:
        """Return rows and columns of blocks in a matrix, the last ones perhaps cut off."""
        return grid_of(self.rows, self.columns, self.block)

    @property
    def row_bytes(self) -> int:
        """Return the bytes of a row of codes."""
        assert self.coding is not None
        return self.columns // self.coding.per_byte


@dataclass(frozen=True)
class Choice:
    """What to convert, and to what.

    Attributes:
        layers: only these blocks, which are then numbered from 0.
        mtp: keep or drop the blocks that predict further tokens; with `layers` they go.
    """

    to: To = "bf16"
    layers: tuple[int, ...] | None = None
    mtp: Literal["keep", "drop"] = "keep"


def make_entries(source: StoredModel, choice: Choice) -> tuple[list[Entry], list[str]]:
    """Return what to write, in the order of the files, and the names that are left out.

    Raises:
        UserError: a weight without a scale, a scale without a weight, a grid that does not fit, or a format that is not known.
    """
    quantized = read_quantization(source)
    check_method(source, quantized)
    pairs = _pair(source, quantized)
    scales = {scale.name for scale in pairs.values()}
    entries, left_out = [], []
    for name, tensor in source.tensors.items():
        # Written with their weights, or gone with them.
        if name in scales:
            continue
        renamed = _renamed(name, source.config, choice)
        if renamed is None or name.endswith(ACTIVATIONS):
            left_out.append(name)
        elif name in pairs:
            entries.append(_decoded(source, quantized, tensor, pairs[name], renamed))
        elif choice.to == "fp8" and _is_linear(tensor):
            entries.append(_encoded(tensor, renamed))
        else:
            whole = Output(renamed, tensor.dtype, tensor.shape, tensor.bytes)
            entries.append(Entry((whole,), "copy", tensor))
    _check_found(source, choice, entries, bool(pairs))
    return entries, left_out


def _check_found(source: StoredModel, choice: Choice, entries: list[Entry], quantised: bool) -> None:
    if choice.to == "bf16" and not quantised:
        raise UserError(f"{source.folder}: none of its weights is quantised", "use the folder as it is")
    if choice.to == "fp8" and quantised:
        raise UserError(f"{source.folder}: its weights are quantised already", "convert it to bf16 first: --to bf16")
    if not entries:
        raise UserError(f"{source.folder}: nothing is left to convert", "choose other layers with --only-layers")
    if choice.to == "fp8" and not any(entry.kind == "encode" for entry in entries):
        raise UserError(f"{source.folder}: it has no linear layers to write in fp8", "name a folder with bf16 weights of a model")
    # Stacked and single names of one tensor, or two layers that became one by --only-layers.
    twice = {entry.outputs[0].name: entry for entry in entries}
    if len(twice) < len(entries):
        name = next(entry.outputs[0].name for entry in entries if twice[entry.outputs[0].name] is not entry)
        raise UserError(f"{source.folder}: two tensors would be written as {name}", FETCH_AGAIN)


# Pairs of weights and scales


def _pair(source: StoredModel, quantized: Quantization) -> dict[str, Stored]:
    """Return the scale of every quantised weight by the weight's name."""
    tensors = source.tensors
    pairs: dict[str, Stored] = {}
    for name, tensor in tensors.items():
        if name.endswith("_blocks") and tensor.dtype == "U8":
            # gpt-oss names both after the module, without .weight.
            scale = tensors.get(name.removesuffix("_blocks") + "_scales")
        elif tensor.dtype in CODED or tensor.dtype in ("I8", "U8"):
            scale = next((tensors[other] for other in _scale_names(name) if other in tensors), None)
            scale = _of_stack(source, quantized, tensor) if scale is None else scale
        else:
            continue
        if scale is not None:
            pairs[name] = scale
        # Bytes without a scale may be anything; fp8 codes without one are half a weight.
        elif tensor.dtype in CODED or name.endswith(("_blocks", PACKED)):
            raise UserError(
                f"{source.folder / tensor.file}: {name} is {tensor.dtype} and has no scale ({_scale_names(name)[0]} or the like)",
                "its scale may be in a file that is not here: " + FETCH_AGAIN,
            )
    used = {scale.name for scale in pairs.values()}
    for name, tensor in tensors.items():
        if name not in used and _is_scale(tensor, tensors):
            raise UserError(
                f"{source.folder / tensor.file}: {name} is a scale of no quantised weight",
                "its weight may be in a file that is not here, or is no longer quantised: " + FETCH_AGAIN,
            )
    return pairs


def _scale_names(weight: str) -> list[str]:
    """Return how the scale of a weight may be called: DeepSeek-V3, DeepSeek-V4, compressed-tensors, Mistral, gpt-oss."""
    if weight.endswith("_blocks"):
        return [weight.removesuffix("_blocks") + "_scales"]
    if weight.endswith(PACKED):
        return [weight.removesuffix("_packed") + "_scale"]
    stem = weight.removesuffix(".weight")
    names = [f"{weight}_scale_inv", f"{stem}.scale", f"{weight}_scale", f"{stem}.qscale_weight"]
    return names if stem != weight else [names[0], names[2]]


def _of_stack(source: StoredModel, quantized: Quantization, weight: Stored) -> Stored | None:
    """Return the part of stacked scales that is an expert's: transformers saves so what it quantised itself.

    Raises:
        UserError: a scale is of the gate's last rows and of the first ones of the projection up.
    """
    found = EXPERT.fullmatch(weight.name)
    joined = found is not None and found[3] != "down"
    stack = source.tensors.get(f"{found[1]}.{'gate_up' if joined else 'down'}_proj_scale_inv") if found is not None else None
    if found is None or stack is None or len(stack.shape) != 3 or int(found[2]) >= stack.shape[0]:
        return None
    experts, rows, columns = stack.shape
    size = stack.bytes // experts
    start = stack.start + int(found[2]) * size
    if joined and rows > 1:
        height = (*quantized.blocks, BLOCK)[0][0]
        if rows % 2 or weight.shape[0] % height:
            raise UserError(
                f"{source.folder / stack.file}: a scale of {stack.name} is for {height} rows of gate and up together, and the "
                f"gate of an expert has {weight.shape[0]}",
                "quantise the model again with a block that divides the rows of its experts",
            )
        rows, size = rows // 2, size // 2
        start += size * (found[3] == "up")
    return replace(stack, shape=(rows, columns), start=start, bytes=size)


def _is_scale(tensor: Stored, tensors: dict[str, Stored]) -> bool:
    """Return whether a tensor that no weight claimed is a scale all the same, and not just called so (hc_attn_scale)."""
    name = tensor.name
    beside = tensors.get(name.removesuffix("_scales") + "_blocks") if name.endswith("_scales") else None
    return (
        name.endswith(("_scale_inv", ".weight_scale", ".qscale_weight"))
        or tensor.dtype == "F8_E8M0"
        or (name.endswith("_scales") and tensor.dtype == "U8" and beside is None)
    )


def _decoded(source: StoredModel, quantized: Quantization, weight: Stored, scale: Stored, name: str) -> Entry:
    """Return the entry of a quantised weight."""
    if scale.dtype not in SCALE_TYPES:
        raise UserError(f"{source.folder / scale.file}: {scale.name} is {scale.dtype}", f"scales are {', '.join(SCALE_TYPES)}")
    shape, coding = weight.shape, CODINGS[CODED.get(weight.dtype, "e2m1")]
    if weight.name.endswith("_blocks"):
        return _gpt_oss(source, weight, scale, name.removesuffix("_blocks"))
    if weight.dtype in ("I8", "U8"):  # two to a byte; as F4 the shape counts weights
        shape = (*shape[:-1], 2 * shape[-1])
    rows, columns = (1, *shape)[-2:] if shape else (1, 1)
    matrices = math.prod(shape[:-2])
    block = _block(source, quantized, weight, scale, shape, coding)
    # Under the name that the same model has in bf16.
    output = Output(name.removesuffix("_packed"), "BF16", shape, 2 * math.prod(shape))
    return Entry((output,), "decode", weight, scale, coding, matrices, rows, columns, block)


def _gpt_oss(source: StoredModel, weight: Stored, scale: Stored, name: str) -> Entry:
    """Return the entry of gpt-oss's experts: (E, O, groups, 16) bytes and (E, O, groups) scales become (E, groups * 32, O)."""
    if len(weight.shape) != 4 or weight.shape[3] != GROUP // 2 or scale.shape != weight.shape[:3] or scale.dtype == "F32":
        raise _misfit(source, weight, scale, "(experts, rows, groups, 16) bytes with (experts, rows, groups) scales")
    experts, rows, groups, _ = weight.shape
    shape = (experts, groups * GROUP, rows)
    output = Output(name, "BF16", shape, 2 * math.prod(shape))
    return Entry((output,), "decode", weight, scale, CODINGS["e2m1"], experts, rows, groups * GROUP, (1, GROUP), transposed=True)


def _block(
    source: StoredModel, quantized: Quantization, weight: Stored, scale: Stored, shape: tuple[int, ...], coding: Coding
) -> tuple[int, int]:
    """Return how many rows and columns share a scale: as the config says, never as the shapes would also allow.

    A grid of 2 rows over 192 rows is one of 128-row blocks, cut off; dividing would make 96 of it, silently wrong.
    """
    grid, leading = scale.shape, shape[:-2]
    rows, columns = (1, *shape)[-2:] if shape else (1, 1)
    groups = (*leading, rows, -(-columns // GROUP)) if len(shape) > 1 else (columns // GROUP,)
    if scale.dtype in ("F8_E8M0", "U8") and grid == groups and columns % GROUP == 0:
        return (1, GROUP)
    if coding.name == "e2m1":
        raise _misfit(source, weight, scale, f"{list(groups)}, one for {GROUP} weights")
    # As the config says; DeepSeek-V3's where it says nothing.
    for block in quantized.blocks or (BLOCK,):
        if len(shape) > 1 and grid == (*leading, *grid_of(rows, columns, block)):
            return block
    # One scale for all: taken for that only where the config does not name blocks.
    if quantized.by_row and (grid == (*leading, 1, 1) or (math.prod(grid) == 1 and not leading)):
        return (max(1, rows), max(1, columns))
    if quantized.by_row and grid in ((*leading, rows, 1), (*leading, rows)) and len(shape) > 1:
        return (1, max(1, columns))
    block = (*quantized.blocks, BLOCK)[0]
    wanted = [*leading, *grid_of(rows, columns, block)]
    rest = f"; or {[*leading, rows, 1]}, one for each row; or one for the tensor" if quantized.by_row else ""
    raise _misfit(source, weight, scale, f"{wanted}, one for {block[0]} x {block[1]} weights{rest}")


def _misfit(source: StoredModel, weight: Stored, scale: Stored, wanted: str) -> UserError:
    return UserError(
        f"{source.folder / scale.file}: {scale.name} is {scale.dtype} {list(scale.shape)}, which does not fit {weight.name} "
        f"{weight.dtype} {list(weight.shape)}: expected {wanted}",
        "config.json's quantization_config says which weights share a scale, as weight_block_size for example: take the config "
        "and the files of one model",
    )


# fp8


def _is_linear(tensor: Stored) -> bool:
    """Return whether DeepSeek-V3 would hold this in fp8: projections and experts of the blocks; no router, norm or head."""
    name = tensor.name
    linear = name.endswith(("proj.weight", "proj_with_mqa.weight")) or MIXTRAL_EXPERT.search(name) is not None
    inside = LAYER.search(name) is not None and linear
    return inside and not name.endswith(".eh_proj.weight") and len(tensor.shape) == 2 and tensor.dtype in ("BF16", "F16", "F32")


def _encoded(tensor: Stored, name: str) -> Entry:
    rows, columns = tensor.shape
    grid = grid_of(rows, columns, BLOCK)
    weight = Output(name, "F8_E4M3", tensor.shape, rows * columns)
    scale = Output(f"{name}_scale_inv", "F32", grid, 4 * math.prod(grid))
    return Entry((weight, scale), "encode", tensor, None, CODINGS["e4m3"], 1, rows, columns)


# Layers and the config


def parse_layers(text: str) -> tuple[int, ...]:
    """Return the numbers in '0-1' or '0,3-5', in order.

    Raises:
        UserError: it is neither.
    """
    numbers: set[int] = set()
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,5})\s*(?:-\s*(\d{1,5})\s*)?", part)
        if found is None or int(found[2] or found[1]) < int(found[1]):
            raise UserError(
                f"--only-layers {text}: {part.strip()!r} is no layer and no range", "write --only-layers 0-1, or 0,3-5"
            )
        numbers.update(range(int(found[1]), int(found[2] or found[1]) + 1))
    return tuple(sorted(numbers))


def _blocks(config: dict[str, Any]) -> int | None:
    """Return how many blocks the model has without those that predict further tokens."""
    count = text_part(config).get("num_hidden_layers")
    return count if isinstance(count, int) else None


def text_part(config: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a config.json that describes the language model: itself, or its text_config."""
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) and "num_hidden_layers" in inner else config


def _renamed(name: str, config: dict[str, Any], choice: Choice) -> str | None:
    """Return a tensor's name after layers were chosen; None if it goes."""
    if _is_further(name, config):
        return name if choice.mtp == "keep" and choice.layers is None else None
    found = LAYER.search(name)
    if choice.layers is None or found is None:
        return name
    if (layer := int(found[1])) not in choice.layers:
        return None
    return f"{name[: found.start(1)]}{choice.layers.index(layer)}{name[found.end(1) :]}"


def _is_further(name: str, config: dict[str, Any]) -> bool:
    """Return whether a tensor is of a block that predicts further tokens."""
    # DeepSeek counts such blocks on behind the others; others call them mtp.
    found, count = LAYER.search(name), _blocks(config)
    return MTP.match(name) is not None or (found is not None and count is not None and int(found[1]) >= count)


def make_config(config: dict[str, Any], choice: Choice, entries: Iterable[Entry]) -> dict[str, Any]:
    """Return the config.json that belongs to what is written."""
    made = copy.deepcopy(config)
    text = text_part(made)
    # Models with images describe the language model in a part of its own, and some say the same in both.
    for place in (made, text):
        for key in ("quantization_config", "compression_config", "expert_dtype"):
            place.pop(key, None)
        for key in ("dtype", "torch_dtype"):
            if key in place:
                place[key] = "bfloat16"
    if made and not {"dtype", "torch_dtype"} & text.keys():
        text["dtype"] = "bfloat16"
    if choice.to == "fp8":
        # Named, or engines would look for scales of routers and heads.
        kept = {entry.outputs[0].name for entry in entries if entry.kind == "copy" and len(entry.outputs[0].shape) == 2}
        made["quantization_config"] = {
            "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": list(BLOCK),
            "modules_to_not_convert": sorted(name.removesuffix(".weight") for name in kept if name.endswith(".weight")),
        }  # fmt: skip
    if choice.layers is not None:
        _choose_layers(text, choice.layers)
    if FURTHER in text and not any(_is_further(entry.outputs[0].name, config) for entry in entries):
        text[FURTHER] = 0  # dropped, or never there: transformers loses them on saving and goes on claiming them
    return made


def _choose_layers(text: dict[str, Any], layers: tuple[int, ...]) -> None:
    """Correct what a config says of each layer, or of how many there are."""
    count = text.get("num_hidden_layers")
    if not isinstance(count, int):
        return
    if layers[-1] >= count:
        raise UserError(f"--only-layers: the model has layers 0-{count - 1}, not {layers[-1]}", f"name some of 0-{count - 1}")
    text["num_hidden_layers"] = len(layers)
    for key in ("first_k_dense_replace", "num_hash_layers"):  # how many of the first blocks are different
        if isinstance(text.get(key), int):
            text[key] = sum(layer < text[key] for layer in layers)
    for key, value in text.items():
        # Lists with an entry for each layer; other lists of that length exist, hence the endings.
        if isinstance(value, list) and len(value) >= count and key.endswith(("_types", "_ratios", "_pattern", "_layers_list")):
            text[key] = [value[layer] for layer in layers]
