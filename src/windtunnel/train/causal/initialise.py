"""Random weights as transformers initialises them, the same for a seed whatever the number of ranks."""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from windtunnel.model import FrozenFP8

from .shards import fill


@torch.no_grad()
def initialise(model: PreTrainedModel, device: torch.device, seed: int) -> None:
    """Fill a model whose parameters and buffers lie on `device` uninitialised, sharded or not.

    One module at a time is made whole in fp32, so that no rank ever holds more than its largest one.
    Each module's numbers depend on the seed and on its name alone.
    """
    devices = [device] if device.type == "cuda" else []
    done: set[int] = set()
    with torch.random.fork_rng(devices=devices):
        for name, module in model.named_modules():
            own = {key: p for key, p in module._parameters.items() if p is not None and id(p) not in done}
            if not own and not module._buffers:
                continue
            done.update(id(p) for p in own.values())
            torch.manual_seed(_seed(seed, name.replace(".base_layer", "")))  # with an adapter or without
            whole = _whole(module, device)
            if ".lora_" in name:
                _initialise_adapter(name, whole)
            else:
                model._init_weights(whole)
            for key, full in _stored(module, whole).items():
                if key in own:
                    fill(own[key], full)


def _seed(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()) >> 1


def _whole(module: nn.Module, device: torch.device) -> nn.Module:
    """A stand-in of the module with its own parameters whole in fp32; it shares the buffers."""
    # Not copy.copy, which would construct anew a module that FSDP2 has wrapped.
    whole = object.__new__(type(module))
    whole.__dict__.update(module.__dict__)
    shapes = {key: p.shape for key, p in module._parameters.items() if p is not None}
    frozen = FrozenFP8.of(module)
    if frozen is not None:
        shapes = frozen.original_shapes(shapes)
    whole._parameters = {key: None for key in module._parameters} | {  # type: ignore[assignment]
        key: nn.Parameter(torch.empty(shape, dtype=torch.float32, device=device)) for key, shape in shapes.items()
    }
    return whole


def _stored(module: nn.Module, whole: nn.Module) -> dict[str, Tensor]:
    full: dict[str, Tensor] = {key: p.detach() for key, p in whole._parameters.items() if p is not None}
    frozen = FrozenFP8.of(module)
    return full if frozen is None else frozen.encode(full)


def _initialise_adapter(name: str, whole: nn.Module) -> None:
    """LoRA's A as peft does it, B zero, so that an adapter changes nothing at first."""
    for parameter in whole.parameters(recurse=False):
        if ".lora_B" in name:
            parameter.zero_()
        else:
            nn.init.kaiming_uniform_(parameter, a=math.sqrt(5))
