"""The shape that recursion.py measures, and its batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from recursion_peer import settings

from windtunnel.recipe import load_recipe

Keep = Callable[[dict[str, Any]], None]
"""Told of every measurement as soon as it is there."""


class Size:
    """The shape of everything here: the guide's, or a toy's."""

    def __init__(self, tiny: bool, sequence: int | None = None) -> None:
        self.depth, self.sequence, self.vocab, self.batch = (2, 64, 512, 4) if tiny else (12, sequence or 1024, 50304, 32)
        self.settings = settings(self.depth, self.sequence, *((32, 32) if tiny else ()))
        self.micro = [4] if tiny else [8, 16]
        self.device = torch.device("cpu" if tiny or not torch.cuda.is_available() else "cuda")
        self.compute = torch.bfloat16 if self.device.type == "cuda" else torch.float32

    def recipe(self, *changes: str) -> Any:
        """A recipe with the fork's model."""
        return load_recipe("charlm", [*self.settings, *changes])


def wait(device: torch.device) -> None:
    """Until the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def batch_of(size: Size, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random tokens and targets."""
    made = torch.randint(0, size.vocab, (2, rows, size.sequence), device=size.device)
    return made[0], made[1]
