"""What one forward pass is given: token ids, targets and, of packed sequences, where documents begin and end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


@dataclass
class Batch:
    """A micro-batch of B sequences of T tokens, on the device that computes.

    A batch of plain text windows unpacks as `x, y = batch`; one with more than that refuses to, so that nothing is
    lost without a word.

    Attributes:
        input_ids: (B, T) int64.
        targets: (B, T) int64, the token to predict at each position; -1 where there is none.
        position_ids: (B, T) int64, counted from 0 in each packed document; None: 0 to T - 1 in every sequence.
        document_ids: (B, T) int64, equal within a packed document, and no position attends to another document;
            None: a sequence is one document.
        weights: (B, T) fp32, the factor of each target's loss; None: all are 1.
        cu_seqlens: (B T + 1,) int32, where each packed document begins in the flattened sequences, as
            variable-length attention takes it; the padding at a sequence's end counts as one. Behind the last
            document all are B T.
        extent: (2,) int64 on the host, packed documents and tokens of the longest.
        target_rows: (n,) int64, the flattened positions that have a target, and more up to a round number;
            each once. None: not known on the host.
    """

    input_ids: torch.Tensor
    targets: torch.Tensor
    position_ids: torch.Tensor | None = None
    document_ids: torch.Tensor | None = None
    weights: torch.Tensor | None = None
    cu_seqlens: torch.Tensor | None = None
    extent: torch.Tensor | None = None
    target_rows: torch.Tensor | None = None

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Return every tensor of the batch."""
        return [t for t in (getattr(self, field.name) for field in fields(self)) if t is not None]

    @property
    def plain(self) -> bool:
        """Return whether there is nothing but tokens and targets."""
        return self.position_ids is None and self.document_ids is None and self.weights is None

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Yield `input_ids` and `targets`."""
        # Whoever unpacked a packed batch would let positions attend to other documents.
        assert self.plain, "a packed batch is more than tokens and targets"
        yield self.input_ids
        yield self.targets


class Batches(Protocol):
    """Where an engine's micro-batches come from; each rank has its own, and they go on in step.

    Attributes:
        accumulation: micro-batches of one optimizer step on this rank.
        position: how far whole steps have come, over all ranks; `seek` to it gives the batches that followed.
        wait_seconds: time that `next_batch` has spent waiting for data so far.
    """

    accumulation: int
    position: int
    wait_seconds: float

    @property
    def epochs(self) -> float:
        """Return the epochs consumed, with the fraction of the current one."""
        ...

    @property
    def step_sequences(self) -> int:
        """Return what `position` grows by in a step."""
        ...

    def next_batch(self) -> Batch:
        """Return the next micro-batch of this rank."""
        ...

    def seek(self, position: int) -> None:
        """Go to a position, dropping what was prefetched."""
        ...

    def close(self) -> None:
        """End what runs in the background."""
        ...
