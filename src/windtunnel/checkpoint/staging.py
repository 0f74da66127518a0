"""Copies of tensors on the host, taken while the next step computes.

On a GPU the copy runs on a stream of its own into pinned memory. Forward and backward only read the
weights, so the copy needs to be finished by the next update, not before: the step loop never waits.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch import Tensor


class Staging:
    """Host copies of tensors; allocated once, because pinning memory is slow.

    The tensors are views into a few large buffers, and it is stretches of those that are copied: a GPU's queue takes
    about a thousand operations before the host has to wait for it.

    Args:
        tensors: what to copy, by key; their memory must stay where it is.

    Attributes:
        host: the copies, by key; each has a storage of its own size, so that it can be saved by itself.
    """

    def __init__(self, tensors: Mapping[Any, Tensor]) -> None:
        self._cuda = any(tensor.is_cuda for tensor in tensors.values())
        self._stream = torch.cuda.Stream() if self._cuda else None
        self._event = torch.cuda.Event() if self._cuda else None
        self.host: dict[Hashable, Tensor] = {}
        self._copies: list[tuple[Tensor, Tensor]] = []
        self._checked: list[Tensor] = []
        buffers: dict[tuple[int, torch.dtype], list[tuple[int, int, Any]]] = {}
        for key, tensor in tensors.items():
            # No stretch of a buffer: copied by itself.
            if tensor.numel() == 0 or not tensor.is_contiguous():
                self._alone(key, tensor)
                continue
            start = int(tensor.storage_offset()) * tensor.element_size()
            # By dtype too, since a stretch is copied as one tensor.
            place = (tensor.untyped_storage().data_ptr(), tensor.dtype)
            buffers.setdefault(place, []).append((start, start + tensor.nbytes, key))
        for stretches in buffers.values():
            self._together(sorted(stretches, key=lambda s: s[:2]), tensors)
        self._finite = torch.ones((), dtype=torch.bool, pin_memory=self._cuda)
        self.begin()  # once for nothing: first uses of memory and kernels are slow, and no step is running yet
        self.finish()

    def _alone(self, key: Any, tensor: Tensor) -> None:
        self.host[key] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._cuda)
        self._copies.append((tensor, self.host[key]))
        self._check(tensor)

    def _check(self, tensor: Tensor) -> None:
        if tensor.is_floating_point() and tensor.element_size() > 1 and tensor.numel():  # fp8 cannot be summed
            self._checked.append(tensor)

    def _together(self, stretches: list[tuple[int, int, Any]], tensors: Mapping[Any, Tensor]) -> None:
        """Merge (first byte, end, key) of one buffer, sorted, where they touch, and copy them as one."""
        while stretches:
            begin, end, _ = stretches[0]
            count = 1
            # Neighbours and overlaps, such as tied tables, become one copy.
            while count < len(stretches) and stretches[count][0] <= end:
                end = max(end, stretches[count][1])
                count += 1
            first = tensors[stretches[0][2]]
            size = first.element_size()
            length = (end - begin) // size
            device = torch.empty(0, dtype=first.dtype, device=first.device)
            # A view of the buffer that no parameter has: from the first byte of the stretch to its last.
            device.set_(first.untyped_storage(), begin // size, (length,), (1,))
            host = torch.empty(length * size, dtype=torch.uint8, pin_memory=self._cuda)
            self._copies.append((device, host.view(first.dtype)))
            self._check(device)
            for start, stop, key in stretches[:count]:
                # Through numpy, for a storage that is this stretch and not the whole buffer.
                own = torch.from_numpy(host.numpy()[start - begin : stop - begin])
                self.host[key] = own.view(first.dtype).view(tensors[key].shape)
            stretches = stretches[count:]

    def begin(self) -> None:
        """Start copying the present values. The host copies must not be in use by a writer any more."""
        if self._stream is None or self._event is None:
            self._copy()
            return
        # Not before the update that has been launched is done with the values.
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._copy()
            self._event.record()

    @torch.no_grad()
    def _copy(self) -> None:
        if self._checked:
            # A sum is finite only if everything in it is, and needs no memory of the tensor's size.
            sums = torch.stack([buffer.sum(dtype=torch.float32) for buffer in self._checked])
            self._finite.copy_(sums.isfinite().all(), non_blocking=True)
        for device, host in self._copies:
            host.copy_(device, non_blocking=True)

    @property
    def done(self) -> bool:
        """Return whether the copy has ended."""
        return self._event is None or self._event.query()

    def before_update(self) -> None:
        """Let the next update on the GPU wait for the copy; the host goes on."""
        if self._event is not None:
            torch.cuda.current_stream().wait_event(self._event)

    @property
    def finite(self) -> bool:
        """Return whether all numbers are finite; known once the copy is `done`. A loss shows bad weights a step later only."""
        return bool(self._finite)

    def finish(self) -> None:
        """Wait for the copy."""
        if self._event is not None:
            self._event.synchronize()
