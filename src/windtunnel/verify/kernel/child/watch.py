"""Watches what host code does in PyTorch while forward runs, and poisons and fences every tensor it allocates.

Runs only in sandboxed children: imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import _tensor_str
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils.dlpack import from_dlpack, to_dlpack

from windtunnel.verify.kernel.text.rules import words

FENCE = 512  # bytes before and after each tensor: an allocation's alignment on a GPU, so that an address ends as without it
POISON_WHOLE = {torch.bool: True, torch.uint8: 0xA5, torch.int8: -91}
POISON_ELSE = -1515870811  # 0xA5A5A5A5
FENCE_BYTE = 0x5C
NAN_BYTE = 0xFF  # repeated, not a number in each floating dtype of two bytes or more

NUMBERS = frozenset({int, float, bool, str, type(None)})
NO_PROGRAMS = (0, 1, 1)

UNSET = words("empty empty_like empty_strided new_empty new_empty_strided")
SET = words("zeros zeros_like new_zeros ones ones_like new_ones full full_like new_full")
VIEWS = words(
    """
    view _unsafe_view reshape _reshape_alias permute transpose t expand squeeze unsqueeze slice select as_strided
    split chunk split_with_sizes unbind alias detach narrow unfold diagonal movedim swapaxes flatten unflatten view_as
    expand_as mT lift_fresh is_same_size sym_size sym_stride sym_numel sym_storage_offset stride size
    numel ravel _to_copy_ promote_types result_type
    """
)
WRITES = frozenset({"zero_", "fill_"})
COPIES = frozenset({"clone", "copy_", "contiguous"})


@dataclass
class Fenced:
    """A tensor inside a larger allocation. name: what to call it in messages."""

    name: str
    base: torch.Tensor  # bytes
    start: int
    end: int

    def written(self) -> bool:
        """Whether anything was written outside the tensor. Looked at on the CPU: each kernel of PyTorch's that a process uses for
        the first time is loaded under the driver's lock, a copy needs none."""
        return any(bool((part.cpu() != FENCE_BYTE).any()) for part in (self.base[: self.start], self.base[self.end :]))


def first_broken(fences: Sequence[Fenced]) -> Fenced | None:
    """The first outside of whose tensor something was written."""
    return next((fence for fence in fences if fence.written()), None)


def fenced(like: torch.Tensor, name: str) -> tuple[torch.Tensor, Fenced]:
    """An unset tensor of the same dtype, shape and strides with fences around it, which it does not show: its storage is its own,
    begins with it and ends with it, as that of a tensor without fences."""
    span = 1 + sum((extent - 1) * stride for extent, stride in zip(like.shape, like.stride(), strict=True)) if like.numel() else 0
    end = FENCE + span * like.element_size()
    base = torch.full((end + FENCE,), FENCE_BYTE, dtype=torch.uint8, device=like.device)
    if not span:
        return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device), Fenced(
            name, base, FENCE, end
        )
    own = from_dlpack(to_dlpack(base[FENCE:end])).view(like.dtype)  # type: ignore[no-untyped-call]
    return own.as_strided(like.shape, like.stride()).data, Fenced(name, base, FENCE, end)  # .data: it is nobody's view


def poison(tensor: torch.Tensor) -> None:
    """Fills with NaN, or with a number that nobody computes."""
    if tensor.is_cuda and tensor.is_floating_point() and tensor.is_contiguous():
        tensor.reshape(-1).view(torch.uint8).fill_(NAN_BYTE)  # one kernel for all dtypes, that of the fences
    elif tensor.is_floating_point() or tensor.is_complex():
        tensor.fill_(float("nan"))
    else:
        tensor.fill_(POISON_WHOLE.get(tensor.dtype, POISON_ELSE if tensor.dtype != torch.int16 else -23131))


@dataclass
class Seen:
    """What one run of forward did. computed: operations that only a kernel may do. sizes, fences: of everything it allocated, in
    bytes."""

    computed: list[str] = field(default_factory=list)
    copies: list[str] = field(default_factory=list)
    allocations: int = 0
    sizes: list[int] = field(default_factory=list)
    fences: list[Fenced] = field(default_factory=list)


class Watch(TorchDispatchMode):
    """Records and poisons. blank: poison what was to be zeros or ones too, for the run with the kernels knocked out.

    filling: what it writes in place of poison.
    """

    def __init__(self, blank: bool = False, filling: int | None = None) -> None:
        super().__init__()
        self.blank, self.filling, self.seen, self.paused = blank, filling, Seen(), False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.paused:
            return result
        name = func.overloadpacket.__name__
        if name in UNSET or name in SET:
            return self._allocated(result, unset=name in UNSET)
        if name in WRITES and self.blank and _whole(result):
            return self._blanked(result)
        if name in COPIES:
            self.seen.copies.append(name)
        if name in COPIES or name in WRITES:
            if _converts(args):
                self.seen.computed.append(name)  # out[:] = x of another dtype is x.to(dtype), and so is out[0].fill_(x[0])
        elif name not in VIEWS:
            self.seen.computed.append(name)
        return result

    def _allocated(self, result: torch.Tensor, unset: bool) -> torch.Tensor:
        self.seen.allocations += 1
        if result.layout is not torch.strided or not result.numel():
            return result
        self.seen.sizes.append(result.untyped_storage().nbytes())
        tensor, fence = fenced(result, f"tensor {self.seen.allocations} that forward allocates")
        if not (unset or self.blank):
            tensor.copy_(result)
        else:
            self._blanked(tensor)
        self.seen.fences.append(fence)
        return tensor.data  # its count of changes begins anew

    def _blanked(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.filling is None:
            poison(tensor)
        else:
            tensor.fill_(self.filling)
        return tensor

    @contextmanager
    def pause(self) -> Iterator[None]:
        """While a kernel runs: the interpreter itself uses PyTorch."""
        before, self.paused = self.paused, True
        try:
            yield
        finally:
            self.paused = before


def _whole(tensor: torch.Tensor) -> bool:
    """Whether this is all of its memory: torch.empty(n).zero_() is torch.zeros(n)."""
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def _converts(args: tuple[Any, ...]) -> bool:
    """Whether a copy is one into another dtype."""
    tensors = [value for value in args if isinstance(value, torch.Tensor)]
    return len({tensor.dtype for tensor in tensors}) > 1


def hide_values() -> None:
    """str(tensor) tells no values from now on: PyTorch's own reads them with every watch switched off."""
    _tensor_str._str = _without_values


def _without_values(tensor: torch.Tensor, *, tensor_contents: str | None = None) -> str:
    mode = _get_current_dispatch_mode()
    if isinstance(mode, Watch) and not mode.paused:
        mode.seen.computed.append("str")
    return f"tensor(..., size={tuple(tensor.shape)}, dtype={tensor.dtype})"


@dataclass
class Launches:
    """What the candidate launched. kernels: count by name.

    races: kernels in which programs write over or read each other, and how. strays: those that leave their tensors.
    handed: those that are given a constant that host code could compute with, and which.
    taken: of each launch its kernel, grid and numbers, while a list is there; no tensors, which would live longer by it.
    """

    kernels: dict[str, int] = field(default_factory=dict)
    races: dict[str, str] = field(default_factory=dict)
    strays: dict[str, str] = field(default_factory=dict)
    handed: dict[str, str] = field(default_factory=dict)
    knocked_out: bool = False
    watch: Watch | None = None
    taken: list[Any] | None = None

    def launched(self, name: str, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Counts a launch; returns the grid to launch it with. It runs within a timed call, so it does next to nothing."""
        self.kernels[name] = self.kernels.get(name, 0) + 1
        if self.knocked_out:
            return _no_programs(grid)
        taken = self.taken
        if taken is None:
            return grid
        taken.append(name)
        taken.append([value for value in args if value.__class__ in NUMBERS])
        taken.append([value for value in kwargs.values() if value.__class__ in NUMBERS])
        if not callable(grid):
            taken.append(grid)
            return grid

        def noted(meta: Any) -> Any:
            found = grid(meta)
            taken.append(found)
            return found

        return noted

    @property
    def count(self) -> int:
        """Launches altogether."""
        return sum(self.kernels.values())

    @contextmanager
    def knock_out(self) -> Iterator[None]:
        """Every launch goes its whole way on the host and starts no program."""
        self.knocked_out = True
        try:
            yield
        finally:
            self.knocked_out = False


def _no_programs(grid: Any) -> Any:
    """A grid of none. One that is a function is called all the same: else host code would know by it."""

    def none(meta: Any) -> tuple[int, int, int]:
        grid(meta)
        return NO_PROGRAMS

    return none if callable(grid) else NO_PROGRAMS
