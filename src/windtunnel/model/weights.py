"""A GPT from weights on disk, taken one tensor after the other: an exported folder, or whatever yields tensors by name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from windtunnel.recipe import Recipe, UserError

from .build import empty_model
from .gpt import GPT
from .recursive import RecursiveGPT
from .shape import GPTShape, RecursionShape, recipe_shape


def load_weights(folder: Path, *, device: torch.device | str = "cpu", compute: torch.dtype = torch.float32) -> GPT:
    """Rebuild a GPT, plain or recursive, from an exported folder.

    Raises:
        UserError: a file is missing, damaged, or its tensors do not match shape.json.
    """
    try:
        fields = json.loads((folder / "shape.json").read_text())
        lists: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
        if lists.get("recursion") is not None:
            lists["recursion"] = RecursionShape(**lists["recursion"])
        shape = GPTShape(**lists)
        # Without the index: every file of an export belongs to it.
        files = sorted(folder.glob("model*.safetensors"))
        if not files:
            raise FileNotFoundError("it has no model.safetensors")
        return _model(shape, _of_files(files), device, compute, str(folder))
    except (OSError, ValueError, TypeError, SafetensorError) as error:
        raise UserError(f"{folder} is not an exported model: {error}", "write one with: windtunnel export RUN") from None


def _of_files(files: Iterable[Path]) -> Iterator[tuple[str, torch.Tensor]]:
    for file in files:
        with safe_open(file, framework="pt", device="cpu") as shard:
            for name in shard.keys():  # noqa: SIM118 - it is no mapping
                yield name, shard.get_tensor(name)


def fast_dtype(device: torch.device) -> torch.dtype:
    """Return what to compute in where nothing else is asked for: bf16 where the hardware has it, else fp32."""
    # bf16 in hardware begins with compute capability 8.
    fast = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 8
    return torch.bfloat16 if fast else torch.float32


def model_of_recipe(
    recipe: Recipe, vocab: int, weights: Iterable[tuple[str, torch.Tensor]], device: torch.device, source: str
) -> GPT:
    """Return the recipe's GPT, plain or recursive, with weights as checkpoints hold them, computing in `fast_dtype`.

    Args:
        recipe: that the model is made by.
        vocab: tokens of its tokenizer.
        weights: whole tensors by name; taken one by one.
        device: where the model is to be.
        source: where the weights are from, for the error's words.

    Raises:
        UserError: the weights do not fit the recipe.
    """
    return _model(recipe_shape(recipe, vocab), weights, device, fast_dtype(device), source)


@torch.no_grad()
def _model(
    shape: GPTShape, weights: Iterable[tuple[str, torch.Tensor]], device: torch.device | str, compute: torch.dtype, source: str
) -> GPT:
    """Build a model with these weights, in fp32 on `device`."""
    model = empty_model(shape, device, compute)
    # Crossed off one by one: what is left in the end was in no file.
    missing = dict(model.named_parameters())
    for name, tensor in weights:
        own = missing.pop(name, None)
        if own is None or own.shape != tensor.shape:
            expected = "no tensor of that name" if own is None else str(list(own.shape))
            raise UserError(f"{source}: the tensors do not fit the shape: {name} is {list(tensor.shape)}, expected {expected}")
        own.copy_(tensor)
    if missing:
        raise UserError(f"{source}: the tensors do not fit the shape: {min(missing)} is missing")
    model.weights_changed()
    if isinstance(model, RecursiveGPT) and model.recursion.inference is not None:
        model.supervision = model.recursion.inference
    return model.eval()
