"""A job's weights from and to Hugging Face's files, under the names that files have.

Read, one parameter exists whole at a time; written, one block, gathered from the ranks and adapters merged.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from windtunnel.model import FrozenFP8, encode_fp8
from windtunnel.recipe import UserError

from .engine import HFJob
from .network import blocks_of
from .shards import fill

Named = list[tuple[str, nn.Module]]
BASE = ".base_layer"  # what peft calls the layer that an adapter stands beside


def hub_weights(job: HFJob, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Every weight by its name in a Hugging Face checkpoint, which any engine loads; on the host, whole, contiguous.

    Those names are not always transformers' own: it holds the experts of a layer in one tensor, files hold them apart.
    All ranks must iterate to the end together; only the first one receives anything. What is tied comes once.

    Args:
        dtype: of the parameters. Buffers that are saved with a model keep their own.
    """
    from transformers.core_model_loading import revert_weight_conversion

    for weights in whole_weights(job, dtype):
        for name, tensor in revert_weight_conversion(job.network.model, weights).items():
            yield name, tensor.contiguous()


@torch.no_grad()
def whole_weights(job: HFJob, dtype: torch.dtype) -> Iterator[dict[str, Tensor]]:
    """The same by transformers' names: what stands outside the blocks, then one block after the other, as copies on the host.

    All ranks must iterate to the end together; the first one gets the tensors, the others empty mappings.
    """
    job.reshard()
    seen: set[int] = set()
    modules = dict(job.network.model.named_modules())
    for group in _groups(job.network.model):
        weights: dict[str, Tensor] = {}
        for name, module in group:
            adapter = modules[name.removesuffix(BASE)] if name.endswith(BASE) else None
            for key, tensor in _own(module, adapter, dtype, seen).items():
                if job.ranks.first:
                    weights[f"{name.removesuffix(BASE)}.{key}".removeprefix(".")] = tensor
        yield weights


def hub_config(job: HFJob, dtype: torch.dtype) -> dict[str, Any]:
    """The config.json that belongs to these weights."""
    config = copy.deepcopy(job.network.model.config)
    config.architectures = [type(job.network.model).__name__]
    config.dtype = dtype
    content: dict[str, Any] = config.to_diff_dict()
    return content | {"tie_word_embeddings": bool(config.tie_word_embeddings)}


def _groups(model: nn.Module) -> Iterator[Named]:
    """All modules with their names, adapters aside: those outside the blocks, then each block's."""
    blocks = blocks_of(model)  # type: ignore[arg-type]
    inside = {id(module) for block in blocks for module in block.modules()}
    named = [(name, module) for name, module in model.named_modules() if ".lora_" not in name]
    yield [(name, module) for name, module in named if id(module) not in inside]
    for block in blocks:
        own = {id(module) for module in block.modules()}
        yield [(name, module) for name, module in named if id(module) in own]


def _own(module: nn.Module, adapter: nn.Module | None, dtype: torch.dtype, seen: set[int]) -> dict[str, Tensor]:
    """A module's own parameters in `dtype` and saved buffers, whole; `seen` are parameters that came before."""
    held = {}
    for key, parameter in module._parameters.items():
        if parameter is not None and id(parameter) not in seen:
            seen.add(id(parameter))
            held[key] = whole_tensor(parameter)
    frozen = FrozenFP8.of(module)
    if frozen is not None:
        held = frozen.decode(held, torch.bfloat16)
    if adapter is not None:
        held["weight"] = merged(held["weight"], adapter)
    full = {key: tensor.to("cpu", dtype, copy=True) for key, tensor in held.items()}
    saved = module._buffers.keys() - module._non_persistent_buffers_set
    buffers = {key: buffer for key in saved if (buffer := module._buffers[key]) is not None}
    return full | {key: buffer.to("cpu", copy=True) for key, buffer in buffers.items()}


def merged(base: Tensor, adapter: Any) -> Tensor:
    """W + scale * B A in fp32: base (O, I), the adapter's A (R, I) and B (O, R)."""
    total = base.float()
    for name in adapter.lora_A:
        a, b = (whole_tensor(side[name].weight).float() for side in (adapter.lora_A, adapter.lora_B))
        total = total + adapter.scaling[name] * (b @ a)
    return total


def whole_tensor(tensor: Tensor) -> Tensor:
    """A parameter's value without its gradient, gathered where ranks hold parts of it: then all must call it together."""
    value = tensor.detach()
    return value.full_tensor() if isinstance(value, DTensor) else value


INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"


def weights_folder(config: str) -> Path | None:
    """Return the folder of a model's weights: `config`, if it is a folder with safetensors files; else None."""
    folder = Path(config).expanduser()
    return folder if folder.is_dir() and ((folder / INDEX).is_file() or (folder / SINGLE).is_file()) else None


@torch.no_grad()
def load_weights(model: PreTrainedModel, folder: Path) -> None:
    """Fill a model, sharded or not, from a folder of safetensors files: every rank reads, and keeps its rows.

    Adapters are not in files: they stay as they are.

    Raises:
        UserError: a file cannot be read, or weights are missing, quantised or of another shape.
    """
    files = _files(folder)
    if any(name.endswith(("_scale_inv", "_blocks", "_scales", ".qweight")) for name in files):
        raise UserError(f"{folder}: its weights are quantised", "convert them to bf16 first: windtunnel convert")
    wanted = _places(model)
    for name, tensor in _converted(model, files, {key: place.value for key, place in wanted.items()}):
        place = wanted.pop(name, None)
        if place is None:
            continue
        if tuple(tensor.shape) != place.shape:
            raise UserError(
                f"{folder}: {name} is of shape {list(tensor.shape)}, its config.json asks for {list(place.shape)}",
                "give the config.json that belongs to the weights",
            )
        place.put(tensor)
    tied = {id(place.value) for key, place in _places(model).items() if key not in wanted}
    missing = sorted(key for key, place in wanted.items() if id(place.value) not in tied)
    if missing:
        raise UserError(f"{folder} has no weights for {', '.join(missing[:3])} ({len(missing)} in all)", "download it again")


@dataclass
class _Place:
    """Where a weight of a file goes: a parameter or a saved buffer of a module."""

    module: nn.Module
    key: str
    value: Tensor
    shape: tuple[int, ...]

    def put(self, tensor: Tensor) -> None:
        frozen = FrozenFP8.of(self.module)
        if frozen is None or self.key not in frozen.shapes:
            fill(self.value, tensor.to(self.value.device))
            return
        for name, encoded in zip(("_fp8", "_scale"), encode_fp8(tensor.to(self.value.device)), strict=True):
            fill(self.module._parameters[f"{self.key}{name}"], encoded)  # type: ignore[arg-type]


def _places(model: PreTrainedModel) -> dict[str, _Place]:
    """Return where each weight goes, by transformers' names; what is tied has several."""
    places: dict[str, _Place] = {}
    for name, module in model.named_modules():
        if ".lora_" in name:
            continue
        frozen = FrozenFP8.of(module)
        held: dict[str, Tensor] = {key: p for key, p in module._parameters.items() if p is not None}
        saved = module._buffers.keys() - module._non_persistent_buffers_set
        held |= {key: b for key in saved if (b := module._buffers[key]) is not None}
        shapes = {key: tuple(tensor.shape) for key, tensor in held.items()}
        if frozen is not None:
            for key, shape in frozen.shapes.items():
                held[key], shapes[key] = held[f"{key}_fp8"], tuple(shape)
                for suffix in ("_fp8", "_scale"):
                    del held[f"{key}{suffix}"]
        for key, tensor in held.items():
            full = f"{name.replace(BASE, '')}.{key}".removeprefix(".")
            places[full] = _Place(module, key, tensor, shapes[key])
    return places


def _files(folder: Path) -> dict[str, Callable[[], Tensor]]:
    """Return what reads each tensor of a folder's files."""
    try:
        paths = [folder / SINGLE]
        if (folder / INDEX).is_file():
            paths = [folder / name for name in sorted(set(json.loads((folder / INDEX).read_text())["weight_map"].values()))]
        opened = [safe_open(path, framework="pt") for path in paths]
        return {name: partial(file.get_tensor, name) for file in opened for name in file.keys()}  # noqa: SIM118
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise UserError(f"{folder}: its weights cannot be read: {error}", "download it again") from None


def _converted(
    model: PreTrainedModel, files: dict[str, Callable[[], Tensor]], places: dict[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the files' tensors by transformers' names, such as the experts of a layer in one, a parameter at a time."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

    mapping = get_model_conversion_mapping(model)
    renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
    of_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    waiting: dict[str, WeightConverter | WeightRenaming] = {}
    for original in sorted(files, key=dot_natural_key):
        name, pattern = rename_source_key(original, renamings, converters, model.base_model_prefix, places)
        if pattern is None:
            step = waiting.setdefault(name, WeightRenaming(original, name))
        else:
            step = waiting.setdefault(name, copy.deepcopy(of_pattern[pattern]))
        step.add_tensor(name, original, pattern or original, files[original])  # type: ignore[arg-type]
    for name, step in waiting.items():
        if name in places or isinstance(step, WeightConverter):
            for target, found in step.convert(name, model=model, config=model.config).items():
                yield target, found[0] if isinstance(found, list) else found
