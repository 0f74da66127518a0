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

from windtunnel.checkpoint import Slice


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
        # All parts are of one length, which collectives ask for: the buffers are filled up with zeros, which stay zero.
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
        """Return this rank's part of the buffers."""
        return slice(self.rank * self.part, (self.rank + 1) * self.part)

    def reduce(self) -> Any:
        """Sum gradients over ranks into the owned part; return a handle to wait for, or None."""
        if self.world == 1:
            return None
        # The whole sum is more than the owned part needs; only that part is read.
        if dist.get_backend() == "gloo":
            return dist.all_reduce(self.grads, async_op=True)
        return dist.reduce_scatter_tensor(self.grads[self.owned], self.grads, async_op=True)

    def gather(self) -> Any:
        """Send the owned weights to all ranks; return a handle to wait for, or None."""
        if self.world == 1:
            return None
        return dist.all_gather_into_tensor(self.weights, self.weights[self.owned].clone(), async_op=True)

    def slices(self, owned: Tensor) -> Iterator[tuple[str, Slice]]:
        """Yield the part of each parameter in a buffer of the owned part's length; empty where this rank owns none of it."""
        low, high = self.owned.start, self.owned.stop
        for name, parameter in self.named:
            begin = self.offsets[name]
            start = min(max(low, begin), high)
            stop = max(start, min(high, begin + parameter.numel()))
            yield name, Slice(owned[start - low : stop - low], tuple(parameter.shape), max(0, start - begin))

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

    def weight_state(self) -> Iterator[tuple[str, Tensor | Slice]]:
        """Yield the weights; where an average is kept its parts, and the raw weights' as states."""
        if self.average is None:
            for name, parameter in self.named:
                yield f"model.{name}", parameter.detach()
            return
        for name, part in self.slices(self.average):
            yield f"model.{name}", part
        for name, part in self.slices(self.weights[self.owned]):
            yield f"optimizer.raw.{name}", part

    def update(self, scalars: Scalars) -> None:
        """Update the owned weights from their gradients, which are complete, and the states."""
        raise AssertionError("groups update themselves")

    def states(self) -> Iterator[tuple[str, Slice]]:
        """Yield the optimizer's states of the owned weights."""
        raise AssertionError("groups know their states")


def _scalar(value: float) -> Tensor:
    # 0-d CPU tensors enter compiled graphs as arguments: a new learning rate does not recompile.
    return torch.tensor(value, dtype=torch.float32)


class MatrixGroup(Group):
    """Matrices of one shape under Muon; a rank owns whole matrices."""

    def __init__(self, named, shape, rate, rank, world, device, update: Callable[..., None]) -> None:  # type: ignore[no-untyped-def]
        rows, columns = shape
        # Orthogonalising takes a whole matrix, so that ranks share out matrices; the last ones may own none.
        per_rank = -(-len(named) // world)
        super().__init__(named, per_rank * world * rows * columns, rank, world, device)
        # An orthogonal matrix with more rows than columns moves each output less: Muon's factor makes up for it (Jordan 2024).
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
        """Update the owned matrices, all at once."""
        if self.count:
            self._update(
                self._stack(self.weights), self._stack(self.grads), self.momentum, self.second,
                _scalar(self.rate * scalars.lr_scale), _scalar(scalars.momentum), _scalar(0.9),
                _scalar(scalars.weight_decay), self.low_precision,
            )  # fmt: skip

    def states(self) -> Iterator[tuple[str, Slice]]:
        """Yield the momentum and the second moment of each owned matrix, by its name."""
        first = self.rank * (self.part // (self.shape[0] * self.shape[1]))
        for i in range(self.count):
            name = self.named[first + i][0]
            for kind, tensor in (("momentum", self.momentum[i]), ("second", self.second[i])):
                yield f"optimizer.{kind}.{name}", Slice(tensor.view(-1), tuple(tensor.shape), 0)


class VectorGroup(Group):
    """Tables, head and scalars under AdamW; a rank owns a range of the flat buffer."""

    def __init__(self, named, rate, betas, decay, rank, world, device, update: Callable[..., None]) -> None:  # type: ignore[no-untyped-def]
        super().__init__(named, sum(p.numel() for _, p in named), rank, world, device)
        self.rate, self.betas, self.decay, self._update = rate, betas, decay, update
        self.first = torch.zeros(self.part, device=device)
        self.second = torch.zeros(self.part, device=device)
        self.steps = 0

    def update(self, scalars: Scalars) -> None:
        """Update the owned range of the buffer."""
        self.steps += 1
        self._update(
            self.weights[self.owned], self.grads[self.owned], self.first, self.second,
            _scalar(self.rate * scalars.lr_scale), _scalar(self.betas[0]), _scalar(self.betas[1]),
            _scalar(self.decay), _scalar(self.steps),
        )  # fmt: skip

    def states(self) -> Iterator[tuple[str, Slice]]:
        """Yield the owned part of each parameter's two moments, by its name; nothing of what other ranks own."""
        for kind, buffer in (("first", self.first), ("second", self.second)):
            for name, part in self.slices(buffer):
                if part.local.numel():
                    yield f"optimizer.{kind}.{name}", part
