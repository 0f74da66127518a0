"""Weights-only export: safetensors beside the shape, enough to rebuild the model anywhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from windtunnel.recipe import Recipe, UserError

from .build import empty_model
from .gpt import GPT
from .recursive import RecursiveGPT
from .shape import GPTShape, RecursionShape, recipe_shape

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def export_weights(folder: Path, shape: GPTShape, weights: Mapping[str, np.ndarray[Any, Any]], dtype: str = "fp32") -> Path:
    """Write model.safetensors and shape.json into `folder` and return the safetensors file.

    Args:
        folder: made where it is not there.
        shape: of the model.
        weights: parameter name -> array, as checkpoints hold them.
        dtype: fp32, bf16 or fp16.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: torch.from_numpy(np.ascontiguousarray(array)).to(DTYPES[dtype]) for name, array in weights.items()}
    path = folder / "model.safetensors"
    temporary = folder / "model.safetensors.tmp"
    save_file(tensors, temporary, metadata={"format": "pt", "windtunnel": "gpt"})
    temporary.replace(path)
    (folder / "shape.json").write_text(json.dumps(asdict(shape), indent=2) + "\n")
    return path


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
        tensors = load_file(folder / "model.safetensors", device="cpu")
    except (OSError, ValueError, TypeError, SafetensorError) as error:
        raise UserError(f"{folder} is not an exported model: {error}", "write one with: windtunnel export RUN") from None
    return _model(shape, tensors, device, compute, str(folder))


def fast_dtype(device: torch.device) -> torch.dtype:
    """Return what to compute in where nothing else is asked for: bf16 where the hardware has it, else fp32."""
    # bf16 in hardware begins with compute capability 8.
    fast = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 8
    return torch.bfloat16 if fast else torch.float32


def model_of_recipe(
    recipe: Recipe, vocab: int, weights: Mapping[str, np.ndarray[Any, Any]], device: torch.device, source: str
) -> GPT:
    """Return the recipe's GPT, plain or recursive, with weights as checkpoints hold them, computing in `fast_dtype`.

    Args:
        recipe: that the model is made by.
        vocab: tokens of its tokenizer.
        weights: parameter name -> array.
        device: where the model is to be.
        source: where the weights are from, for the error's words.

    Raises:
        UserError: the weights do not fit the recipe.
    """
    tensors = {name: torch.from_numpy(array) for name, array in weights.items()}
    return _model(recipe_shape(recipe, vocab), tensors, device, fast_dtype(device), source)


def _model(
    shape: GPTShape, weights: Mapping[str, torch.Tensor], device: torch.device | str, compute: torch.dtype, source: str
) -> GPT:
    """Weights in fp32 on `device`."""
    model = empty_model(shape, device, compute)
    try:
        model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    except RuntimeError as error:
        raise UserError(f"{source}: the tensors do not fit the shape: {str(error).splitlines()[-1].strip()}") from None
    if isinstance(model, RecursiveGPT) and model.recursion.inference is not None:
        model.supervision = model.recursion.inference
    return model.eval()
