"""Memory that kernels are given, and what they could find in a GPU's beside it. Imports torch.

A buffer has fences around it and is filled with what nobody computes: what is written outside shows, and what is not written
inside. A kernel that strays from its tensors reads and writes what lies elsewhere in the process: nothing that would help it lies
there.
"""

from __future__ import annotations

import gc
import secrets
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.utils.dlpack import from_dlpack, to_dlpack

FENCE = 512  # bytes before and after each buffer: an allocation's alignment on a GPU, so that an address ends as without it
FENCE_BYTE = 0x5C
NAN_BYTE = 0xFF  # repeated, not a number in each floating dtype of two bytes or more
POISON_BYTE = 0xA5  # of integers: a number that nobody computes
FIRST_LOOKS, LOOK_EVERY = 4, 8  # at what is free
MOST_RESERVED = 512 << 20  # bytes that the allocator may keep from job to job: a learner may have the rest of this GPU
SMALL_BYTES = 1 << 20  # more is never taken from the allocator's pool for small tensors, whose free blocks may be larger


@dataclass
class Fenced:
    """A buffer inside a larger allocation. name: what to call it in messages."""

    name: str
    base: torch.Tensor  # bytes
    start: int
    end: int

    def written(self) -> bool:
        """Return whether anything was written outside the buffer."""
        return any(bool((part.cpu() != FENCE_BYTE).any()) for part in (self.base[: self.start], self.base[self.end :]))


def first_broken(fences: Sequence[Fenced]) -> Fenced | None:
    """Return the first of these buffers outside of which something was written, or None."""
    return next((fence for fence in fences if fence.written()), None)


def fenced(size: int, name: str, device: str) -> tuple[torch.Tensor, Fenced]:
    """Return unset bytes with fences around them. Their storage is their own: it begins and ends with them."""
    end = FENCE + size
    base = torch.full((end + FENCE,), FENCE_BYTE, dtype=torch.uint8, device=device)
    if not size:
        return torch.empty(0, dtype=torch.uint8, device=device), Fenced(name, base, FENCE, end)
    own: torch.Tensor = from_dlpack(to_dlpack(base[FENCE:end]))  # type: ignore[no-untyped-call]  # PyTorch annotates neither
    return own, Fenced(name, base, FENCE, end)


def poison(tensor: torch.Tensor) -> None:
    """Fill a tensor with NaN, or with a number that nobody computes."""
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.fill_(float("nan"))
    elif tensor.dtype == torch.bool:
        tensor.fill_(True)
    else:
        tensor.fill_(int.from_bytes(bytes([POISON_BYTE]) * tensor.element_size(), "little", signed=tensor.dtype.is_signed))


@contextmanager
def giving_back(device: str) -> Iterator[None]:
    """Free memory at the end of a job, however it ends: what a large one took is there for other processes.

    What one that ran out of memory has is all of the GPU's, and its traceback holds it: everyone else would wait for it in vain.
    """
    try:
        yield
    except BaseException as error:
        forgotten: BaseException | None = error
        while forgotten is not None:
            traceback.clear_frames(forgotten.__traceback__)
            forgotten = forgotten.__cause__ or forgotten.__context__
        raise
    finally:
        _give_back(device)


def _give_back(device: str) -> None:
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
        """Return whether it has the same bytes, found out without unmasking. Of the same shape and dtype."""
        return torch.equal(_bytes(tensor) ^ self._mask(), self.bytes)

    def plain(self) -> torch.Tensor:
        """Return a new tensor with the elements, contiguous. Whoever asks overwrites it before a kernel runs."""
        return (self.bytes ^ self._mask()).view(self.dtype).view(self.shape)

    def _mask(self) -> torch.Tensor:
        self.dice.manual_seed(self.seed)
        return torch.randint(0, 256, self.bytes.shape, dtype=torch.uint8, device=self.device, generator=self.dice)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


class FreeMemory:
    """What the allocator of a GPU would hand out again.

    What an earlier call left there would be a cache that no one sees, in the memory of its scratch tensors and also where it
    strayed.
    """

    def __init__(self) -> None:
        torch.cuda.empty_cache()  # what is given back to the driver is out of reach, and need not be overwritten
        self.sizes: list[int] = []
        self.wiped = 0

    def wipe(self) -> None:
        """Overwrite all of it. Largest first, so that each piece finds its own block."""
        # Calls of the same shapes leave the same blocks free, but for what the first ones take anew.
        if self.wiped < FIRST_LOOKS or self.wiped % LOOK_EVERY == 0:
            self.sizes = sorted(_free(), reverse=True)
        self.wiped += 1
        held = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in self.sizes]
        for memory in held:
            memory.fill_(NAN_BYTE)


def _free() -> list[int]:
    """Return the bytes of tensors that fill all free blocks."""
    return [
        piece
        for segment in torch.cuda.memory_snapshot()
        for block in segment["blocks"]
        if block["state"] == "inactive"
        for piece in _pieces(block["size"], SMALL_BYTES if segment["segment_type"] == "small" else block["size"])
    ]


def _pieces(size: int, most: int) -> list[int]:
    return [most] * (size // most) + [size % most] * (size % most > 0)
