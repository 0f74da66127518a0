"""Triton's interpreter with eyes: counts launches, shuffles programs, finds races between them and accesses outside of tensors.

Runs only in sandboxed children, with TRITON_INTERPRET=1 set before triton is imported.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

from windtunnel.verify.kernel.child.bfloat16 import add_bfloat16
from windtunnel.verify.kernel.child.libdevice import own_libdevice
from windtunnel.verify.kernel.child.pauses import SHARE_OF_LAUNCHES, Grid, Pauses, made_once
from windtunnel.verify.kernel.child.races import Log, Programs
from windtunnel.verify.kernel.child.scalars import numbers_as_tensors
from windtunnel.verify.kernel.child.together import Apart, run_together
from windtunnel.verify.kernel.child.triton_compat import patch_interpreter

MOST_PROGRAMS = 65_536


class TooManyPrograms(Exception):
    """A grid that the interpreter would need minutes for."""


class Eyes:
    """Starts kernels on the interpreter and sees what they do. One for a process, which it changes.

    kernels: how often each was started. races: kernels in which programs write over or read each other, and how. strays: those
    that leave their tensors.
    """

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.kernels: Counter[str] = Counter()
        self.races: dict[str, str] = {}
        self.strays: dict[str, str] = {}
        # The interpreter has one builder, of the module: what is changed on it holds for every kernel of this process.
        builder = interpreter.interpreter_builder
        add_bfloat16(builder)
        self.holder = _Holder(self.strays, Pauses(dice))
        run_together(builder)
        _watch_memory(builder, self.holder)
        _take_grids(builder, self.holder)
        own_libdevice(builder)
        patch_interpreter(builder)
        numbers_as_tensors()
        interpreter.InterpretedFunction.__repr__ = _as_compiled

    def start(self, kernel: Any, grid: Any, values: dict[str, Any], options: dict[str, Any]) -> None:
        """Run all programs of a kernel, in a random order. options: warps and such, of which there are none here."""
        name = kernel.__name__
        self.kernels[name] += 1
        holder = self.holder
        if math.prod(grid) > MOST_PROGRAMS:
            raise TooManyPrograms(f"a grid of {grid} programs for a tiny input")
        # Races are between programs of one launch; launches follow each other, so each has a log of its own.
        holder.log, holder.fence = Log(), Ranges(_ranges(tuple(values.values())))
        holder.kernel, holder.pauses = name, Pauses(self.dice, on=self.dice.random() < SHARE_OF_LAUNCHES)
        holder.grid = grid
        kernel.run(grid=(1, 1, 1), warmup=False, **values)
        conflict = holder.log.conflict()
        if conflict:
            # The first conflict is told: later launches of the kernel would only repeat it.
            self.races.setdefault(name, conflict)


def _as_compiled(function: Any) -> str:
    """Return a kernel's text on a GPU."""
    return f"JITFunction({function.fn.__module__}:{function.fn.__qualname__})"


def _ranges(values: Any) -> list[tuple[int, int]]:
    """Return the addresses of the tensors among a launch's arguments: their storage, which has its fences outside."""
    found = []
    for value in values:
        if isinstance(value, tuple):
            found += _ranges(value)
            continue
        # Descriptors and pointers of another dtype hold the tensor that they look at as their base.
        tensor = getattr(value, "base", None) if not isinstance(value, torch.Tensor) else value
        if isinstance(tensor, torch.Tensor):
            # The whole storage, not the view alone: a kernel may reach the rest of a tensor by its strides.
            storage = tensor.untyped_storage()
            found.append((storage.data_ptr(), storage.data_ptr() + storage.nbytes()))
    return found


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges sorted, without overlap; never empty."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged or [(0, 0)]


class Ranges:
    """Addresses that the programs of one launch may touch: those of the tensors it was given."""

    def __init__(self, ranges: list[tuple[int, int]]) -> None:
        whole = _merged(ranges)
        self.starts = np.array([start for start, _ in whole], dtype=np.uint64)
        self.ends = np.array([end for _, end in whole], dtype=np.uint64)

    def holds(self, addresses: np.ndarray) -> bool:
        """Return whether all lie inside."""
        # Of sorted ranges without overlap only the last that begins at or before an address can hold it.
        at = np.searchsorted(self.starts, addresses, side="right").astype(np.int64) - 1
        return not addresses.size or bool(((at >= 0) & (addresses < self.ends[np.maximum(at, 0)])).all())


class Stray(Exception):
    """An access outside, stopped before it happens: it could crash or hang the child."""


@dataclass
class _Holder:
    """What the launch that runs is watched with.

    Attributes:
        numbers: of the programs that run together; None where one runs by itself.
        undo: addresses that those have stored to, with what was there.
        together: how many programs of a kernel can run together, where that is known.
    """

    strays: dict[str, str]
    pauses: Pauses
    log: Log = field(default_factory=Log)
    fence: Ranges = field(default_factory=lambda: Ranges([]))
    kernel: str = ""
    grid: tuple[int, int, int] = (1, 1, 1)
    numbers: np.ndarray | None = None
    undo: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    together: dict[Any, int] = field(default_factory=dict)

    def check(self, addresses: np.ndarray, verb: str) -> None:
        """Raise Stray unless every address is inside a tensor of the launch."""
        if not self.fence.holds(addresses):
            if self.numbers is not None:
                raise Apart(most=1)
            # Noted as well as raised: the candidate's own code may catch what is raised.
            self.strays.setdefault(self.kernel, verb)
            raise Stray(f"{self.kernel} {verb} outside its tensors")

    def who(self, keep: np.ndarray) -> Programs | None:
        """Return the numbers of the programs that make an access. keep: its elements, by program where these differ."""
        if self.numbers is None:
            return None
        if len(keep) == 1:
            return self.numbers[0], self.numbers[-1]
        each = np.broadcast_to(self.numbers.reshape(-1, *[1] * (keep.ndim - 1)), keep.shape)[keep]
        return each, each


def _take_grids(builder: Any, holder: _Holder) -> None:
    """Run whole grids where the interpreter would run one program."""
    original = interpreter.GridExecutor.__init__

    def made(self: Any, function: Any, *rest: Any, **named: Any) -> None:
        original(self, function, *rest, **named)
        self.fn = Grid(function, holder, builder)

    interpreter.GridExecutor.__init__ = made


def _watch_memory(builder: Any, holder: _Holder) -> None:
    load, store = builder.create_masked_load, builder.create_masked_store
    rmw, cas = builder.create_atomic_rmw, builder.create_atomic_cas

    def masked_load(ptrs: Any, mask: Any, other: Any, *rest: Any, **named: Any) -> Any:
        # Lanes that are masked out may point anywhere: that is what masks are for.
        ptrs, mask, *others = _spread(ptrs, mask, *([] if other is None else [other]))
        addresses = ptrs.data[mask.data]
        holder.check(addresses, "reads")
        holder.log.loaded(addresses, holder.who(mask.data))
        return load(ptrs, mask, *(others or [None]), *rest, **named)

    def masked_store(ptrs: Any, value: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        ptrs, mask, value = _spread(ptrs, mask, value)
        keep = mask.data
        addresses = ptrs.data[keep]
        holder.check(addresses, "writes")
        holder.log.stored(addresses, _bits(value.data[keep]), holder.who(keep))
        if holder.numbers is not None:
            bits = np.dtype(f"u{max(1, ptrs.get_element_ty().primitive_bitwidth // 8)}")
            every, nothing = np.ones(len(addresses), bool), np.zeros(len(addresses), bits)
            holder.undo.append((addresses, interpreter._interpreter.load(addresses, every, nothing, bits)))
        return store(ptrs, value, mask, *rest, **named)

    def atomic_cas(ptr: Any, expected: Any, value: Any, *rest: Any) -> Any:
        addresses = ptr.data.reshape(-1)
        holder.check(addresses, "writes")
        found = cas(ptr, expected, value, *rest)
        old, new = found.data.reshape(-1), value.data.reshape(-1)
        # A swap that failed, or that put back what was there, changed nothing that another program could see.
        holder.log.swapped(addresses[(old == expected.data.reshape(-1)) & (old != new)])
        return found

    def atomic_rmw(op: Any, ptr: Any, value: Any, mask: Any, *rest: Any) -> Any:
        keep = _lanes(mask, ptr)
        addresses = ptr.data[keep]
        holder.check(addresses, "writes")
        found = rmw(op, ptr, value, mask, *rest)
        # An exchange that changed a word may have taken a lock, so it is noted as swaps are; sums and such take none.
        holder.log.changed(addresses, ptr.data[keep & (found.data != value.data)] if "XCHG" in str(op) else None)
        return found

    builder.create_masked_load, builder.create_masked_store = made_once(holder, masked_load), made_once(holder, masked_store)
    builder.create_atomic_cas = made_once(holder, atomic_cas, word=0)
    builder.create_atomic_rmw = made_once(holder, atomic_rmw, word=1)


def _lanes(mask: Any, pointers: Any) -> np.ndarray:
    """Return which elements a mask keeps: by 0 and 1 that are no booleans NumPy would pick the elements with these numbers.

    mask: the interpreter's tensor, or an array from block pointers.
    """
    return np.broadcast_to(np.asarray(mask.data, bool), pointers.data.shape)


def _spread(ptrs: Any, mask: Any, *others: Any) -> list[Any]:
    """Return all of an access with the elements of all programs where any of it has them. mask: as of `_lanes`."""
    given = [ptrs, interpreter.TensorHandle(np.asarray(mask.data, bool), tl.int1), *others]
    shape = np.broadcast_shapes(*(one.data.shape for one in given))
    # The interpreter's own code takes no array that may not be written to, as views of one element many times may not.
    return [
        one
        if one.data.shape == shape and one.data.flags.writeable
        else interpreter.TensorHandle(np.array(np.broadcast_to(one.data, shape)), one.dtype)
        for one in given
    ]


def _bits(values: np.ndarray) -> np.ndarray:
    """Return values as integers, so that NaN equals NaN."""
    flat = np.ascontiguousarray(values).reshape(-1)
    if flat.dtype == bool:
        return flat.astype(np.int64)
    return flat.view(f"u{flat.dtype.itemsize}").astype(np.uint64).view(np.int64)
