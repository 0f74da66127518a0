"""Triton's interpreter with eyes: counts launches, knocks kernels out, shuffles programs, finds races between them.

Runs only in sandboxed children, with TRITON_INTERPRET=1 set before triton is imported.
"""

from __future__ import annotations

import contextlib
import inspect
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from triton.runtime import interpreter

from windtunnel.verify.kernel.child.autotune import Evenly, pick_configurations
from windtunnel.verify.kernel.child.constants import look_at_constants
from windtunnel.verify.kernel.child.descriptors import add_descriptor_atomics
from windtunnel.verify.kernel.child.libdevice import own_libdevice
from windtunnel.verify.kernel.child.pauses import SHARE_OF_LAUNCHES, Interrupted, Pauses, made_once
from windtunnel.verify.kernel.child.races import Log
from windtunnel.verify.kernel.child.scalars import numbers_as_tensors
from windtunnel.verify.kernel.child.scratch import own_scratch
from windtunnel.verify.kernel.child.triton_compat import patch_interpreter
from windtunnel.verify.kernel.child.watch import Launches

MOST_PROGRAMS = 65_536
POISON_BYTE = 0xA5
NAN_BYTE = 0xFF  # bfloat16 and the 8-bit formats are whole numbers to NumPy; repeated, this is NaN in them


class TooManyPrograms(Exception):
    """A grid that the interpreter would need minutes for."""


def install(launches: Launches, dice: random.Random) -> Evenly:
    """Puts the eyes in, before the candidate is imported. Returns what takes one of several configurations."""
    holder = _Holder(launches.strays, Pauses(dice))
    _watch_memory(interpreter.interpreter_builder, holder)
    _shuffle(interpreter.interpreter_builder, holder, dice)
    _interrupt(interpreter.interpreter_builder, holder)
    add_descriptor_atomics(interpreter.interpreter_builder)
    own_libdevice(interpreter.interpreter_builder)
    own_scratch()
    choices = Evenly(dice, meta=True)
    pick_configurations(choices)
    patch_interpreter(interpreter.interpreter_builder)
    numbers_as_tensors()
    interpreter.InterpretedFunction.__repr__ = _as_compiled
    original = interpreter.InterpretedFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        name = self.__name__
        grid = _checked_grid(_called(launches.launched(name, grid, args, kwargs), self, args, kwargs))  # still under the watch
        look_at_constants(launches, self, args, kwargs)
        holder.log, holder.fence = Log(), Ranges([*_ranges(args), *_ranges(tuple(kwargs.values()))])
        holder.kernel, holder.pauses = name, Pauses(dice, on=dice.random() < SHARE_OF_LAUNCHES)
        with contextlib.nullcontext() if launches.watch is None else launches.watch.pause():
            result = original(self, *args, grid=grid, warmup=warmup, **kwargs)
        conflict = holder.log.conflict()
        if conflict:
            launches.races.setdefault(name, conflict)
        return result

    interpreter.InterpretedFunction.run = run
    return choices


def _as_compiled(function: Any) -> str:
    """A kernel's text on a GPU."""
    return f"JITFunction({function.fn.__module__}:{function.fn.__qualname__})"


def _called(grid: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a grid that is a function says of the kernel's arguments as they are given, which is what it gets on a GPU; the
    interpreter would give it tensors of its own."""
    if not callable(grid):
        return grid
    return grid(inspect.getcallargs(function.fn, *args, **{k: v for k, v in kwargs.items() if k in function.arg_names}))


def _ranges(values: Any) -> list[tuple[int, int]]:
    """Addresses of the tensors among a launch's arguments: their storage, which has its fences outside."""
    found = []
    for value in values:
        if isinstance(value, tuple):
            found += _ranges(value)
            continue
        tensor = getattr(value, "base", None) if not isinstance(value, torch.Tensor) else value
        if isinstance(tensor, torch.Tensor):
            storage = tensor.untyped_storage()
            found.append((storage.data_ptr(), storage.data_ptr() + storage.nbytes()))
    return found


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sorted, without overlap; never empty."""
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
        """Whether all lie inside."""
        at = np.searchsorted(self.starts, addresses, side="right").astype(np.int64) - 1
        return not addresses.size or bool(((at >= 0) & (addresses < self.ends[np.maximum(at, 0)])).all())


class Stray(Exception):
    """An access outside, stopped before it happens: it could crash or hang the child."""


@dataclass
class _Holder:
    strays: dict[str, str]
    pauses: Pauses
    log: Log = field(default_factory=Log)
    fence: Ranges = field(default_factory=lambda: Ranges([]))
    kernel: str = ""
    filled: bool = False  # whether the tl.load under way has `other`
    order: list[tuple[int, int, int]] = field(default_factory=list)

    def check(self, addresses: np.ndarray, verb: str) -> None:
        """Raises Stray unless every address is inside a tensor of the launch."""
        if not self.fence.holds(addresses):
            self.strays.setdefault(self.kernel, verb)
            raise Stray(f"{self.kernel} {verb} outside its tensors")


def _checked_grid(grid: Any) -> Any:
    """The grid as whole numbers, refused where it is out of proportion."""
    whole = (grid,) if isinstance(grid, int) else tuple(int(extent) for extent in grid)
    if int(np.prod(whole, dtype=np.int64)) > MOST_PROGRAMS:
        raise TooManyPrograms(f"a grid of {whole} programs for a tiny input")
    return whole


def _shuffle(builder: Any, holder: _Holder, dice: random.Random) -> None:
    """Programs run in any order on a GPU; here in a random one, so that no result depends on it."""
    set_dim, set_idx = builder.set_grid_dim, builder.set_grid_idx

    def grid_dim(nx: int, ny: int, nz: int) -> None:
        set_dim(nx, ny, nz)
        holder.order = [(x, y, z) for x in range(nx) for y in range(ny) for z in range(nz)]
        dice.shuffle(holder.order)

    def grid_idx(x: int, y: int, z: int) -> None:
        _, ny, nz = builder.grid_dim
        holder.log.next_program()
        set_idx(*holder.order[(x * ny + y) * nz + z])

    builder.set_grid_dim, builder.set_grid_idx = grid_dim, grid_idx


def _interrupt(builder: Any, holder: _Holder) -> None:
    """Programs may stop at their atomic accesses."""
    original = interpreter.GridExecutor.__init__

    def made(self: Any, function: Any, *rest: Any, **named: Any) -> None:
        original(self, function, *rest, **named)
        self.fn = Interrupted(function, holder, builder)

    interpreter.GridExecutor.__init__ = made


def _watch_memory(builder: Any, holder: _Holder) -> None:
    load, store = builder.create_masked_load, builder.create_masked_store
    rmw, cas = builder.create_atomic_rmw, builder.create_atomic_cas

    def masked_load(ptrs: Any, mask: Any, other: Any, *rest: Any, **named: Any) -> Any:
        addresses = ptrs.data[_lanes(mask, ptrs)]
        holder.check(addresses, "reads")
        if other is None and not holder.filled and addresses.size < ptrs.data.size:
            other = _undefined(ptrs)
        holder.log.loaded(addresses)
        return load(ptrs, mask, other, *rest, **named)

    def masked_store(ptrs: Any, value: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        keep = _lanes(mask, ptrs)
        addresses = ptrs.data[keep]
        holder.check(addresses, "writes")
        holder.log.stored(addresses, _bits(np.broadcast_to(value.data, ptrs.data.shape)[keep]))
        return store(ptrs, value, mask, *rest, **named)

    def atomic_cas(ptr: Any, expected: Any, value: Any, *rest: Any) -> Any:
        addresses = ptr.data.reshape(-1)
        holder.check(addresses, "writes")
        found = cas(ptr, expected, value, *rest)
        old, new = found.data.reshape(-1), value.data.reshape(-1)
        holder.log.swapped(addresses[(old == expected.data.reshape(-1)) & (old != new)])
        return found

    def atomic_rmw(op: Any, ptr: Any, value: Any, mask: Any, *rest: Any) -> Any:
        keep = _lanes(mask, ptr)
        addresses = ptr.data[keep]
        holder.check(addresses, "writes")
        found = rmw(op, ptr, value, mask, *rest)
        holder.log.changed(addresses, ptr.data[keep & (found.data != value.data)] if "XCHG" in str(op) else None)
        return found

    _note_other(type(interpreter.interpreter_semantic), holder)
    builder.create_masked_load, builder.create_masked_store = made_once(holder, masked_load), made_once(holder, masked_store)
    builder.create_atomic_cas = made_once(holder, atomic_cas, word=0)
    builder.create_atomic_rmw = made_once(holder, atomic_rmw, word=1)


def _lanes(mask: Any, pointers: Any) -> np.ndarray:
    """Which elements a mask keeps: by 0 and 1 that are no booleans NumPy would pick the elements with these numbers. mask: the
    interpreter's tensor, or an array from block pointers."""
    return np.broadcast_to(np.asarray(mask.data, bool), pointers.data.shape)


def _note_other(semantic: Any, holder: _Holder) -> None:
    """The interpreter takes an `other` of one element that is 0 for none at all, and leaves 0 as it should. semantic: the class,
    of which Triton up to 3.6 makes an object for each function."""
    original = semantic.load

    def load(self: Any, pointer: Any, mask: Any, other: Any, *rest: Any, **named: Any) -> Any:
        holder.filled = other is not None
        try:
            return original(self, pointer, mask, other, *rest, **named)
        finally:
            holder.filled = False

    semantic.load = load


def _undefined(pointers: Any) -> Any:
    """What a masked load without `other` leaves where the mask is false: Triton promises nothing there. NaN here, or a number
    that nobody computes."""
    element = pointers.get_element_ty()
    values = np.empty(pointers.data.shape, interpreter._get_np_dtype(element))
    if values.dtype.kind == "f":
        values.fill(np.nan)
    elif values.dtype == bool:
        values.fill(True)
    else:
        values.view(np.uint8).fill(NAN_BYTE if element.is_floating() else POISON_BYTE)
    return interpreter.TensorHandle(values, element)


def _bits(values: np.ndarray) -> np.ndarray:
    """Values as integers, so that NaN equals NaN."""
    flat = np.ascontiguousarray(values).reshape(-1)
    if flat.dtype == bool:
        return flat.astype(np.int64)
    return flat.view(f"u{flat.dtype.itemsize}").astype(np.uint64).view(np.int64)


__all__ = ["TooManyPrograms", "install"]
