"""Copies of weights and optimizer states on the host, taken while the next step computes.

On a GPU the copy runs on a stream of its own into pinned memory. Forward and backward only read the
weights, so the copy needs to be finished by the next update, not before: the step loop never waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from windtunnel.model import GPT
from windtunnel.run import Checkpoint

from .optimizer import MuonAdamW

Arrays = dict[str, "np.ndarray[Any, Any]"]


class Staging:
    """Host copies for one rank's part of a checkpoint; allocated once, because pinning memory is slow.

    Parameters and states are views into a few large buffers, and it is those that are copied: a GPU's
    queue takes about a thousand operations before the host has to wait for it.

    Where the optimizer keeps averages of the weights it is those that are staged as the model's, and the raw
    ones go with the optimizer states: weights and averages are exchanged for as long as the copy takes.

    Args:
        weights: whether this rank stages the weights too (rank 0).
    """

    def __init__(self, model: GPT, optimizer: MuonAdamW, *, weights: bool) -> None:
        self._optimizer = optimizer
        self._twins: dict[int, tuple[Tensor, Tensor]] = {}
        self._cuda = model.head.weight.is_cuda
        self._stream = torch.cuda.Stream() if self._cuda else None
        self._event = torch.cuda.Event() if self._cuda else None
        named = model.named_parameters() if weights else ()
        self._host_weights = {name: self._twin(parameter.detach()) for name, parameter in named}
        self._checked = [device for device, _ in self._twins.values()]
        self._host_states = {f"{p}|{s}|{start}:{stop}": self._twin(tensor) for (p, s, start, stop), tensor in optimizer.states()}
        self._finite = torch.ones((), dtype=torch.bool, pin_memory=self._cuda)
        self.begin()  # once for nothing: first uses of memory and kernels are slow, and no step is running yet
        self.finish()

    def _twin(self, view: Tensor) -> Tensor:
        """The same view of the host copy of the buffer that `view` looks into."""
        storage = view.untyped_storage()
        if storage.data_ptr() not in self._twins:
            device = torch.empty(0, dtype=view.dtype, device=view.device).set_(storage)
            host = torch.empty(device.shape, dtype=view.dtype, pin_memory=self._cuda)
            self._twins[storage.data_ptr()] = device, host
        host = self._twins[storage.data_ptr()][1]
        return host.as_strided(view.shape, view.stride(), view.storage_offset())

    def begin(self) -> None:
        """Start copying the present values, on every rank. The buffers must not be in use by a writer any more."""
        if not self._optimizer.averages:
            self._start(None)
            return
        raw = self._sound()
        with self._optimizer.averaged():
            self._start(raw)
            self.before_update()

    def _start(self, raw: Tensor | None) -> None:
        if self._stream is None or self._event is None:
            self._copy(raw)
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._copy(raw)
            self._event.record()

    @torch.no_grad()
    def _sound(self) -> Tensor | None:
        """Whether all weights are finite (0-d, on the device), on ranks that stage them."""
        if not self._checked:
            return None
        # A sum is finite only if everything in it is, and needs no memory of the tensor's size.
        return torch.stack([buffer.sum() for buffer in self._checked]).isfinite().all()

    @torch.no_grad()
    def _copy(self, raw: Tensor | None) -> None:
        finite = self._sound()
        if finite is not None:
            self._finite.copy_(finite if raw is None else finite & raw, non_blocking=True)
        for device, host in self._twins.values():
            host.copy_(device, non_blocking=True)

    @property
    def done(self) -> bool:
        """Whether the copy has ended."""
        return self._event is None or self._event.query()

    def before_update(self) -> None:
        """Let the next update on the GPU wait for the copy; the host goes on."""
        if self._event is not None:
            torch.cuda.current_stream().wait_event(self._event)

    @property
    def finite(self) -> bool:
        """Whether all staged weights are finite; known once the copy is `done`. A loss shows bad weights a step later only."""
        return bool(self._finite)

    def finish(self) -> tuple[Arrays | None, Arrays]:
        """Wait for the copy; (weights, or None on ranks without them; optimizer states) as host arrays."""
        if self._event is not None:
            self._event.synchronize()
        weights = {k: t.numpy() for k, t in self._host_weights.items()} if self._host_weights else None
        return weights, {k: t.numpy() for k, t in self._host_states.items()}


@torch.no_grad()
def restore(model: GPT, optimizer: MuonAdamW, checkpoint: Checkpoint, state: Mapping[str, Any]) -> None:
    """Load weights and this rank's optimizer states from a checkpoint of any number of ranks.

    Raises:
        UserError: the checkpoint is damaged or of another model.
    """
    weights = checkpoint.weights()
    for name, parameter in model.named_parameters():
        array = weights.get(name)
        if array is None or array.shape != tuple(parameter.shape):
            from windtunnel.recipe import UserError

            found = "missing" if array is None else f"of shape {list(array.shape)}"
            raise UserError(f"checkpoint {checkpoint.path}: {name} is {found}, expected {list(parameter.shape)}")
        parameter.copy_(torch.from_numpy(array))
    model.weights_changed()
    for (parameter_name, state_name, start, stop), tensor in optimizer.states():
        tensor.copy_(torch.from_numpy(checkpoint.optimizer_slice(parameter_name, state_name, start, stop)))
    optimizer.adamw_steps = int(state["updates"])
    if optimizer.averages:
        optimizer.swap()  # the checkpoint's weights are the averages, its raw ones are among the states
