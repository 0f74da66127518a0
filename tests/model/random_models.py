"""Models with random weights, and tokens for them."""

from __future__ import annotations

import torch
from torch import Tensor

from windtunnel.model import GPT, GPTShape


def random_weights(model: GPT, dtype: torch.dtype = torch.float32) -> GPT:
    """Weights that are nowhere zero: outputs are zero at initialisation and would hide errors."""
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.normal_(0, weight.size(1) ** -0.5, generator=generator)
            else:
                weight.uniform_(0.4, 1.1, generator=generator)
    model.compute = dtype
    return model.to(dtype)


def tokens(shape: GPTShape, batch: int = 3, seed: int = 9) -> tuple[Tensor, Tensor]:
    """Random tokens and what follows them; a few have no target."""
    idx = torch.randint(0, shape.vocab, (batch, shape.sequence + 1), generator=torch.Generator().manual_seed(seed))
    targets = idx[:, 1:].clone()
    targets[0, :5] = -1
    return idx[:, :-1], targets
