"""Parameters of one kind kept in contiguous buffers, their optimizer states sharded over ranks (ZeRO-2).

Every parameter is a view into a group's buffer, and its gradient into another, so that reducing,
updating and gathering touch each group once and copy nothing. Each rank owns one contiguous part of
every buffer: it reduces, updates and sends out that part only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

StateKey = tuple[str, str, int, int]
"""(parameter name, state name, start, stop): a range of the flattened parameter."""


@dataclass
class Scalars:
    """What changes from step to step: the schedule's factor on all learning rates, momentum, matrix weight decay."""

    lr_scale: float
    momentum: float
    weight_decay: float


class Group:
    """Parameters of one kind in one buffer of `world` equal parts."""

    def __init__(self, named: list[tuple[str, nn.Parameter]], size: int, rank: int, world: int, device: torch.device) -> None:
        self.named, self.rank, self.world = named, rank, world
        self.part = -(-size // world)
        self.weights = torch.zeros(self.part * world, device=device)
        self.grads = torch.zeros(self.part * world, device=device)
        self.offsets: dict[str, int] = {}
        at = 0
        for name, parameter in named:
            span = slice(at, at + parameter.numel())
            self.weights[span].copy_(parameter.detach().reshape(-1))
            parameter.data = self.weights[span].view(parameter.shape)
            parameter.grad = self.grads[span].view(parameter.shape)
            self.offsets[name] = at
            at = span.stop
        self.average: Tensor | None = None

    @property
    def owned(self) -> slice:
        """This rank's part of the buffers."""
        return slice(self.rank * self.part, (self.rank + 1) * self.part)

    def reduce(self) -> Any:
        """Sum gradients over ranks into the owned part; returns a handle to wait for, or None."""
        if self.world == 1:
            return None
        if dist.get_backend() == "gloo":
            return dist.all_reduce(self.grads, async_op=True)
        return dist.reduce_scatter_tensor(self.grads[self.owned], self.grads, async_op=True)

    def gather(self) -> Any:
        """Send the owned weights to all ranks; returns a handle to wait for, or None."""
        if self.world == 1:
            return None
        return dist.all_gather_into_tensor(self.weights, self.weights[self.owned].clone(), async_op=True)

    def owned_ranges(self) -> Iterator[tuple[str, int, int, int]]:
        """(name, start, stop within the parameter, start within the owned part) of each parameter this rank owns some of."""
        low, high = self.owned.start, self.owned.stop
        for name, parameter in self.named:
            begin = self.offsets[name]
            start, stop = max(low, begin), min(high, begin + parameter.numel())
            if start < stop:
                yield name, start - begin, stop - begin, start - low

    def start_average(self) -> None:
        """Keep a running average of the owned weights, which begins as what they are now."""
        if self.average is None:
            self.average = torch.empty_like(self.weights[self.owned])
        self.average.copy_(self.weights[self.owned])

    def average_in(self, decay: float) -> None:
        """Move the average towards the owned weights: each update counts 1 - decay."""
        if self.average is not None:
            self.average.lerp_(self.weights[self.owned], 1.0 - decay)

    def swap(self) -> None:
        """Exchange the owned weights with their average; done again, everything is as it was, bit for bit."""
        assert self.average is not None, "no average is kept"
        raw = self.weights[self.owned].clone()
        self.weights[self.owned].copy_(self.average)
        self.average.copy_(raw)

    def averages(self) -> Iterator[tuple[StateKey, Tensor]]:
        """What stands in the place of the average, as states: the raw weights while they are swapped."""
        if self.average is not None:
            for name, start, stop, at in self.owned_ranges():
                yield (name, "raw", start, stop), self.average[at : at + stop - start]

    def update(self, scalars: Scalars) -> None:
        """One update of the owned weights."""
        raise AssertionError("groups update themselves")

    def states(self) -> Iterator[tuple[StateKey, Tensor]]:
        """The optimizer's states of the owned weights."""
        raise AssertionError("groups know their states")


def _scalar(value: float) -> Tensor:
    # 0-d CPU tensors enter compiled graphs as arguments: a new learning rate does not recompile.
    return torch.tensor(value, dtype=torch.float32)


class MatrixGroup(Group):
    """Matrices of one shape under Muon; a rank owns whole matrices."""

    def __init__(self, named, shape, rate, rank, world, device, update: Callable[..., None]) -> None:  # type: ignore[no-untyped-def]
        rows, columns = shape
        per_rank = -(-len(named) // world)
        super().__init__(named, per_rank * world * rows * columns, rank, world, device)
        self.shape, self.rate, self._update = shape, rate * max(1.0, rows / columns) ** 0.5, update
        self.count = max(0, min(per_rank, len(named) - rank * per_rank))
        self.momentum = torch.zeros(self.count, rows, columns, device=device)
        small = (rows, 1) if rows >= columns else (1, columns)
        self.second = torch.zeros(self.count, *small, device=device)
        self.low_precision = device.type == "cuda"

    def _stack(self, buffer: Tensor) -> Tensor:
        rows, columns = self.shape
        return buffer[self.owned][: self.count * rows * columns].view(self.count, rows, columns)

    def update(self, scalars: Scalars) -> None:
        if self.count:
            self._update(
                self._stack(self.weights), self._stack(self.grads), self.momentum, self.second,
                _scalar(self.rate * scalars.lr_scale), _scalar(scalars.momentum), _scalar(0.9),
                _scalar(scalars.weight_decay), self.low_precision,
            )  # fmt: skip

    def states(self) -> Iterator[tuple[StateKey, Tensor]]:
        for i, (name, start, stop, _) in enumerate(self.owned_ranges()):
            yield (name, "momentum", start, stop), self.momentum[i].view(-1)
            yield (name, "second", 0, self.second[i].numel()), self.second[i].view(-1)


class VectorGroup(Group):
    """Tables, head and scalars under AdamW; a rank owns a range of the flat buffer."""

    def __init__(self, named, rate, betas, decay, rank, world, device, update: Callable[..., None]) -> None:  # type: ignore[no-untyped-def]
        super().__init__(named, sum(p.numel() for _, p in named), rank, world, device)
        self.rate, self.betas, self.decay, self._update = rate, betas, decay, update
        self.first = torch.zeros(self.part, device=device)
        self.second = torch.zeros(self.part, device=device)
        self.steps = 0

    def update(self, scalars: Scalars) -> None:
        self.steps += 1
        self._update(
            self.weights[self.owned], self.grads[self.owned], self.first, self.second,
            _scalar(self.rate * scalars.lr_scale), _scalar(self.betas[0]), _scalar(self.betas[1]),
            _scalar(self.decay), _scalar(self.steps),
        )  # fmt: skip

    def states(self) -> Iterator[tuple[StateKey, Tensor]]:
        for name, start, stop, at in self.owned_ranges():
            yield (name, "first", start, stop), self.first[at : at + stop - start]
            yield (name, "second", start, stop), self.second[at : at + stop - start]
