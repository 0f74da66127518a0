"""A job's weights as everyone else knows them: gathered from the ranks, adapters merged, under the names of Hugging Face's files.

Only one block exists whole at a time, whatever the size of the model.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from windtunnel.model import FrozenFP8

from .job import CausalJob
from .network import blocks_of

Named = list[tuple[str, nn.Module]]
BASE = ".base_layer"  # what peft calls the layer that an adapter stands beside


def hub_weights(job: CausalJob, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
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
def whole_weights(job: CausalJob, dtype: torch.dtype) -> Iterator[dict[str, Tensor]]:
    """The same by transformers' names: what stands outside the blocks, then one block after the other, as copies on the host.

    All ranks must iterate to the end together; the first one gets the tensors, the others empty mappings.
    """
    for module in job.network.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # what a forward pass left gathered is in the products' dtype, not the weights' own
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


def hub_config(job: CausalJob, dtype: torch.dtype) -> dict[str, Any]:
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
