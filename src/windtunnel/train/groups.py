"""Parameters of one kind: the optimizer's rule for them, and its states, of which each rank owns a part.

Here weights and gradients are whole on every rank (ZeRO-2; sharded ones: `group_shards`). Every parameter is a view into
its group's buffer, and its gradient into another, so that reducing, updating and gathering touch each group once and copy
nothing. Each rank owns one contiguous part of every buffer: it reduces, updates and sends out that part only.
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


Named = list[tuple[str, nn.Parameter]]
Update = Callable[..., None]


class Group:
    """Parameters of one kind, as the optimizer sees them.

    Attributes:
        named: the parameters by their names in the model.
        counts: whether the rule depends on how many updates were done. steps: so many, where it does.
    """

    named: Named
    counts = False
    steps = 0

    def reduce(self) -> Any:
        """Sum gradients over ranks into the owned part; returns a handle to wait for, or None."""
        return None

    def gather(self) -> Any:
        """Send the owned weights to all ranks; returns a handle to wait for, or None."""
        return None

    def square(self) -> Tensor:
        """Return the squared norm of the owned gradients."""
        raise NotImplementedError

    def scale(self, factor: Tensor) -> None:
        """Multiply the owned gradients."""
        raise NotImplementedError

    def clear(self) -> None:
        """Begin the next step's gradients."""
        raise NotImplementedError

    def start_average(self) -> None:
        """Keep a running average of the owned weights, which begins as what they are now."""
        raise NotImplementedError

    def average_in(self, decay: float) -> None:
        """Move the average towards the owned weights: each update counts 1 - decay."""
        raise NotImplementedError

    def swap(self) -> None:
        """Exchange the owned weights with their average; done again, everything is as it was, bit for bit."""
        raise NotImplementedError

    def weight_state(self) -> Iterator[tuple[str, Tensor | Slice]]:
        """Yield the weights; where an average is kept its parts, and the raw weights' as states."""
        raise NotImplementedError

    def update(self, scalars: Scalars) -> None:
        """Update the owned weights once."""
        raise NotImplementedError

    def states(self) -> Iterator[tuple[str, Slice]]:
        """Yield the optimizer's states of the owned weights."""
        raise NotImplementedError


class BufferGroup(Group):
    """Parameters of one kind in one buffer of `world` equal parts."""

    def __init__(self, named: Named, size: int, rank: int, world: int, device: torch.device) -> None:
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
        """See `Group`."""
        if self.world == 1:
            return None
        # The whole sum is more than the owned part needs; only that part is read.
        if dist.get_backend() == "gloo":
            return dist.all_reduce(self.grads, async_op=True)
        return dist.reduce_scatter_tensor(self.grads[self.owned], self.grads, async_op=True)

    def gather(self) -> Any:
        """See `Group`."""
        if self.world == 1:
            return None
        # From a copy of the owned part, which is itself a piece of the output.
        return dist.all_gather_into_tensor(self.weights, self.weights[self.owned].clone(), async_op=True)

    def square(self) -> Tensor:
        """See `Group`."""
        return torch.linalg.vector_norm(self.grads[self.owned]).square()

    def scale(self, factor: Tensor) -> None:
        """See `Group`."""
        self.grads[self.owned].mul_(factor)

    def clear(self) -> None:
        """See `Group`."""
        self.grads.zero_()

    def slices(self, owned: Tensor) -> Iterator[tuple[str, Slice]]:
        """Yield the part of each parameter in a buffer of the owned part's length; empty where this rank owns none of it."""
        low, high = self.owned.start, self.owned.stop
        for name, parameter in self.named:
            begin = self.offsets[name]
            start = min(max(low, begin), high)
            stop = max(start, min(high, begin + parameter.numel()))
            yield name, Slice(owned[start - low : stop - low], tuple(parameter.shape), max(0, start - begin))

    def start_average(self) -> None:
        """See `Group`."""
        if self.average is None:
            self.average = torch.empty_like(self.weights[self.owned])
        self.average.copy_(self.weights[self.owned])

    def average_in(self, decay: float) -> None:
        """See `Group`."""
        if self.average is not None:
            self.average.lerp_(self.weights[self.owned], 1.0 - decay)

    def swap(self) -> None:
        """See `Group`."""
        assert self.average is not None, "no average is kept"
        # By a copy, not by sums and differences: those would round, and training would not go on to the bit.
        raw = self.weights[self.owned].clone()
        self.weights[self.owned].copy_(self.average)
        self.average.copy_(raw)

    def weight_state(self) -> Iterator[tuple[str, Tensor | Slice]]:
        """See `Group`."""
        if self.average is None:
            for name, parameter in self.named:
                yield f"model.{name}", parameter.detach()
            return
        for name, part in self.slices(self.average):
            yield f"model.{name}", part
        for name, part in self.slices(self.weights[self.owned]):
            yield f"optimizer.raw.{name}", part


def _scalar(value: float) -> Tensor:
    # 0-d CPU tensors enter compiled graphs as arguments: a new learning rate does not recompile.
    return torch.tensor(value, dtype=torch.float32)


class Muon:
    """Muon's rule and states for matrices of one shape, of which this rank owns some, whole.

    Attributes:
        first: number of the first one owned. count: how many are. per_rank: how many a rank owns, but for the last ones.

    Args:
        matrices: of this shape there are.
        rate: peak learning rate of a square matrix.
        update: `muon_update`, compiled or not.
    """

    def __init__(
        self, shape: tuple[int, ...], matrices: int, rate: float, rank: int, world: int, device: torch.device, update: Update
    ) -> None:
        rows, columns = shape
        # Orthogonalising takes a whole matrix, so that ranks share out matrices; the last ones may own none.
        self.per_rank = -(-matrices // world)
        self.first = rank * self.per_rank
        self.count = max(0, min(self.per_rank, matrices - self.first))
        self.momentum = torch.zeros(self.count, rows, columns, device=device)
        small = (rows, 1) if rows >= columns else (1, columns)
        self.second = torch.zeros(self.count, *small, device=device)
        self.low_precision = device.type == "cuda"
        # A tall matrix's orthogonal update moves outputs less: Muon's usual factor makes up for it.
        self._rate, self._update = rate * max(1.0, rows / columns) ** 0.5, update

    def update(self, weights: Tensor, grads: Tensor, scalars: Scalars, span: slice | None = None) -> None:
        """Update the matrices owned, or a span of them, (matrices, rows, columns), in place."""
        momentum, second = (state if span is None else state[span] for state in (self.momentum, self.second))
        self._update(
            weights, grads, momentum, second, _scalar(self._rate * scalars.lr_scale), _scalar(scalars.momentum),
            _scalar(0.9), _scalar(scalars.weight_decay), self.low_precision,
        )  # fmt: skip

    def states(self, named: Named) -> Iterator[tuple[str, Slice]]:
        """Yield the states of the matrices owned, `named` being all of this shape."""
        for i in range(self.count):
            name = named[self.first + i][0]
            for kind, tensor in (("momentum", self.momentum[i]), ("second", self.second[i])):
                yield f"optimizer.{kind}.{name}", Slice(tensor.view(-1), tuple(tensor.shape), 0)


@dataclass(frozen=True)
class AdamW:
    """AdamW's rule for one kind of parameters; `update`: `adamw_update`, compiled or not."""

    rate: float
    betas: tuple[float, float]
    decay: float
    apply: Update

    def update(self, weight: Tensor, grad: Tensor, first: Tensor, second: Tensor, scalars: Scalars, step: int) -> None:
        """Update flat tensors of one length in place; `step` counts from 1."""
        self.apply(
            weight, grad, first, second, _scalar(self.rate * scalars.lr_scale), _scalar(self.betas[0]), _scalar(self.betas[1]),
            _scalar(self.decay), _scalar(step),
        )  # fmt: skip


class MatrixGroup(BufferGroup):
    """Matrices of one shape under Muon; a rank owns whole matrices."""

    def __init__(
        self, named: Named, shape: tuple[int, ...], rate: float, rank: int, world: int, device: torch.device, update: Update
    ) -> None:
        self.muon = Muon(shape, len(named), rate, rank, world, device, update)
        super().__init__(named, self.muon.per_rank * world * shape[0] * shape[1], rank, world, device)
        self.shape = shape

    def _stack(self, buffer: Tensor) -> Tensor:
        rows, columns = self.shape
        count = self.muon.count
        return buffer[self.owned][: count * rows * columns].view(count, rows, columns)

    def update(self, scalars: Scalars) -> None:
        """See `Group`."""
        if self.muon.count:
            self.muon.update(self._stack(self.weights), self._stack(self.grads), scalars)

    def states(self) -> Iterator[tuple[str, Slice]]:
        """See `Group`."""
        return self.muon.states(self.named)


class VectorGroup(BufferGroup):
    """Tables, head and scalars under AdamW; a rank owns a range of the flat buffer."""

    counts = True

    def __init__(self, named: Named, rule: AdamW, rank: int, world: int, device: torch.device) -> None:
        super().__init__(named, sum(p.numel() for _, p in named), rank, world, device)
        self._rule = rule
        self.first = torch.zeros(self.part, device=device)
        self.second = torch.zeros(self.part, device=device)

    def update(self, scalars: Scalars) -> None:
        """See `Group`."""
        self.steps += 1
        self._rule.update(self.weights[self.owned], self.grads[self.owned], self.first, self.second, scalars, self.steps)

    def states(self) -> Iterator[tuple[str, Slice]]:
        """See `Group`."""
        for kind, buffer in (("first", self.first), ("second", self.second)):
            for name, part in self.slices(buffer):
                # A rank that owns nothing of a parameter has no state of it, and its checkpoint names none.
                if part.local.numel():
                    yield f"optimizer.{kind}.{name}", part
