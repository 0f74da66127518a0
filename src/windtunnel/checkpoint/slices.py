"""What a rank holds of a tensor, told to PyTorch's Distributed Checkpoint (DCP). Light: DCP is imported when it asks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
    from torch.distributed.checkpoint.planner import WriteItem

Offsets = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Slice:
    """Elements [start, stop) of a flattened tensor, held by this rank; other ranks hold the others.

    Attributes:
        local: the elements, 1-D, on any device; loading writes into it.
        shape: of the whole tensor.
        start: index of the first element in the flattened tensor.
    """

    local: Tensor
    shape: Offsets
    start: int = 0

    @property
    def stop(self) -> int:
        """Return the index after the last element."""
        return self.start + self.local.numel()

    def size(self) -> torch.Size:
        """Return the whole tensor's shape."""
        return torch.Size(self.shape)

    # The three names by which DCP asks a value that is no tensor what it holds: torch/distributed/_checkpointable.py.

    def __create_write_items__(self, name: str, value: Any) -> list[WriteItem]:
        from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
        from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

        properties, size = TensorProperties.create_from_tensor(self.local), self.size()
        return [
            WriteItem(
                MetadataIndex(name, chunk.offsets), WriteItemType.SHARD, tensor_data=TensorWriteData(chunk, properties, size)
            )
            for chunk in self.__create_chunk_list__()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

        return [ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes, _ in self._boxes()]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        for offsets, sizes, at in self._boxes():
            if index.offset is None or torch.Size(offsets) == index.offset:
                return self.local[at : at + math.prod(sizes)].view(sizes)
        raise ValueError(f"{index.fqn} has no box at {index.offset} on this rank")

    def _boxes(self) -> Iterator[tuple[Offsets, Offsets, int]]:
        """Yield (offsets, sizes, index of its first element in `local`)."""
        assert self.local.dim() == 1
        at = 0
        for offsets, sizes in boxes(self.shape, self.start, self.stop):
            yield offsets, sizes, at
            at += math.prod(sizes)


Value = Tensor | Slice
"""What is saved: a Tensor (replicated), a DTensor (sharded), or a Slice."""


def boxes(shape: Offsets, start: int, stop: int) -> Iterator[tuple[Offsets, Offsets]]:
    """Yield (offsets, sizes) of the boxes that make up elements [start, stop) of a tensor, in the order of its elements.

    A range of a matrix is the end of a row, whole rows, and the beginning of a row; in more dimensions the two ends
    are ranges of a smaller tensor.
    """
    empty = math.prod(shape) == 0
    if empty or not shape:  # nothing, or one number
        if empty or start < stop:
            yield (0,) * len(shape), shape
        return
    inner = math.prod(shape[1:])
    # The first row may be begun by another rank, and the last one ended by another.
    row, into = divmod(start, inner)
    head = min(stop, start + inner - into) if into else start
    yield from _in_row(shape, row, start, head)
    first, last = -(-head // inner), stop // inner
    if first < last:
        yield (first, *(0 for _ in shape[1:])), (last - first, *shape[1:])
    yield from _in_row(shape, last, max(head, last * inner), stop)


def _in_row(shape: Offsets, row: int, start: int, stop: int) -> Iterator[tuple[Offsets, Offsets]]:
    if start < stop:
        # Inside a row the same question comes again, for a tensor of one dimension less.
        base = row * math.prod(shape[1:])
        for offsets, sizes in boxes(shape[1:], start - base, stop - base):
            yield (row, *offsets), (1, *sizes)
