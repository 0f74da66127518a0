"""An engine's state to and from the checkpoints of a run, copied to the host while the next step computes.

On a GPU the copy runs on a stream of its own into pinned memory. Forward and backward only read the weights, so the
copy needs to be finished by the next update, not before: the step loop never waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from windtunnel.recipe import UserError
from windtunnel.run import Checkpoint, CheckpointWriter, Saved

from .engine import Engine, EngineState, Slice, local_part, row_offset
from .ranks import Ranks

Arrays = dict[str, "np.ndarray[Any, Any]"]
MODEL, OPTIMIZER = "model.", "optimizer."


@dataclass(frozen=True)
class _Begun:
    step: int
    facts: dict[str, Any]
    loss: float | None
    weights: dict[str, Tensor]  # on the host, once the copy is done
    states: dict[str, Tensor]


class Saver:
    """One rank's way to the run's checkpoints. All ranks call `begin` for the same steps.

    A save begins with a copy to the host, is written by the writer's thread once the copy is done, and is visible
    when all ranks' parts are on the disk.

    Args:
        engine: whose state is saved; its steps then wait for a copy under way before they change weights.
    """

    def __init__(self, engine: Engine, writer: CheckpointWriter, ranks: Ranks) -> None:
        self.writer, self._engine, self._ranks = writer, engine, ranks
        self._copies = HostCopies(ranks.device)
        self._begun: _Begun | None = None
        engine.before_update = self._copies.before_update
        # Once for nothing: first uses of memory and kernels are slow, and no step is running yet.
        self._copy(engine.state_dict())
        self._copies.wait()

    @property
    def copying(self) -> bool:
        """Whether a copy to the host has begun that was not yet handed to the writer."""
        return self._begun is not None

    @property
    def copied(self) -> bool:
        """Whether that copy is done."""
        return self._copies.done

    @property
    def busy(self) -> bool:
        """Whether the writer is at work."""
        return self.writer.busy

    def begin(self, step: int, state: EngineState, facts: dict[str, Any], loss: float | None) -> None:
        """Begin to copy the present state. Nothing may be under way.

        Args:
            facts: JSON to be kept beside the engine's own.
            loss: on the held-out data after this step, nats a target; None: not measured.
        """
        assert not self.copying
        weights, states = self._copy(state)
        self._begun = _Begun(step, state.facts | facts, loss, weights, states)

    def write(self) -> int | None:
        """Wait for the copy and hand it to the writer.

        Returns:
            On rank 0 the step whose weights are not finite, so that nothing was written; else None.

        Raises:
            UserError: there is no room.
        """
        begun, self._begun = self._begun, None
        if begun is None:
            return None
        self._copies.wait()
        if self._ranks.first and not self._copies.sound:
            return begun.step
        weights = _arrays(begun.weights) if self._ranks.first else None
        self.writer.start(begun.step, weights, _arrays(begun.states), begun.facts, begun.loss)
        return None

    def drop(self) -> None:
        """Forget what was copied and not yet written."""
        self._begun = None

    def wait(self) -> Saved | None:
        """Wait for the writer. Raises UserError where the save failed."""
        return self.writer.wait()

    def poll(self) -> Saved | None:
        """Return the save that has ended since the last call, if any. Raises UserError where it failed."""
        return self.writer.poll()

    def newest(self) -> Checkpoint | None:
        """Return the newest good checkpoint that training can go on from."""
        return self.writer.store.newest_good(with_optimizer=True)

    def load(self, step: int, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Load the checkpoint of a step into the engine, from any number of ranks; all ranks call it together.

        Args:
            changes: facts that are to be others than those saved.

        Returns:
            What was kept beside the engine's own facts, and these.

        Raises:
            UserError: the checkpoint is damaged or of another model.
        """
        return restore_engine(self._engine, self.writer.store.at(step), changes)

    def _copy(self, state: EngineState) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Start copying this rank's part; (weights, which rank 0 gets whole, and states by the names of files)."""
        sound = self._engine.sound()
        weights: dict[str, Tensor] = {}
        states: dict[str, Tensor] = {}
        for name, tensor in state.tensors.items():
            if name.startswith(MODEL):
                whole = _whole(tensor, self._ranks)
                if self._ranks.first:
                    weights[name.removeprefix(MODEL)] = whole
                continue
            kind, parameter = name.removeprefix(OPTIMIZER).split(".", 1)
            part = local_part(tensor)
            start = tensor.start if isinstance(tensor, Slice) else 0
            if part.numel() and (isinstance(tensor, Slice) or self._ranks.first):
                states[f"{parameter}|{kind}|{start}:{start + part.numel()}"] = part.reshape(-1)
        hosts = self._copies.begin([*weights.values(), *states.values()], sound)
        count = len(weights)
        return dict(zip(weights, hosts[:count], strict=True)), dict(zip(states, hosts[count:], strict=True))


def restore_engine(engine: Engine, checkpoint: Checkpoint, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Load a checkpoint into an engine; see `Saver.load`."""
    state = engine.state_dict()
    fill(state, checkpoint)
    facts = checkpoint.state | dict(changes or {})
    engine.load_state_dict(EngineState(state.tensors, facts))
    return facts


def _arrays(tensors: dict[str, Tensor]) -> Arrays:
    """Return the tensors for the writer; bf16 as fp32, which holds every one of its numbers."""
    return {name: (t.float() if t.dtype == torch.bfloat16 else t).numpy() for name, t in tensors.items()}


def _whole(tensor: Tensor | Slice, ranks: Ranks) -> Tensor:
    """Return a whole tensor; where ranks hold parts all must call it together."""
    if not isinstance(tensor, Slice):
        gather = getattr(tensor, "full_tensor", None)
        return tensor if gather is None else gather()
    if ranks.world == 1:
        return tensor.local.view(tensor.shape)
    # Sums of bits with zeros: exact, whatever the numbers.
    bits = torch.zeros(torch.Size(tensor.shape).numel(), dtype=torch.int32, device=tensor.local.device)
    bits[tensor.start : tensor.stop] = tensor.local.view(torch.int32)
    dist.all_reduce(bits)
    return bits.view(torch.float32).view(tensor.shape)


@torch.no_grad()
def fill(state: EngineState, checkpoint: Checkpoint) -> None:
    """Write a checkpoint into a state's tensors, where they lie.

    Raises:
        UserError: it is damaged or of another model.
    """
    weights = checkpoint.weights()
    unknown = weights.keys() - {name.removeprefix(MODEL) for name in state.tensors if name.startswith(MODEL)}
    if unknown:
        raise UserError(
            f"checkpoint {checkpoint.path}: only the checkpoint has {min(unknown)}", "go on with the recipe that it was saved by"
        )
    for name, tensor in state.tensors.items():
        part = local_part(tensor)
        if name.startswith(MODEL):
            array, shape = weights.get(name.removeprefix(MODEL)), tuple(tensor.shape)
            if array is None or array.shape != shape:
                found = "missing" if array is None else f"of shape {list(array.shape)}"
                raise UserError(
                    f"checkpoint {checkpoint.path}: {name.removeprefix(MODEL)} is {found}, expected {list(shape)}",
                    "go on with the recipe that it was saved by",
                )
            start = tensor.start if isinstance(tensor, Slice) else row_offset(tensor)
            part.view(-1).copy_(torch.from_numpy(array).view(-1)[start : start + part.numel()])
            continue
        kind, parameter = name.removeprefix(OPTIMIZER).split(".", 1)
        start = tensor.start if isinstance(tensor, Slice) else 0
        if part.numel():
            _require_ranks(checkpoint, parameter, kind)
            part.view(-1).copy_(torch.from_numpy(checkpoint.optimizer_slice(parameter, kind, start, start + part.numel())))


def _require_ranks(checkpoint: Checkpoint, parameter: str, kind: str) -> None:
    """Refuse states that belong to one rank among as many as there were, where there are now others."""
    what, _, of = kind.partition("@")
    if of and (parameter, kind) not in {key[:2] for key in checkpoint.optimizer_keys()}:
        raise UserError(
            f"checkpoint {checkpoint.path}: {what} of its int8 moments lies on {checkpoint.world} ranks, here it is {of}",
            "go on with as many GPUs, or begin with other states: --set stages.sft.states=bf16 (stages.rl.states)",
        )


class HostCopies:
    """Copies of tensors on the host, in memory that is allocated once, because pinning is slow.

    Tensors are views into a few large buffers, and it is those that are copied: a GPU's queue takes about a thousand
    operations before the host has to wait for it.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._stream = torch.cuda.Stream() if self._cuda else None
        self._event = torch.cuda.Event() if self._cuda else None
        self._hosts: dict[tuple[int, int], Tensor] = {}
        self._sound = torch.ones((), dtype=torch.bool, pin_memory=self._cuda)

    @torch.no_grad()
    def begin(self, tensors: list[Tensor], sound: Tensor) -> list[Tensor]:
        """Start copying; the returned tensors hold the values once `done`. `sound`: 0-d bool, copied with them."""
        ranges = _ranges(tensors)
        if self._stream is not None and self._event is not None:
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                self._copy(ranges, sound)
                self._event.record()
            for device in ranges.values():
                device.record_stream(self._stream)
        else:
            self._copy(ranges, sound)
        return [self._view(tensor, ranges) for tensor in tensors]

    def _copy(self, ranges: dict[tuple[int, int], Tensor], sound: Tensor) -> None:
        self._sound.copy_(sound, non_blocking=True)
        for key in self._hosts.keys() - ranges.keys():
            del self._hosts[key]  # of tensors that were gathered for one save
        for key, device in ranges.items():
            if key not in self._hosts or self._hosts[key].shape != device.shape:
                self._hosts[key] = torch.empty(device.shape, dtype=device.dtype, pin_memory=self._cuda)
            self._hosts[key].copy_(device, non_blocking=True)

    def _view(self, tensor: Tensor, ranges: dict[tuple[int, int], Tensor]) -> Tensor:
        key = _key(tensor)
        host, device = self._hosts[key], ranges[key]
        return host.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset() - device.storage_offset())

    @property
    def done(self) -> bool:
        """Whether the copy has ended."""
        return self._event is None or self._event.query()

    def wait(self) -> None:
        """Wait for the copy."""
        if self._event is not None:
            self._event.synchronize()

    @property
    def sound(self) -> bool:
        """Whether all weights that were copied are finite; known once the copy is `done`."""
        return bool(self._sound)

    def before_update(self) -> None:
        """Let the next update on the GPU wait for the copy; the host goes on."""
        if self._event is not None:
            torch.cuda.current_stream().wait_event(self._event)


def _key(tensor: Tensor) -> tuple[int, int]:
    return tensor.untyped_storage().data_ptr(), tensor.element_size()


def _ranges(tensors: list[Tensor]) -> dict[tuple[int, int], Tensor]:
    """Return, of each buffer that tensors look into, the stretch that they need: flat, by its key."""
    spans: dict[tuple[int, int], tuple[int, int, Tensor]] = {}
    for tensor in tensors:
        assert tensor.is_contiguous()
        start = int(tensor.storage_offset())
        stop = start + tensor.numel()
        low, high, _ = spans.get(_key(tensor), (start, stop, tensor))
        spans[_key(tensor)] = min(low, start), max(high, stop), tensor
    return {key: torch.as_strided(tensor, (stop - start,), (1,), start) for key, (start, stop, tensor) in spans.items()}
