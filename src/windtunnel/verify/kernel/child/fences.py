"""Memory with fences around it, filled with what nobody computes: what is written outside a buffer shows, and what is not written
inside. Imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.utils.dlpack import from_dlpack, to_dlpack

FENCE = 512  # bytes before and after each buffer: an allocation's alignment on a GPU, so that an address ends as without it
FENCE_BYTE = 0x5C
NAN_BYTE = 0xFF  # repeated, not a number in each floating dtype of two bytes or more
POISON_BYTE = 0xA5  # of integers: a number that nobody computes


@dataclass
class Fenced:
    """A buffer inside a larger allocation. name: what to call it in messages."""

    name: str
    base: torch.Tensor  # bytes
    start: int
    end: int

    def written(self) -> bool:
        """Whether anything was written outside the buffer."""
        return any(bool((part.cpu() != FENCE_BYTE).any()) for part in (self.base[: self.start], self.base[self.end :]))


def first_broken(fences: Sequence[Fenced]) -> Fenced | None:
    """The first outside of whose buffer something was written."""
    return next((fence for fence in fences if fence.written()), None)


def fenced(size: int, name: str, device: str) -> tuple[torch.Tensor, Fenced]:
    """Unset bytes with fences around them. Their storage is their own: it begins and ends with them."""
    end = FENCE + size
    base = torch.full((end + FENCE,), FENCE_BYTE, dtype=torch.uint8, device=device)
    if not size:
        return torch.empty(0, dtype=torch.uint8, device=device), Fenced(name, base, FENCE, end)
    own: torch.Tensor = from_dlpack(to_dlpack(base[FENCE:end]))  # type: ignore[no-untyped-call]
    return own, Fenced(name, base, FENCE, end)


def poison(tensor: torch.Tensor) -> None:
    """Fill a tensor with NaN, or with a number that nobody computes."""
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.fill_(float("nan"))
    elif tensor.dtype == torch.bool:
        tensor.fill_(True)
    else:
        tensor.fill_(int.from_bytes(bytes([POISON_BYTE]) * tensor.element_size(), "little", signed=tensor.dtype.is_signed))
