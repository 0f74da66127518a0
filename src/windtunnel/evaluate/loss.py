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

Batches = Iterable[Iterable[Tensor]]
STEP_COLUMNS = ("supervision steps", "loss", "bits per byte", "")
ALL_SHOWN = 16  # up to so many steps have a row each; of more, powers of two, the trained number with its neighbours and the last


@dataclass(frozen=True)
class StepLoss:
    """True cross-entropy after one supervision step of a recursive model; as in `Validation`."""

    loss: float
    bits_per_byte: float


@dataclass(frozen=True)
class Validation:
    """Sums over every rank's batches. Of a recursive model: after its last supervision step.

    Attributes:
        loss: nats a target, BOS targets included: comparable with the training loss.
        bits_per_byte: bits per UTF-8 byte of text; targets that stand for no bytes (BOS) are excluded.
        tokens: targets counted by `loss`.
        bytes: bytes of text counted by `bits_per_byte`.
        steps: of a recursive model, one for each supervision step; else empty.
    """

    loss: float
    bits_per_byte: float
    tokens: int
    bytes: int
    steps: tuple[StepLoss, ...] = ()


@torch.no_grad()
def validation_loss(
    model: nn.Module, batches: Batches, token_bytes: np.ndarray[Any, Any] | Tensor, device: torch.device | str
) -> Validation:
    """Score every target of `batches`, summed over ranks when torch.distributed is initialised.

    Every rank has to call it, also one without batches. The result is the same on each.

    Args:
        model: called as model(x, y, reduction='none') -> (B, T) nats, 0 where y is -1; one that has
            `step_losses(x, y)` -> (N, B, T), nats after each of N = `supervision` steps, is asked for these instead; one
            that has `score(batch)` -> (B, T) nats gets whole batches, which may be packed.
        batches: (x, y), each (B, T) int64; y is -1 where there is no target.
        token_bytes: (vocab,) bytes each token stands for, 0 for BOS.
        device: to compute on.

    Raises:
        UserError: no rank had a target.
    """
    device = torch.device(device)
    length = torch.as_tensor(token_bytes).to(device=device, dtype=torch.long)
    per_step, score = getattr(model, "step_losses", None), getattr(model, "score", None)
    steps: int = getattr(model, "supervision", 1)
    # Of each supervision step, or once: nats of all targets, nats of those with bytes; last targets and bytes.
    # float64 counts exactly up to 2^53.
    sums = torch.zeros(2 * steps + 2, dtype=torch.float64, device=device)
    training = model.training
    model.eval()
    try:
        for batch in batches:
            if score is not None:
                found, y = score(batch)[None], batch.targets  # type: ignore[attr-defined]
            else:
                x, y = (tensor.to(device, non_blocking=True) for tensor in batch)
                found = model(x, y, reduction="none")[None] if per_step is None else per_step(x, y)
            here = y >= 0
            size = torch.where(here, length[y.clamp(min=0)], 0)
            pairs = [part for nats in found.double() for part in (nats.sum(), torch.where(size > 0, nats, 0).sum())]
            sums += torch.stack([*pairs, here.sum().double(), size.sum().double()])
    finally:
        # The caller may be in the middle of training.
        model.train(training)
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(sums)
    *nats_of, tokens, size_bytes = sums.tolist()
    if not tokens:
        raise UserError("the validation split has no targets to score", "raise data.validation or give more text")
    values = [
        StepLoss(total / tokens, text / math.log(2) / size_bytes if size_bytes else math.nan)
        for total, text in zip(nats_of[::2], nats_of[1::2], strict=True)
    ]
    last, each = values[-1], () if per_step is None else tuple(values)
    return Validation(last.loss, last.bits_per_byte, int(tokens), int(size_bytes), each)


@dataclass(frozen=True)
class LossByStep:
    """Held-out loss of a recursive model after each supervision step, beyond those that it was trained with too.

    Attributes:
        trained: supervision steps in training. steps: after 1, 2, ... of those that were used.
    """

    trained: int
    steps: tuple[StepLoss, ...]

    def to_json(self) -> dict[str, Any]:
        """Stable keys; lists begin with the first step. null: no number."""
        return {
            "trained": self.trained,
            "loss": [_finite(step.loss) for step in self.steps],
            "bits_per_byte": [_finite(step.bits_per_byte) for step in self.steps],
        }

    def rows(self) -> list[tuple[str, str, str, str]]:
        """To be printed under STEP_COLUMNS: the trained number of steps and the lowest loss are marked."""
        lowest = min(range(len(self.steps)), key=lambda i: self.steps[i].loss) + 1
        rows = []
        for number in sorted(self._shown() | {lowest}):
            step = self.steps[number - 1]
            marks = [*["trained"] * (number == self.trained), *["lowest loss"] * (number == lowest)]
            rows.append((str(number), f"{step.loss:.4f}", f"{step.bits_per_byte:.4f}", ", ".join(marks)))
        return rows

    def _shown(self) -> set[int]:
        last = len(self.steps)
        if last <= ALL_SHOWN:
            return set(range(1, last + 1))
        near = (self.trained - 1, self.trained, self.trained + 1)
        powers = (1 << i for i in range(last.bit_length()))
        return {number for number in (*powers, *near, last) if 1 <= number <= last}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
