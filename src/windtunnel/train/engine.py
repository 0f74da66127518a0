"""What runs a stage's steps: one Protocol, so that the loop, a trial and a trace drive every model in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from windtunnel.checkpoint import MODEL, OPTIMIZER, Slice, Value
from windtunnel.data import Batch, Batches
from windtunnel.evaluate import Validation
from windtunnel.model import NewRows
from windtunnel.recipe import Layout, Schedule

Mark = Callable[[str], None]
"""Called on the host at the end of each 'forward', 'backward' and 'optimizer' of a step."""

COMPUTE = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp8": torch.bfloat16}
"""What a plan's precision computes in; fp8 products are of bf16 tensors."""


@dataclass(frozen=True)
class Parameters:
    """Counts over all ranks; what is tied counts once."""

    total: int
    trained: int


@dataclass(frozen=True)
class Feed:
    """What an engine is fed with on this rank.

    Attributes:
        batches: to train on.
        validation: begins another pass over the held-out micro-batches, the same number on every rank.
        vocab: token ids there are.
        token_bytes: (vocab,) UTF-8 bytes that each token stands for, 0 for BOS.
        new: rows of tokens that the model's own tokenizer did not have; None: there are none.
    """

    batches: Batches
    validation: Callable[[], Iterable[Batch]]
    vocab: int
    token_bytes: np.ndarray[Any, Any]
    new: NewRows | None = None


@dataclass(frozen=True)
class EngineState:
    """Everything that an engine needs to go on as if nothing had happened.

    The tensors are the engine's own memory, not copies: a checkpoint reads them, or fills them, where they lie. Every
    rank has the same 'model.' names; of states it may have fewer.

    Attributes:
        tensors: by name. 'model.P' is parameter P, 'optimizer.S.P' its state S (S has no dot). A plain tensor is whole
            and the same on every rank; a DTensor or a `Slice` is this rank's part.
        facts: JSON values, the same on every rank.
    """

    tensors: dict[str, Value]
    facts: dict[str, Any] = field(default_factory=dict)


def parts_of(state: EngineState) -> dict[str, dict[str, Value]]:
    """Return a state's tensors as the parts of a checkpoint: the weights by their names, other states as 'S.P'."""
    parts: dict[str, dict[str, Value]] = {MODEL: {}, OPTIMIZER: {}}
    for name, tensor in state.tensors.items():
        part, rest = name.split(".", 1)
        parts[part][rest] = tensor
    return parts


class Engine(Protocol):
    """Steps of one stage on this rank. Building one builds model and optimizer.

    Attributes:
        layout: how the work is spread.
        feed: what it is fed with.
        schedule: of its learning rate.
        parameters: how many there are.
        before_update: called by every step when its gradients are complete, before weights change.
    """

    layout: Layout
    feed: Feed
    schedule: Schedule
    parameters: Parameters
    before_update: Callable[[], None]

    def step(self, step: int, progress: float, since: Pending | None = None, mark: Mark | None = None) -> Pending | None:
        """Take one optimizer step on the next batches; return without waiting for the device.

        None: this process is told to stop, and nothing but the position of the data has changed; only where a step is long.

        Args:
            step: number of this step, counted from 1.
            progress: share of the run done before it, 0 to 1.
            since: the step before, if nothing but this one came after it.
            mark: told each phase; what is recorded as a CUDA graph is then launched as it is.
        """
        ...

    def validate(self) -> Validation | None:
        """Score the held-out micro-batches, reduced over ranks; all ranks must call it together. None: it has none to score."""
        ...

    def state_dict(self) -> EngineState:
        """Return the state, without copying anything."""
        ...

    def load_state_dict(self, state: EngineState) -> None:
        """Take over a state; all ranks must call it together. Tensors that are the engine's own have been filled already."""
        ...

    def start_over(self, position: int) -> None:
        """Return to the weights and empty states of step 0, but with the data from `position` on."""
        ...

    def export(self, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """Yield every weight by the name that files have, on the host, a tensor or a block at a time.

        All ranks must iterate to the end together; only the first one receives anything.
        """
        ...

    def close(self) -> None:
        """End threads and what else the engine holds."""
        ...


def nothing(*_: object) -> None:
    """Do nothing: where nobody copies an engine's state, or listens to a step's phases."""


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
    """Reduced over ranks: mean loss in nats a target, gradient norm. `seconds` since the step before ended.

    `targets`, where they are counted: tokens that were predicted and learned from. `tokens`: that the step was of, where that
    is not the same every time. `more`: metrics of this kind of engine.
    """

    step: int
    loss: float
    gradient_norm: float
    seconds: float
    supervised: Supervised | None = None
    targets: float | None = None
    tokens: float | None = None
    more: Mapping[str, float] = field(default_factory=dict)


class Moment:
    """A point in the work of a device: on a GPU an event in its stream, else the time now."""

    def __init__(self, device: torch.device) -> None:
        self._time = time.monotonic()
        self._event = torch.cuda.Event(enable_timing=True) if device.type == "cuda" else None
        if self._event is not None:
            self._event.record()

    @property
    def reached(self) -> bool:
        """Return whether the device has come this far."""
        return self._event is None or self._event.query()

    def wait(self) -> None:
        """Wait until the device has come this far."""
        if self._event is not None:
            self._event.synchronize()

    def seconds_since(self, earlier: Moment) -> float:
        """Return the seconds from an earlier moment; both must have been reached."""
        if self._event is None or earlier._event is None:
            return self._time - earlier._time
        return earlier._event.elapsed_time(self._event) / 1e3


Reading = Callable[[list[float]], tuple[float, float, Supervised | None]]
"""From a step's sums to its loss, gradient norm and, of a recursive model, more."""


def read_plain(sums: list[float]) -> tuple[float, float, None]:
    """Read (nats, weight of the targets, squared gradient norm)."""
    loss, weight, square = sums[:3]
    return loss / weight if weight > 0 else 0.0, square**0.5, None


class Pending:
    """A step's results on their way to the host: sums over ranks, and how they are read."""

    def __init__(
        self, step: int, sums: Tensor, began: Moment, since: Pending | None, read: Reading = read_plain, *,
        tokens: float | None = None, more: Mapping[str, float] | None = None,
    ) -> None:  # fmt: skip
        self.step, self._read, self._tokens, self._more = step, read, tokens, dict(more or {})
        # Pinned, or the copy would wait for the device; with it the host goes on to the next step.
        self._host = torch.empty(sums.shape, dtype=sums.dtype, pin_memory=sums.is_cuda)
        self._host.copy_(sums, non_blocking=True)
        self._ended = Moment(sums.device)
        # Launched while the device was still busy with the step before, a step begins where that one ended.
        self._began = since._ended if since is not None else began

    def result(self) -> StepResult:
        """Wait until the step is done and return its results."""
        self._ended.wait()
        sums = self._host.tolist()
        # Engines of Hugging Face models count targets behind the three numbers that all have.
        targets = sums[3] if self._read is read_plain and len(sums) > 3 else None
        loss, norm, supervised = self._read(sums)
        seconds = self._ended.seconds_since(self._began)
        return StepResult(self.step, loss, norm, seconds, supervised, targets, self._tokens, self._more)


def adopt(own: EngineState, given: EngineState) -> None:
    """Copy into an engine's own tensors whatever of a given state is not the same memory."""
    for name, mine in own.tensors.items():
        target, source = local_part(mine), local_part(given.tensors[name])
        # A checkpoint is loaded straight into the engine's memory: mostly there is nothing to copy.
        if target.data_ptr() != source.data_ptr():
            target.copy_(source)


def local_part(tensor: Value) -> Tensor:
    """Return the memory of a tensor that this rank holds: all of it, its shard or its slice."""
    if isinstance(tensor, Slice):
        return tensor.local
    to_local = getattr(tensor, "to_local", None)  # of a DTensor, whose module takes seconds to import
    part: Tensor = tensor if to_local is None else to_local()
    return part.detach()


def row_offset(tensor: Tensor) -> int:
    """Return the index of this rank's first element in the flattened whole of a tensor; DTensors are sharded by rows."""
    if not hasattr(tensor, "to_local"):
        return 0
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)[1]  # type: ignore[attr-defined]
    row = int(torch.Size(tensor.shape[1:]).numel())
    return int(offset[0]) * row if offset else 0
