"""Models from shapes: the plain GPT, or the recursive one where the shape says so."""

from __future__ import annotations

import torch

from .gpt import GPT
from .recursive import RecursiveGPT
from .shape import GPTShape


def new_model(shape: GPTShape, compute: torch.dtype, recompute: str = "none") -> GPT:
    """Return a model on the current default device whose weights are not yet there."""
    return GPT(shape, compute) if shape.recursion is None else RecursiveGPT(shape, compute, recompute)


def build_model(
    shape: GPTShape,
    *,
    device: torch.device | str = "cpu",
    compute: torch.dtype = torch.float32,
    seed: int = 0,
    recompute: str = "none",
) -> GPT:
    """Return a model with initial weights on `device`; memory for the weights is allocated there directly.

    Args:
        shape: of the model, plain or recursive.
        device: where its weights are to be.
        compute: dtype of products; the weights themselves are fp32.
        seed: of the initial weights.
        recompute: see `RecursiveGPT`; the plain GPT keeps everything.
    """
    model = empty_model(shape, device, compute, recompute)
    model.initialise(seed)
    return model


def empty_model(shape: GPTShape, device: torch.device | str, compute: torch.dtype, recompute: str = "none") -> GPT:
    """Return a model on `device` whose weights hold whatever was there."""
    with torch.device(device):
        return new_model(shape, compute, recompute)
