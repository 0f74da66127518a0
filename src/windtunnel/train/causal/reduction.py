"""Gradients of a rank that is alone: FSDP2's buffer before the reduction and after it are one, for nothing is reduced."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class OneBuffer:
    """What `FSDPModule.set_custom_reduce_scatter` takes, for one module on one rank.

    FSDP2 casts a module's gradients into a buffer, and on one rank copies that into a second one, which it
    then keeps as the gradients. Of the root, whose embedding and head are reduced when every other gradient
    is held, that would be the peak of a step that computes again what it can: 4 bytes a parameter more of
    both, and twice in one piece. Here the second buffer is the first. It is only where both are used on one
    stream: what is freed on one could be written again there while the other still reads it.
    """

    def __init__(self) -> None:
        self._waiting: tuple[Tensor, int] | None = None

    @property
    def paired(self) -> bool:
        """Whether every buffer that was given out for gradients was asked for a second time, as their result."""
        return self._waiting is None

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A buffer of `size` elements, uninitialised; of each two calls the second gets what the first got."""
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            buffer = torch.empty(*size, dtype=dtype, device=device)
            self._waiting = buffer, stream
            return buffer
        buffer, there = waiting
        same = there == stream and buffer.shape == torch.Size(size) and buffer.dtype == dtype
        return buffer if same else torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False) -> None:
        """Ranks that are not alone reduce; this is for those that are."""
        raise AssertionError("one rank has nobody to reduce gradients with")
