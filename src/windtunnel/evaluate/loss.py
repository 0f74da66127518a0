"""Loss in nats a token and in bits a byte; the second does not depend on the tokenizer."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from windtunnel.recipe import UserError

Batches = Iterable[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Validation:
    """Sums over every rank's batches.

    Attributes:
        loss: nats a target, BOS targets included: comparable with the training loss.
        bits_per_byte: bits per UTF-8 byte of text; targets that stand for no bytes (BOS) are excluded.
        tokens: targets counted by `loss`.
        bytes: bytes of text counted by `bits_per_byte`.
        nats: their loss.
    """

    loss: float
    bits_per_byte: float
    tokens: int
    bytes: int
    nats: float


@dataclass(frozen=True)
class Measure:
    """Bits per byte and what it was computed from."""

    value: float
    nats: float
    bytes: int
    tokens: int


@torch.no_grad()
def validation_loss(
    model: nn.Module, batches: Batches, token_bytes: np.ndarray[Any, Any] | Tensor, device: torch.device | str
) -> Validation:
    """Score every target of `batches`, summed over ranks when torch.distributed is initialised.

    Every rank has to call it, also one without batches. The result is the same on each.

    Args:
        model: called as model(x, y, reduction='none') -> (B, T) nats, 0 where y is -1.
        batches: (x, y), each (B, T) int64; y is -1 where there is no target.
        token_bytes: (vocab,) bytes each token stands for, 0 for BOS.

    Raises:
        UserError: no rank had a target.
    """
    device = torch.device(device)
    length = torch.as_tensor(token_bytes).to(device=device, dtype=torch.long)
    # Nats of all targets, nats of those with bytes, targets, bytes. float64 counts exactly up to 2^53.
    sums = torch.zeros(4, dtype=torch.float64, device=device)
    training = model.training
    model.eval()
    try:
        for x, y in batches:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            nats = model(x, y, reduction="none").double()
            here = y >= 0
            size = torch.where(here, length[y.clamp(min=0)], 0)
            sums += torch.stack([nats.sum(), torch.where(size > 0, nats, 0).sum(), here.sum().double(), size.sum().double()])
    finally:
        model.train(training)
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(sums)
    total, text, tokens, size_bytes = sums.tolist()
    if not tokens:
        raise UserError("the validation split has no targets to score", "raise data.validation or give more text")
    bits = text / math.log(2) / size_bytes if size_bytes else math.nan
    return Validation(total / tokens, bits, int(tokens), int(size_bytes), text)


def bits_per_byte(
    model: nn.Module, batches: Batches, token_bytes: np.ndarray[Any, Any] | Tensor, device: torch.device | str | None = None
) -> Measure:
    """Bits per UTF-8 byte of the targets' text; BOS and padding are excluded. See `validation_loss`."""
    where = device if device is not None else next(model.parameters()).device
    result = validation_loss(model, batches, token_bytes, where)
    return Measure(result.bits_per_byte, result.nats, result.bytes, result.tokens)
