"""A GPU's memory as a candidate's kernels could find it: one that strays from its tensors reads and writes what lies elsewhere in
the process. So nothing that would help it lies there. Imports torch.
"""

from __future__ import annotations

import gc
import secrets

import torch

from windtunnel.verify.kernel.child.fences import NAN_BYTE

FIRST_LOOKS, LOOK_EVERY = 4, 8  # at what is free
MOST_RESERVED = 4 << 30  # bytes that the allocator may keep from job to job
SMALL_BYTES = 1 << 20  # more is never taken from the allocator's pool for small tensors, whose free blocks may be larger


def give_back(device: str) -> None:
    """At the end of a job: what a large one took is there for other processes."""
    gc.collect()
    if device == "cuda" and torch.cuda.memory_reserved() > MOST_RESERVED:
        torch.cuda.empty_cache()


class Masked:
    """A tensor whose bytes on the device are mixed with random ones. Of these only a seed is kept, in the host's memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype, self.device = tensor.shape, tensor.dtype, tensor.device
        self.seed, self.dice = secrets.randbits(62), torch.Generator(tensor.device)
        self.bytes = _bytes(tensor).clone()
        self.bytes ^= self._mask()

    def equals(self, tensor: torch.Tensor) -> bool:
        """Whether it has the same bytes, found out without unmasking. Of the same shape and dtype."""
        return torch.equal(_bytes(tensor) ^ self._mask(), self.bytes)

    def plain(self) -> torch.Tensor:
        """A new tensor with the elements, contiguous. Whoever asks overwrites it before a kernel runs."""
        return (self.bytes ^ self._mask()).view(self.dtype).view(self.shape)

    def _mask(self) -> torch.Tensor:
        self.dice.manual_seed(self.seed)
        return torch.randint(0, 256, self.bytes.shape, dtype=torch.uint8, device=self.device, generator=self.dice)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


class FreeMemory:
    """What the allocator of a GPU would hand out again: what an earlier call left there would be a cache that no one sees, in the
    memory of its scratch tensors and also where it strayed."""

    def __init__(self) -> None:
        torch.cuda.empty_cache()  # what is given back to the driver is out of reach, and need not be overwritten
        self.sizes: list[int] = []
        self.wiped = 0

    def wipe(self) -> None:
        """Overwrites all of it. Largest first, so that each piece finds its own block."""
        # Calls of the same shapes leave the same blocks free, but for what the first ones take anew.
        if self.wiped < FIRST_LOOKS or self.wiped % LOOK_EVERY == 0:
            self.sizes = sorted(_free(), reverse=True)
        self.wiped += 1
        held = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in self.sizes]
        for memory in held:
            memory.fill_(NAN_BYTE)


def _free() -> list[int]:
    """Bytes of tensors that fill all free blocks."""
    return [
        piece
        for segment in torch.cuda.memory_snapshot()
        for block in segment["blocks"]
        if block["state"] == "inactive"
        for piece in _pieces(block["size"], SMALL_BYTES if segment["segment_type"] == "small" else block["size"])
    ]


def _pieces(size: int, most: int) -> list[int]:
    return [most] * (size // most) + [size % most] * (size % most > 0)
