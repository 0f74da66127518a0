"""One optimizer step, and its results read one step later so that the host never holds up the GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
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
class Supervised:
    """What a recursive model's step has beside its last loss; reduced over ranks.

    Attributes:
        losses: mean true cross-entropy after each supervision step, nats a target.
        objective: the weighted sum that the gradient is of.
        gradient_norms: of the update after each supervision step; empty where there is one update a step.
        halting: binary cross-entropy (nats) and accuracy (0 to 1) of the halting head; None: there is none.
        solved: with a halting head, the share of samples answered wholly right after each supervision step.
    """

    losses: tuple[float, ...]
    objective: float
    gradient_norms: tuple[float, ...] = ()
    halting: tuple[float, float] | None = None
    solved: tuple[float, ...] = ()


@dataclass(frozen=True)
class StepResult:
    """Reduced over ranks: mean loss in nats a target, gradient norm. `seconds` since the step before ended."""

    step: int
    loss: float
    gradient_norm: float
    seconds: float
    supervised: Supervised | None = None


class Moment:
    """A point in the work of a device: on a GPU an event in its stream, else the time now."""

    def __init__(self, device: torch.device) -> None:
        self._time = time.monotonic()
        self._event = torch.cuda.Event(enable_timing=True) if device.type == "cuda" else None
        if self._event is not None:
            self._event.record()

    def wait(self) -> None:
        """Until the device has come this far."""
        if self._event is not None:
            self._event.synchronize()

    def seconds_since(self, earlier: Moment) -> float:
        """Both must have been reached."""
        if self._event is None or earlier._event is None:
            return self._time - earlier._time
        return earlier._event.elapsed_time(self._event) / 1e3


Reading = Callable[[list[float]], tuple[float, float, Supervised | None]]
"""From a step's sums to its loss, gradient norm and, of a recursive model, more."""


def read_plain(sums: list[float]) -> tuple[float, float, None]:
    """Of (nats, targets, squared gradient norm)."""
    loss, targets, square = sums
    return loss / max(targets, 1.0), square**0.5, None


class Pending:
    """A step's results on their way to the host: sums over ranks, and how they are read."""

    def __init__(self, step: int, sums: Tensor, began: Moment, since: Pending | None, read: Reading = read_plain) -> None:
        self.step, self._read = step, read
        self._host = torch.empty(sums.shape, dtype=sums.dtype, pin_memory=sums.is_cuda)
        self._host.copy_(sums, non_blocking=True)
        self._ended = Moment(sums.device)
        self._began = since._ended if since is not None else began

    def result(self) -> StepResult:
        """Wait until the step is done."""
        self._ended.wait()
        loss, norm, supervised = self._read(self._host.tolist())
        return StepResult(self.step, loss, norm, self._ended.seconds_since(self._began), supervised)


@dataclass(frozen=True)
class StepParts:
    """What every step of a run works with.

    Attributes:
        batch_tokens: tokens of a step over all ranks.
    """

    model: GPT
    optimizer: MuonAdamW
    batches: Batches
    ranks: Ranks
    staging: Staging
    batch_tokens: int


StepFunction = Callable[[StepParts, Scalars, int, Pending | None], Pending]
"""`run_step`, or what stands in its place for a recursive GPT."""


def run_step(parts: StepParts, scalars: Scalars, step: int, since: Pending | None) -> Pending:
    """Forward and backward over this rank's micro-batches, then the update. Returns without waiting for the GPU.

    The loss is summed over targets and divided by the tokens of the whole batch, so that gradients
    add up to the same whatever the ranks and micro-batches.

    Args:
        step: number of this step, counted from 1.
        since: the step before, if nothing but this one came after it.
    """
    ranks = parts.ranks
    began = Moment(ranks.device)
    sums = torch.zeros(3, dtype=torch.float64, device=ranks.device)
    for x, y in take(parts.batches):
        loss = parts.model(x, y, reduction="sum")
        (loss * (1.0 / parts.batch_tokens)).backward()
        sums[0] += loss.detach()
        sums[1] += (y >= 0).sum()
    parts.staging.before_update()
    sums[2] = parts.optimizer.step(scalars)
    if ranks.world > 1:
        dist.all_reduce(sums)
    return Pending(step, sums, began, since)


def take(batches: Batches) -> Iterable[tuple[Tensor, Tensor]]:
    """The micro-batches of one step."""
    for _ in range(batches.accumulation):
        yield batches.next_batch()
