"""Parameters of one kind that FSDP2 has sharded: each rank updates its own rows of what AdamW has, and whole matrices of Muon's.

Weights and gradients are DTensors of which a rank holds some rows. An element's AdamW update needs no other element; Muon's
needs all of a matrix. So every rank sends its rows of each matrix to the rank that owns the matrix's states (as in `groups`),
gets the rows of its own matrices from the others, and returns them updated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from windtunnel.checkpoint import Slice

from .engine import local_part, row_offset
from .groups import AdamW, Group, Muon, Named, Scalars, Update

# A rank makes all its matrices of a shape whole at once up to this size, and one by one beyond it.
ROUND_BYTES = 2**30


class ShardGroup(Group):
    """Parameters of one kind, this rank's rows of each."""

    def __init__(self, named: Named) -> None:
        self.named = named

    def square(self) -> Tensor:
        """See `Group`."""
        norms = [torch.linalg.vector_norm(grad) for grad in self._grads()]
        return torch.stack(norms).square().sum()

    def scale(self, factor: Tensor) -> None:
        """See `Group`."""
        for grad in self._grads():
            grad.mul_(factor)

    def clear(self) -> None:
        """See `Group`."""
        for _, parameter in self.named:
            parameter.grad = None

    def weight_state(self) -> Iterator[tuple[str, Slice]]:
        """See `Group`."""
        for name, parameter in self.named:
            yield f"model.{name}", rows_of(parameter, local_part(parameter))

    def _weights(self) -> list[Tensor]:
        return [local_part(parameter) for _, parameter in self.named]

    def _grads(self) -> list[Tensor]:
        return [_grad(parameter) for _, parameter in self.named]


@dataclass(frozen=True)
class _Round:
    """Matrices that are made whole at once: as many on every rank, while it has any.

    Attributes:
        numbers: of the matrices among all of the shape, ordered by who owns them.
        own: place of this rank's among those it owns.
        sent: elements that go to each rank. received: that come from each.
    """

    numbers: tuple[int, ...]
    own: slice
    sent: list[int]
    received: list[int]


class MatrixShards(ShardGroup):
    """Matrices of one shape under Muon; a rank holds rows of all of them, and the states of some."""

    def __init__(
        self, named: Named, shape: tuple[int, ...], rate: float, rank: int, world: int, device: torch.device, update: Update
    ) -> None:
        super().__init__(named)
        self.muon = Muon(shape, len(named), rate, rank, world, device, update)
        rows, self._columns = shape
        # As FSDP2 deals them out: the same number to each rank until none are left.
        most = -(-rows // world)
        self._rows = [range(min(rows, most * r), min(rows, most * (r + 1))) for r in range(world)]
        per_rank = self.muon.per_rank
        whole = 4 * per_rank * rows * self._columns
        step = per_rank if whole <= ROUND_BYTES else 1
        self._rounds = [self._round(range(at, at + step), rank) for at in range(0, per_rank, step)]

    def _round(self, places: range, rank: int) -> _Round:
        """Take the matrices at these places among those that each rank owns."""
        per_rank, total = self.muon.per_rank, len(self.named)
        owned = [[n for n in (r * per_rank + i for i in places) if n < total] for r in range(len(self._rows))]
        # What this rank sends is its own rows of the others' matrices; what it gets, all ranks' rows of its own.
        held = len(self._rows[rank]) * self._columns
        return _Round(
            numbers=tuple(n for numbers in owned for n in numbers),
            own=slice(places.start, places.start + len(owned[rank])),
            sent=[len(numbers) * held for numbers in owned],
            received=[len(owned[rank]) * len(rows) * self._columns for rows in self._rows],
        )

    def update(self, scalars: Scalars) -> None:
        """See `Group`."""
        weights, grads = self._weights(), self._grads()
        for each in self._rounds:
            parts = [weights[n] for n in each.numbers]
            whole = self._collect(parts, each)
            gradients = self._collect([grads[n] for n in each.numbers], each)
            if whole.numel():
                self.muon.update(whole, gradients, scalars, each.own)
            # As large as the matrices themselves, and of no use while these are sent back.
            del gradients
            self._return(whole, parts, each)

    def states(self) -> Iterator[tuple[str, Slice]]:
        """See `Group`."""
        return self.muon.states(self.named)

    def _collect(self, parts: list[Tensor], each: _Round) -> Tensor:
        """Exchange this rank's rows of every matrix for all rows of its own: (matrices, rows, columns)."""
        # One after another, in the order of their owners, they stand in the order of the ranks they go to.
        sent = torch.cat([part.reshape(-1) for part in parts])
        received = sent.new_empty(sum(each.received))
        dist.all_to_all_single(received, sent, each.received, each.sent)
        del sent
        count = each.own.stop - each.own.start
        whole = received.new_empty(count, self._rows[-1].stop, self._columns)
        for rows, part in zip(self._rows, received.split(each.received), strict=True):
            whole[:, rows.start : rows.stop] = part.view(count, len(rows), self._columns)
        return whole

    def _return(self, whole: Tensor, parts: list[Tensor], each: _Round) -> None:
        """Send the rows of this rank's matrices to the ranks that hold them, and take over its own."""
        sent = torch.cat([whole[:, rows.start : rows.stop].reshape(-1) for rows in self._rows])
        received = sent.new_empty(sum(each.sent))
        dist.all_to_all_single(received, sent, each.sent, each.received)
        for part, rows in zip(parts, received.split([part.numel() for part in parts]), strict=True):
            part.copy_(rows.view_as(part))


class VectorShards(ShardGroup):
    """Tables, head and scalars under AdamW: every rank updates the rows it holds."""

    counts = True

    def __init__(self, named: Named, rule: AdamW, rank: int, world: int, device: torch.device) -> None:
        super().__init__(named)
        self._rule = rule
        self.first = [torch.zeros(part.numel(), device=device) for part in self._weights()]
        self.second = [torch.zeros(part.numel(), device=device) for part in self._weights()]

    def update(self, scalars: Scalars) -> None:
        """See `Group`."""
        self.steps += 1
        for weight, grad, first, second in zip(self._weights(), self._grads(), self.first, self.second, strict=True):
            # With fewer rows than ranks some hold none, and kernels take no empty tensor.
            if weight.numel():
                self._rule.update(weight.view(-1), grad.reshape(-1), first, second, scalars, self.steps)

    def states(self) -> Iterator[tuple[str, Slice]]:
        """See `Group`."""
        for kind, states in (("first", self.first), ("second", self.second)):
            for (name, parameter), state in zip(self.named, states, strict=True):
                if state.numel():
                    yield f"optimizer.{kind}.{name}", rows_of(parameter, state)


def rows_of(parameter: nn.Parameter, held: Tensor) -> Slice:
    """Return this rank's rows of a sharded parameter, or a state of them, as a checkpoint takes them."""
    return Slice(held.view(-1), tuple(parameter.shape), row_offset(parameter))


def _grad(parameter: nn.Parameter) -> Tensor:
    """Return this rank's rows of the gradient; zeros where the step's loss did not depend on the parameter."""
    return torch.zeros_like(local_part(parameter)) if parameter.grad is None else local_part(parameter.grad)
