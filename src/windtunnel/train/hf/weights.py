"""A job's weights from and to Hugging Face's files, or its adapters to peft's, under the names that files have.

Read, one parameter exists whole at a time; written, one block, gathered from the ranks and adapters merged.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from windtunnel.convert import decoded_weights, load_experts
from windtunnel.model import (
    FP8Experts,
    FrozenFP8,
    NewRows,
    blocks_of,
    encode_fp8,
    from_hub,
    holds_experts,
    merge_adapter,
    to_hub,
    token_tables,
)
from windtunnel.recipe import UserError

from ..shards import fill
from .engine import HFJob
from .network import is_adapter
from .token_rows import TokenRows, rows_beside

Named = list[tuple[str, nn.Module]]
PEFT = "base_model.model."  # before every name in peft's files
BASE = ".base_layer"  # what peft calls the layer that an adapter stands beside


def hub_weights(job: HFJob, dtype: torch.dtype, *, adapters: bool = True) -> Iterator[tuple[str, Tensor]]:
    """Yield every weight by its name in a Hugging Face checkpoint, which any engine loads; on the host, whole, contiguous.

    Those names are not always transformers' own: it holds the experts of a layer in one tensor, files hold them apart.
    All ranks must iterate to the end together; only the first one receives anything. What is tied comes once.

    Args:
        job: as `build_hf` makes it.
        dtype: of the parameters. Buffers that are saved with a model keep their own.
        adapters: merge them; else the weights are those that stand beside them.
    """
    for weights in hub_buckets(job, dtype, adapters=adapters):
        yield from weights.items()


def hub_buckets(
    job: HFJob, dtype: torch.dtype, device: torch.device | str = "cpu", *, everywhere: bool = False, adapters: bool = True
) -> Iterator[dict[str, Tensor]]:
    """Yield the same as they are gathered: what is outside the blocks, then block after block. See `whole_weights`."""
    for weights in whole_weights(job, dtype, device, everywhere=everywhere, adapters=adapters):
        yield dict(to_hub(job.network.model, weights))


@torch.no_grad()
def plain_model(job: HFJob, dtype: torch.dtype) -> PreTrainedModel:
    """Return transformers' own model with a copy of the job's weights as they are now, adapters merged, whole on every rank.

    It has a cache and masks, which the model that is trained has not; nothing of that one changes. All ranks call it together.
    """
    trained = job.network.model
    config = copy.deepcopy(trained.config)
    # Training's attention takes packed documents; generating needs masks and a cache, which PyTorch's own has. Not for models
    # that cap scores: there it would leave the cap out without a word.
    config._attn_implementation = "sdpa" if trained._supports_sdpa else "eager"
    # Without memory first, or it would be initialised for nothing.
    with torch.device("meta"):
        model = type(trained)(config)
    # Parameters alone: frequencies of rotary embeddings in bf16 would turn far positions by whole radians.
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    model.to_empty(device=job.ranks.device)
    # Memory made anew is apart again for what was one table.
    model.tie_weights()
    write_plain(job, model, dtype)
    # What is computed from the config and not saved, such as the frequencies of rotary embeddings.
    buffers = {name.replace(BASE, ""): buffer for name, buffer in trained.named_buffers()}
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])
    return model.eval()


@torch.no_grad()
def write_plain(job: HFJob, model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Write the job's weights as they are now into a model of `plain_model`, where its own lie. All ranks call it together."""
    parameters = dict(model.named_parameters())
    saved: set[str] = set()
    for weights in whole_weights(job, dtype, job.ranks.device, everywhere=True):
        for name, tensor in weights.items():
            (parameters[name] if name in parameters else model.get_buffer(name)).copy_(tensor)
        saved |= weights.keys()
    assert parameters.keys() <= saved, "a weight has no counterpart in the model that is trained"


@torch.no_grad()
def whole_weights(
    job: HFJob, dtype: torch.dtype, device: torch.device | str = "cpu", *, everywhere: bool = False, adapters: bool = True
) -> Iterator[dict[str, Tensor]]:
    """Yield the weights by transformers' names: what stands outside the blocks, then one block after the other, as copies.

    All ranks must iterate to the end together.

    Args:
        job: as `build_hf` makes it.
        dtype: of the copied parameters.
        device: of the copies.
        everywhere: all ranks get the tensors; else the first one, and the others empty mappings.
        adapters: merge them.
    """
    # After a pass blocks may still be whole on each rank; what is read here are the shards.
    job.reshard()
    seen: set[int] = set()
    modules = dict(job.network.model.named_modules())
    for group in _groups(job.network.model):
        weights: dict[str, Tensor] = {}
        for name, module in group:
            adapter = modules[name.removesuffix(BASE)] if adapters and name.endswith(BASE) else None
            # All ranks gather, whoever wants the result: it is a collective.
            for key, tensor in _own(module, adapter, dtype, seen, device).items():
                if everywhere or job.ranks.first:
                    weights[f"{name.removesuffix(BASE)}.{key}".removeprefix(".")] = tensor
        yield weights


def hub_config(job: HFJob, dtype: torch.dtype) -> dict[str, Any]:
    """Return the config.json that belongs to these weights."""
    config = copy.deepcopy(job.network.model.config)
    config.architectures = [type(job.network.model).__name__]
    config.dtype = dtype
    content: dict[str, Any] = config.to_diff_dict()
    return content | {"tie_word_embeddings": bool(config.tie_word_embeddings)}


def _groups(model: nn.Module) -> Iterator[Named]:
    """Yield all modules with their names, adapters aside: those outside the blocks, then each block's."""
    blocks = blocks_of(model)  # type: ignore[arg-type]
    inside = {id(module) for block in blocks for module in block.modules()}
    named = [(name, module) for name, module in model.named_modules() if not is_adapter(name)]
    yield [(name, module) for name, module in named if id(module) not in inside]
    for block in blocks:
        own = {id(module) for module in block.modules()}
        yield [(name, module) for name, module in named if id(module) in own]


def _own(
    module: nn.Module, adapter: nn.Module | None, dtype: torch.dtype, seen: set[int], device: torch.device | str
) -> dict[str, Tensor]:
    """Return a module's own parameters in `dtype` and saved buffers, whole; `seen` are parameters that came before."""
    held = {}
    for key, parameter in module._parameters.items():
        if parameter is not None and id(parameter) not in seen:
            seen.add(id(parameter))
            held[key] = whole_tensor(parameter)
    frozen = FrozenFP8.of(module)
    if frozen is not None:
        held = frozen.decode(held, torch.bfloat16)
    if isinstance(module, FP8Experts):
        held |= {key: _all_experts(module, key) for key in module.shared_experts.shapes}
    if adapter is not None:
        held["weight"] = merged(held["weight"], adapter)
    # A copy in any case: a tensor handed out must not change with the next update.
    full = {key: tensor.to(device, dtype, copy=True) for key, tensor in held.items()}
    if (rows := TokenRows.of(module)) is not None and "weight" in full:
        full["weight"][rows.first : rows.end] = whole_tensor(rows.rows).to(device, dtype)
    return full | {key: buffer.to(device, copy=True) for key, buffer in _saved_buffers(module).items()}


def _saved_buffers(module: nn.Module) -> dict[str, Tensor]:
    saved = module._buffers.keys() - module._non_persistent_buffers_set
    return {key: buffer for key in saved if (buffer := module._buffers[key]) is not None}


def _all_experts(module: FP8Experts, key: str) -> Tensor:
    """Gather one of transformers' tensors of all experts of a layer in bf16 from the ranks that share them."""
    weights, group = module.weights(key), module.shared_experts.group
    own = weights.decode(0, weights.codes.size(0), torch.bfloat16)
    if group.group is None:
        return own
    whole = own.new_empty(group.size * own.size(0), *own.shape[1:])
    dist.all_gather_into_tensor(whole, own, group=group.group)
    return whole


def merged(base: Tensor, adapter: Any) -> Tensor:
    """Return W + scale * B A in fp32, of every adapter beside a layer."""
    for name in adapter.lora_A:
        a, b = (whole_tensor(side[name].weight) for side in (adapter.lora_A, adapter.lora_B))
        base = merge_adapter(base, a, b, adapter.scaling[name])
    return base


def whole_tensor(tensor: Tensor) -> Tensor:
    """Return a parameter's value without its gradient, gathered where ranks hold parts of it: then all call it together."""
    value = tensor.detach()
    return value.full_tensor() if isinstance(value, DTensor) else value


# Adapters by themselves, as peft's files have them: for whoever holds the frozen weights already


@torch.no_grad()
def adapter_tensors(job: HFJob, dtype: torch.dtype, device: torch.device | str) -> dict[str, Tensor]:
    """Return every adapter's two matrices by their names in peft's files, whole, as copies; all ranks call it together."""
    job.reshard()
    found = {}
    for name, module in _adapted(job):
        for side in ("lora_A", "lora_B"):
            matrix = whole_tensor(getattr(module, side)["default"].weight)
            found[f"{PEFT}{name}.{side}.weight"] = matrix.to(device, dtype, copy=True)
    return found


def adapter_settings(job: HFJob) -> dict[str, Any]:
    """Return the adapter_config.json that belongs to them.

    Raises:
        UserError: the job has no adapters, or trains more than linear layers' own: new tokens, or layers beside experts.
    """
    adapted = _adapted(job)
    model = job.network.model
    more = any(TokenRows.of(module) is not None or holds_experts(module) for module in model.modules())
    if not adapted or more:
        why = "trains rows of new tokens, or has experts" if adapted else "has no adapter"
        raise UserError(
            f"stages.rl.engine_adapter: apart is for adapters of linear layers alone, and this model {why}",
            "--set stages.rl.engine_adapter=merged",
        )
    _, first = adapted[0]
    targets = sorted({name.rsplit(".", 1)[-1] for name, _ in adapted})
    rank = first.r["default"]
    return {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": first.scaling["default"] * rank,
        "target_modules": targets, "bias": "none", "lora_dropout": 0.0, "inference_mode": True,
    }  # fmt: skip


def _adapted(job: HFJob) -> list[tuple[str, Any]]:
    return [(name, module) for name, module in job.network.model.named_modules() if hasattr(module, "lora_A")]


# From files


@torch.no_grad()
def load_weights(model: PreTrainedModel, folder: Path, new: NewRows | None = None) -> None:
    """Fill a model, sharded or not, from a folder of safetensors files: every rank reads, and keeps its rows.

    Weights in fp8 or fp4 with block scales are decoded while they are read: nobody has to convert them first.

    Adapters are not in files: they stay as they are.

    Args:
        model: whose memory is there already.
        folder: of the files.
        new: rows for tokens that the files know nothing of; embedding and head may have fewer rows there.

    Raises:
        UserError: a file cannot be read, or weights are missing, of another shape or coded in a way that is not known.
    """
    experts = load_experts(model, folder)
    files, wanted = decoded_weights(folder), _places(model)
    # Of experts a rank reads its share alone; they never exist whole.
    files = {name: read for name, read in files.items() if name not in experts}
    tables = () if new is None else token_tables(model)
    beside = rows_beside(model)
    for name, tensor in from_hub(model, files, wanted):
        place = wanted.pop(name, None)
        if place is None:
            continue
        if new is not None and name in tables:
            tensor = new.begin(tensor)
        # Before it is written: a broadcast would fill a table from one row without a word.
        if tuple(tensor.shape) != place.shape:
            raise UserError(
                f"{folder}: {name} is of shape {list(tensor.shape)}, its config.json asks for {list(place.shape)}",
                "give the config.json that belongs to the weights",
            )
        place.put(tensor)
        if id(place.value) in beside:
            beside[id(place.value)].begin(tensor)
    # A head that is tied to the embedding is in no file of its own, and was filled with it.
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
        if is_adapter(name):
            continue
        frozen = FrozenFP8.of(module)
        held: dict[str, Tensor] = {key: p for key, p in module._parameters.items() if p is not None}
        held |= _saved_buffers(module)
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
