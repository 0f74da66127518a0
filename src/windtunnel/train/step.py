"""One optimizer step, and its results read one step later so that the host never holds up the GPU."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from windtunnel.model import GPT

from .optimizer import MuonAdamW, Scalars
from .ranks import Ranks
from .staging import Staging


class Batches(Protocol):
    """What a step reads from: `accumulation` micro-batches a step."""

    accumulation: int

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """(x, y), each (micro_batch, sequence); y is -1 where there is no target."""
        ...


@dataclass(frozen=True)
class StepResult:
    """Reduced over ranks: mean loss in nats a target, gradient norm; `finished` on the monotonic clock."""

    step: int
    loss: float
    gradient_norm: float
    finished: float


class Pending:
    """A step's results on their way to the host."""

    def __init__(self, step: int, sums: Tensor) -> None:
        self.step = step
        self._event: torch.cuda.Event | None = None
        self._finished = 0.0
        if sums.is_cuda:
            self._host = torch.empty(sums.shape, dtype=sums.dtype, pin_memory=True)
            self._host.copy_(sums, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        else:
            self._host, self._finished = sums, time.monotonic()

    def result(self) -> StepResult:
        """Wait until the step is done."""
        if self._event is not None:
            self._event.synchronize()
            self._finished = time.monotonic()
        loss, targets, square = self._host.tolist()
        return StepResult(self.step, loss / max(targets, 1.0), square**0.5, self._finished)


def run_step(
    model: GPT,
    optimizer: MuonAdamW,
    batches: Batches,
    scalars: Scalars,
    ranks: Ranks,
    staging: Staging,
    step: int,
    batch_tokens: int,
) -> Pending:
    """Forward and backward over this rank's micro-batches, then the update. Returns without waiting for the GPU.

    The loss is summed over targets and divided by the tokens of the whole batch, so that gradients
    add up to the same whatever the ranks and micro-batches.

    Args:
        step: number of this step, counted from 1.
        batch_tokens: tokens of the step over all ranks.
    """
    sums = torch.zeros(3, dtype=torch.float64, device=ranks.device)
    for x, y in _take(batches):
        loss = model(x, y, reduction="sum")
        (loss * (1.0 / batch_tokens)).backward()
        sums[0] += loss.detach()
        sums[1] += (y >= 0).sum()
    staging.before_update()
    sums[2] = optimizer.step(scalars)
    if ranks.world > 1:
        dist.all_reduce(sums)
    return Pending(step, sums)


def _take(batches: Batches) -> Iterable[tuple[Tensor, Tensor]]:
    for _ in range(batches.accumulation):
        yield batches.next_batch()
