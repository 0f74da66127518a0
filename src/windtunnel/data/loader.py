"""Batches for training and validation: every token once an epoch over all ranks, copied to the GPU beside the compute."""

from __future__ import annotations

import atexit
import queue
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from .batch import Batch
from .documents import Array
from .tokens import Draw, TokenFile
from .transfer import Ready, Transfer, this_device

if TYPE_CHECKING:
    import torch

PREFETCH = 4  # micro-batches ready: enough to hide a slow read, few enough to drop at a seek


class BatchLoader:
    """Micro-batches of one rank, prefetched by a thread.

    Of text, sequence i covers tokens [i*T, (i+1)*T]: inputs i*T .. i*T+T-1 and the targets one further, so that every
    token but the very first is a target exactly once an epoch. The last sequence may be partial: -1 marks the
    positions without a target. Of puzzles, sequence i is puzzle i (see `PuzzleFile`). Sequences are visited in
    `SequenceOrder`. The step that starts at position p
    uses position p + (a*world + rank)*micro_batch + b for micro-batch a and row b; `position` alone resumes,
    and any split of the same global batch over ranks sees the same sequences.

    Attributes:
        position: sequences consumed by whole steps, over all ranks.
        wait_seconds: time `next_batch` has spent waiting for data so far.
    """

    def __init__(
        self,
        tokens: TokenFile,
        *,
        sequence: int,
        micro_batch: int,
        accumulation: int,
        rank: int,
        world: int,
        seed: int,
        position: int = 0,
        device: str | torch.device = "cpu",
        few_shapes: bool = False,
    ) -> None:
        """few_shapes: packed batches differ in few shapes, so that each can be recorded; some more positions are scored."""
        assert tokens.count >= 2, "a split needs at least two tokens: an input and a target"
        assert 0 <= rank < world
        assert min(micro_batch, accumulation) > 0
        assert position >= 0
        self.tokens = tokens
        self.sequence = sequence
        self.micro_batch = micro_batch
        self.accumulation = accumulation
        self.rank = rank
        self.world = world
        self.position = position
        self.wait_seconds = 0.0
        self._few_shapes = few_shapes
        self.sequences = tokens.sequences(sequence)
        self._order = tokens.order(sequence, seed)
        self._device = this_device(device)
        self._taken = 0  # micro-batches of the current step already handed out
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._queue: queue.Queue[Ready | BaseException] = queue.Queue(PREFETCH)
        self._closed = False

    @property
    def step_sequences(self) -> int:
        """Sequences in one step over all ranks."""
        return self.micro_batch * self.accumulation * self.world

    @property
    def epochs(self) -> float:
        """Epochs consumed, with the fraction of the current one."""
        return self.position / self.sequences

    @property
    def epoch(self) -> int:
        """Whole epochs consumed."""
        return self.position // self.sequences

    def next_batch(self) -> Batch:
        """Return the next (micro_batch, sequence) of this rank, on the device.

        Of packed samples it is a `Batch`, which is (x, y) too and has their positions.

        Raises what the prefetching thread raised, if it failed.
        """
        if self._closed:
            raise RuntimeError("the loader is closed")
        if self._thread is None:
            self._start()
        started = time.perf_counter()
        item = self._queue.get()
        self.wait_seconds += time.perf_counter() - started
        if isinstance(item, BaseException):
            self._halt()
            raise item
        self._taken += 1
        if self._taken == self.accumulation:
            self._taken = 0
            self.position += self.step_sequences
        return item.take()

    def seek(self, position: int) -> None:
        """Go to a position (sequences consumed over all ranks), dropping what was prefetched."""
        assert position >= 0
        self._halt()
        self.position = position
        self._taken = 0

    def skip(self, steps: int) -> None:
        """Leave out the data of the next steps. Only between steps."""
        assert self._taken == 0, "skip() in the middle of a step"
        self.seek(self.position + steps * self.step_sequences)

    def close(self) -> None:
        """End the thread; the loader cannot be used afterwards."""
        self._closed = True
        self._halt()

    def __enter__(self) -> BatchLoader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def rows(self, position: int, micro_batch_index: int) -> Array:
        """Return (micro_batch,) the sequences of one of this rank's micro-batches in the step that starts at `position`."""
        return self._order(self._first(position, micro_batch_index), self.micro_batch)

    def _first(self, position: int, micro_batch_index: int) -> int:
        return position + (micro_batch_index * self.world + self.rank) * self.micro_batch

    def _draw(self, position: int, micro_batch_index: int) -> Draw:
        positions = self._first(position, micro_batch_index) + np.arange(self.micro_batch)
        return Draw(self._order.seed, positions // self.sequences)

    def _start(self) -> None:
        self._stop = threading.Event()
        self._queue = queue.Queue(PREFETCH)
        self._thread = threading.Thread(
            target=self._produce, args=(self._stop, self._queue, self.position, self._taken), name="prefetch", daemon=True
        )
        self._thread.start()
        atexit.register(self.close)  # a thread inside torch must not outlive the interpreter

    def _produce(self, stop: threading.Event, out: queue.Queue[Ready | BaseException], position: int, micro: int) -> None:
        try:
            shape = (self.micro_batch, self.tokens.width(self.sequence))
            transfer = Transfer(
                self._device, shape, self.tokens.dtype, PREFETCH + 2, sequence=self.sequence, packed=self.tokens.packed,
                few_shapes=self._few_shapes,
            )  # fmt: skip
            while not stop.is_set():
                rows, draw = self.rows(position, micro), self._draw(position, micro)
                short = self.tokens.read(rows, self.sequence, transfer.buffer(), draw=draw)
                _put(stop, out, transfer.send(short))
                micro += 1
                if micro == self.accumulation:
                    micro, position = 0, position + self.step_sequences
        except BaseException as error:  # raised again in next_batch
            _put(stop, out, error)

    def _halt(self) -> None:
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None
            atexit.unregister(self.close)


def _put(stop: threading.Event, out: queue.Queue[Any], item: Any) -> None:
    while not stop.is_set():
        try:
            # With a limit, so that a loader that is closed while the queue is full does not leave its thread waiting.
            out.put(item, timeout=0.05)
            return
        except queue.Full:
            continue


class ValidationBatches:
    """The first tokens of the validation split in a fixed order, spread over ranks without overlap.

    Every rank gets the same number of micro-batches, as sharded models need; at the end a row, or a whole
    micro-batch, may have no target at all (y is -1 throughout), so add up losses and counts of targets over
    ranks and divide once.
    """

    def __init__(
        self,
        tokens: TokenFile,
        *,
        sequence: int,
        micro_batch: int,
        rank: int = 0,
        world: int = 1,
        limit: int | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        """limit: most targets over all ranks; None: all of the split."""
        assert tokens.count >= 2
        assert 0 <= rank < world
        assert micro_batch > 0
        self.tokens = tokens
        self.sequence = sequence
        self.micro_batch = micro_batch
        self.rank = rank
        self.world = world
        tokens.sequences(sequence)  # refuses puzzles of another size
        self._rows, self.targets = tokens.used(sequence, limit)
        self._device = device

    def __len__(self) -> int:
        """Micro-batches of each rank."""
        return -(-len(self._rows) // (self.micro_batch * self.world))

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches as `BatchLoader.next_batch` gives them."""
        shape = (self.micro_batch, self.tokens.width(self.sequence))
        transfer = Transfer(self._device, shape, self.tokens.dtype, 3, sequence=self.sequence, packed=self.tokens.packed)
        for k in range(len(self)):
            places = np.arange(self.micro_batch) + (k * self.world + self.rank) * self.micro_batch
            # Behind the last sequence rows stay empty.
            rows = np.append(self._rows, -1)[np.minimum(places, len(self._rows))]
            short = self.tokens.read(rows, self.sequence, transfer.buffer(), targets=self.targets)
            yield transfer.send(short).take()
