"""The same work again and again: recorded once as a CUDA graph, then replayed.

Where kernels are short, a GPU waits for the host to start each of them; a replayed graph starts them all at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from typing import Protocol

import torch
from torch import Tensor

from windtunnel.recipe import UserError

Work = Callable[..., None]
# Kernels are made and workspaces allocated in the first runs, which a recording may not do.
RUNS_BEFORE = 2


class Recording(Protocol):
    """Work on tensors that stay where they are."""

    def replay(self) -> None:
        """Do it once more."""
        ...


class Replay:
    """Runs work; the same work on the same shapes is recorded after a few runs and replayed from then on.

    Work is a function of tensors that returns nothing: it reads them and what stays where it is (weights, states), writes
    what stays where it is (gradients, sums), and never waits for the device.

    Args:
        record: makes a recording of a function without arguments, without running it; None: nothing is recorded.
        most: recordings that are made; what comes after them is run.
        launch: runs what is not recorded, in the memory of what is; None: in memory of its own. It returns whether something
            was left there, which recordings that were made before would overwrite: they are made once more.
    """

    def __init__(
        self,
        record: Callable[[Callable[[], None]], Recording] | None = None,
        most: int = sys.maxsize,
        launch: Callable[[Callable[[], None]], bool] | None = None,
    ) -> None:
        self._record, self._most, self._launch = record, most, launch
        self._runs: dict[Hashable, int] = {}
        self._recorded: dict[Hashable, Recording] = {}
        # Of tensors of the same shapes: one recording is done before the next one begins, so that all use the same.
        self._places: dict[Hashable, tuple[Tensor, ...]] = {}

    def __call__(self, name: Hashable, work: Work, *given: Tensor) -> None:
        """Run `work(*given)`; `name` tells it from other work."""
        if self._record is None:
            work(*given)
            return
        shapes = tuple((tuple(t.shape), t.dtype, t.requires_grad) for t in given)
        # A recording repeats kernels for these shapes on these places, and nothing else.
        key = (name, shapes)
        self._runs[key] = self._runs.get(key, 0) + 1
        full = key not in self._recorded and len(self._recorded) >= self._most
        if self._runs[key] <= RUNS_BEFORE or full:
            if self._launch is None:
                work(*given)
            # What it left lies where recordings expect their own memory: they would overwrite it, and are made once more.
            elif self._launch(lambda: work(*given)):
                self._recorded.clear()
            return
        if shapes not in self._places:
            self._places[shapes] = tuple(torch.empty_like(t) for t in given)
        # Inputs are copied into the places that the recording read; outputs are what stays anyway.
        places = self._places[shapes]
        if key not in self._recorded:
            self._recorded[key] = self._record(lambda: work(*places))
        for place, tensor in zip(places, given, strict=True):
            place.copy_(tensor, non_blocking=True)
        self._recorded[key].replay()

    def forget(self) -> None:
        """Drop the recordings with their memory."""
        self._recorded.clear()
        self._places.clear()
        self._runs.clear()


class CudaRecorder:
    """Records CUDA graphs; they share one pool of memory, so they must be replayed one after another.

    Args:
        stage: the recipe's section, for messages.
    """

    def __init__(self, stage: str = "stages.pretrain") -> None:
        self._stage = stage
        # A pool's free memory is known by the stream that used it: what is recorded and what is launched beside use one.
        self._pool, self._stream = torch.cuda.MemPool(), torch.cuda.Stream()
        self._left = 0

    def __call__(self, work: Callable[[], None]) -> Recording:
        """Record work without running it.

        Raises:
            UserError: it waits for the device, or does something else that cannot be recorded.
        """
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            # Other threads go on meanwhile: the loader copies batches, the writer checkpoints.
            with torch.cuda.graph(graph, pool=self._pool.id, stream=self._stream, capture_error_mode="thread_local"):  # type: ignore[arg-type]
                work()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            # The allocator still takes the recording to be under way: this process cannot train on without it.
            torch.cuda.set_stream(stream)
            # The first failure says what cannot be recorded; those after it are of the capture that was broken off.
            why = str(error.__context__ or error).splitlines()[0]
            raise UserError(
                f"{self._stage}.graphs: the passes cannot be recorded as a CUDA graph here: {why}",
                f"--set {self._stage}.graphs=false",
            ) from error
        return graph

    def launch(self, work: Callable[[], None]) -> bool:
        """Run work in the memory of what is recorded; return whether it left more there than was there before.

        Passes of a kind that is not recorded yet need as much memory as a recording, and in memory of their own both would be
        held for good.
        """
        stream = torch.cuda.current_stream()
        self._stream.wait_stream(stream)
        # A pool is used by the thread that says so, and a backward pass would run in another.
        with (
            torch.cuda.stream(self._stream),
            torch.cuda.use_mem_pool(self._pool),
            torch.autograd.set_multithreading_enabled(False),
        ):
            work()
        stream.wait_stream(self._stream)
        before, self._left = self._left, self._allocated()
        return self._left > before

    def _allocated(self) -> int:
        """Return the bytes of the pool that tensors hold."""
        return sum(segment["allocated_size"] for segment in torch.cuda.memory_snapshot(self._pool.id))
