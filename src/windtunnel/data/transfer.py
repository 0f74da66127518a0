"""From host arrays to tensors on the device: through pinned memory and beside the compute on CUDA, plainly elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .batch import Batch
from .documents import Array
from .packing import ROUND, coarse_round, sequence_starts, target_rows

if TYPE_CHECKING:
    import torch

# Tokens travel in their narrow type, seen as the signed type that torch supports everywhere.
_SIGNED = {"uint8": "uint8", "uint16": "int16", "uint32": "int32"}
_MASK = {"uint8": None, "uint16": 0xFFFF, "uint32": None}


@dataclass
class Ready:
    """A batch whose copy may still be under way."""

    batch: Batch
    copied: torch.cuda.Event | None = None

    def take(self) -> Batch:
        """Return the batch; the current stream waits for the copy, the host does not."""
        if self.copied is not None:
            import torch

            stream = torch.cuda.current_stream(self.batch.input_ids.device)
            stream.wait_event(self.copied)
            # Made on another stream: their memory must not be handed out again while this one reads it.
            for tensor in self.batch.tensors:
                if tensor.is_cuda:
                    tensor.record_stream(stream)
        return self.batch


def this_device(device: str | torch.device) -> torch.device:
    """Return the device with its index: 'cuda' is the current GPU of the calling thread, which other threads do not know."""
    import torch

    device = torch.device(device)
    return torch.device("cuda", torch.cuda.current_device()) if device.type == "cuda" and device.index is None else device


class Transfer:
    """Turn (rows, width) arrays of tokens into x and y, reusing `slots` host buffers in turn.

    x is the first `sequence` of a row and y the last: of width sequence + 1 the same moved by one, of width
    2 * sequence another. Packed rows are ids, targets and positions. Belongs to the thread that makes it.

    Args:
        few_shapes: positions with a target come in few different numbers.
    """

    def __init__(
        self, device: str | torch.device, shape: tuple[int, int], dtype: str, slots: int, *, sequence: int,
        packed: bool = False, few_shapes: bool = False,
    ) -> None:  # fmt: skip
        import torch

        self._sequence, self._packed = sequence, packed
        self._multiple = coarse_round(shape[0] * sequence) if few_shapes else ROUND
        self._device = this_device(device)
        self._mask = _MASK[dtype]
        self._cuda = self._device.type == "cuda"
        self._stream: Any = None
        if self._cuda:
            torch.cuda.set_device(self._device)  # per thread
            self._stream = torch.cuda.Stream(self._device)
        self._next = 0
        kind = getattr(torch, _SIGNED[dtype])
        # Without CUDA the copy is done when `send` returns, and one buffer is enough.
        self._hosts = [torch.zeros(shape, dtype=kind, pin_memory=self._cuda) for _ in range(slots if self._cuda else 1)]
        self._arrays: list[Array] = [host.numpy().view(np.dtype(dtype)) for host in self._hosts]
        self._events: list[torch.cuda.Event | None] = [None] * len(self._hosts)

    def buffer(self) -> Array:
        """Return the host array to fill before `send`; waits until its last copy has left it."""
        event = self._events[self._next]
        if event is not None:
            event.synchronize()
        return self._arrays[self._next]

    def send(self, short: dict[int, int]) -> Ready:
        """Start the copy. short: number of targets of each row that lacks some."""
        import torch

        slot, self._next = self._next, (self._next + 1) % len(self._hosts)
        read = self._layout(self._arrays[slot]) if self._packed else None
        if not self._cuda:
            return Ready(self._widen(self._hosts[slot].to(self._device), short, read))
        with torch.cuda.stream(self._stream):
            batch = self._widen(self._hosts[slot].to(self._device, non_blocking=True), short, read)
            event = torch.cuda.Event()
            event.record(self._stream)
        self._events[slot] = event
        return Ready(batch, event)

    def _layout(self, rows: Array) -> list[torch.Tensor]:
        """Return where documents begin, how many there are, and which positions have targets.

        They are read on the host, while the batch before is computed with.
        """
        import torch

        T = self._sequence
        arrays = [*sequence_starts(rows[:, 2 * T :]), target_rows(rows[:, T : 2 * T], self._multiple)]
        return [torch.from_numpy(array) for array in arrays]

    def _widen(self, tokens: torch.Tensor, short: dict[int, int], layout: list[torch.Tensor] | None) -> Batch:
        import torch

        wide, T = tokens.to(torch.int64), self._sequence
        if self._mask is not None:
            wide &= self._mask
        if layout is not None:
            x, y, positions = (wide[:, i * T : (i + 1) * T].clone(memory_format=torch.contiguous_format) for i in range(3))
            starts, extent, targets = layout
            if self._cuda:
                starts, targets = (tensor.pin_memory().to(self._device, non_blocking=True) for tensor in (starts, targets))
            documents = (positions == 0).cumsum(1) - 1
            return Batch(x, y, positions, documents, cu_seqlens=starts, extent=extent, target_rows=targets)
        x = wide[:, :T].contiguous()
        # A copy of its own: a slice of a single row is contiguous already, so that contiguous() would give a view of
        # the memory that x is in, and masking a target would change an input.
        y = wide[:, -T:].clone(memory_format=torch.contiguous_format)
        for row, there in short.items():
            y[row, there:] = -1
        return Batch(x, y)
