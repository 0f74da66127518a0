"""Models with random weights for prepared data."""

from __future__ import annotations

import torch

from windtunnel.data import PreparedData
from windtunnel.model import GPT, build_model, recipe_shape
from windtunnel.recipe import Recipe


def random_gpt(recipe: Recipe, data: PreparedData, seed: int = 0) -> GPT:
    """Plain or recursive, as the recipe says; matrices are nowhere zero."""
    model = build_model(recipe_shape(recipe, data.tokenizer.vocab), seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.normal_(0, 0.15, generator=generator)
    return model
