"""Programs of a grid that run together on Triton's interpreter: most of its time goes into Python's steps, which are then few.

Every array of the interpreter has one dimension more, the first, for programs: of length 1 where all have the same. So a single
number of a kernel, which the interpreter keeps in an array of one element, looks as it always did. Where programs do different
things, by an `if` or a loop of another length, none of it has happened: what was stored is put back, and each part goes on by
itself from the beginning. What concerns the order of programs (atomic accesses), fails, or is not known here is run one program
after the other. Runs only in sandboxed children.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

MOST_TOGETHER = 256
MOST_ELEMENTS = 1 << 18  # of one array of several programs
# What a reduction or scan does at one go: what it makes of an array.
_REDUCED: dict[str, list[Any]] = {
    "_sum_combine": [np.sum], "_elementwise_max": [np.nanmax], "_elementwise_min": [np.nanmin],
    "_argmin_combine_tie_break_left": [np.min, np.argmin], "_argmax_combine_tie_break_left": [np.max, np.argmax],
}  # fmt: skip
_SCANNED: dict[str, Any] = {"_sum_combine": np.cumsum, "_prod_combine": np.cumprod}


class Apart(BaseException):
    """Ends programs that cannot go on together; nothing of Triton's catches it. parts: those that can. most: how many can."""

    def __init__(self, parts: Sequence[np.ndarray] = (), *, most: int = MOST_TOGETHER) -> None:
        self.parts, self.most = parts, most


def agreed(values: np.ndarray) -> Any:
    """Return the one value that all programs have."""
    if len(values) > 1 and (values != values[0]).any():
        kinds, of = np.unique(values, return_inverse=True)
        raise Apart([np.flatnonzero(of == kind) for kind in range(len(kinds))])
    return values[0]


def run_together(builder: Any) -> None:
    """Teach the interpreter's builder that arrays are of several programs. Before a kernel is made."""
    handle, kind = interpreter.TensorHandle, interpreter._get_np_dtype

    def like(data: np.ndarray, given: Any) -> Any:
        return handle(data, given.dtype.scalar)

    def all_along(*handles: Any) -> list[np.ndarray]:
        programs = max(len(one.data) for one in handles)
        return [np.broadcast_to(one.data, (programs, *one.data.shape[1:])) for one in handles]

    def splat(ret_ty: Any, value: Any) -> Any:
        shape = ret_ty.shape
        _has_room(len(value.data), shape)
        data = value.data if len(value.data) == 1 else value.data.reshape(-1, *[1] * len(shape))
        return like(np.full((len(data), *shape), data, kind(value.dtype)), value)

    def broadcast(value: Any, shape: Sequence[int]) -> Any:
        _has_room(len(value.data), shape)
        return like(np.broadcast_to(value.data, (len(value.data), *shape)), value)

    def histogram(data: Any, bins: int, mask: Any) -> Any:
        _alone(data, *([] if mask is None else [mask]))
        made = counted(data, bins, mask)
        return handle(made.data[None], made.dtype)

    def program_id(axis: int) -> Any:
        return handle(np.array(builder.grid_idx[axis], np.int32, ndmin=1), tl.int32)

    def printed(*given: Any) -> None:
        _alone(*given[2])
        said(*given)

    def gather(value: Any, at: Any, axis: int) -> Any:
        data, places = all_along(value, at)
        return like(np.take_along_axis(data, places, axis + 1), value)

    counted, said = builder.create_histogram, builder.create_print
    builder.create_histogram = histogram
    builder.create_print, builder.create_gather = printed, gather
    builder.create_get_program_id = program_id
    builder.create_splat, builder.create_broadcast = splat, broadcast
    builder.create_unsplat = lambda value: like(value.data.reshape(len(value.data)), value)
    builder.create_make_range = lambda ty, start, stop: handle(np.arange(start, stop, dtype=np.int32)[None], tl.int32)
    builder.create_reshape = lambda value, shape, order: like(value.data.reshape(len(value.data), *shape), value)
    builder.create_trans = lambda value, perm: like(np.transpose(value.data, (0, *(int(axis) + 1 for axis in perm))), value)
    builder.create_expand_dims = lambda value, axis: like(np.expand_dims(value.data, axis + 1), value)
    builder.create_cat = lambda left, right: like(np.concatenate(all_along(left, right), axis=1), left)
    builder.create_join = lambda left, right: like(np.stack(all_along(left, right), axis=-1), left)
    _point(builder)
    interpreter.ReduceOps, interpreter.ScanOps = _Reduced, _Scanned


def as_numbers(tensor: Any) -> None:
    """Have a kernel's tensors decide and count for all programs that run. tensor: the class, after the interpreter's patches."""
    tensor.__index__ = lambda self: int(agreed(self.handle.data.reshape(len(self.handle.data))))
    tensor.__bool__ = lambda self: _decided(self.handle.data)
    tensor.T = property(lambda self: self.trans())


def _decided(data: np.ndarray) -> bool:
    return bool(agreed(data.reshape(-1))) if data[0].size == 1 else True  # Triton's interpreter takes a block for true


def _has_room(programs: int, shape: Sequence[int]) -> None:
    if programs > 1 and programs * math.prod(shape) > MOST_ELEMENTS:
        raise Apart(most=programs // 2)


def _alone(*handles: Any) -> None:
    if any(len(one.data) > 1 for one in handles):
        raise Apart(most=1)


def _point(builder: Any) -> None:
    """Make places of block pointers and descriptors."""
    handle = interpreter.TensorHandle

    def places(self: Any, offsets: Sequence[Any], checked: Any) -> tuple[Any, np.ndarray]:
        element, block = self.base.get_element_ty(), self.block_shape
        lone = [1] * len(block)
        where, mask = self.base.data.reshape(-1, *lone), np.ones((1, *block), bool)
        for axis, (extent, offset) in enumerate(zip(block, offsets, strict=True)):
            # A number is where they begin, a row of them is where each is.
            at = offset.data.reshape(len(offset.data), -1) + (np.arange(extent) if offset.data.ndim == 1 else 0)
            at = at.reshape(-1, *lone[:axis], extent, *lone[axis + 1 :])
            stride, end = (some[axis].data.reshape(-1, *lone) for some in (self.strides, self.shape))
            where = where + (element.primitive_bitwidth // 8 * at * stride).astype(np.uint64)
            if checked is None or axis in checked:
                mask = mask & (at >= 0) & (at < end)
        _has_room(len(where), block)
        shape = np.broadcast_shapes(where.shape, mask.shape)
        return handle(np.array(np.broadcast_to(where, shape)), self.base.dtype.scalar), np.array(np.broadcast_to(mask, shape))

    def described(self: Any, offsets: Sequence[Any]) -> tuple[Any, np.ndarray]:
        width = self.base.dtype.element_ty.primitive_bitwidth // 8
        assert (offsets[-1].data * width % 16 == 0).all(), "block offset start must be 16-byte aligned"
        return places(self, offsets, None)

    def advanced(pointer: Any, steps: Sequence[Any]) -> Any:
        assert len(pointer.offsets) == len(steps), "len(ptr.offsets) != len(offsets)"
        moved = [handle(at.data + step.data, at.dtype) for at, step in zip(pointer.offsets, steps, strict=True)]
        return type(pointer)(pointer.base, pointer.shape, pointer.strides, moved, pointer.block_shape, pointer.order)

    def gathered(descriptor: Any, rows: Any, column: Any, *_: Any) -> Any:
        return builder.create_descriptor_load(_of_rows(descriptor, rows), [rows, column], None, None)

    def scattered(descriptor: Any, value: Any, rows: Any, column: Any) -> None:
        builder.create_descriptor_store(_of_rows(descriptor, rows), value, [rows, column])

    interpreter.BlockPointerHandle.materialize_pointers = lambda self, checked: places(self, self.offsets, checked)
    interpreter.TensorDescHandle.materialize_pointers = described
    builder.create_advance = advanced
    builder.create_descriptor_gather, builder.create_descriptor_scatter = gathered, scattered


def _of_rows(descriptor: Any, rows: Any) -> Any:
    """Return a descriptor of as many rows as are named."""
    block = [rows.data.shape[1], *descriptor.block_shape[1:]]
    return type(descriptor)(descriptor.base, descriptor.shape, descriptor.strides, block, descriptor.padding)


def _tensor(data: np.ndarray, dtype: Any) -> Any:
    shape = list(data.shape[1:])
    data = data.astype(interpreter._get_np_dtype(dtype), copy=False)
    return tl.core.tensor(interpreter.TensorHandle(data, dtype.scalar), tl.block_type(dtype, shape) if shape else dtype)


def _combined(function: Any, left: list[np.ndarray], right: list[np.ndarray], kinds: list[Any]) -> list[np.ndarray]:
    """Return what a function makes of numbers and as many others, each by itself."""
    try:
        said = function(*map(_tensor, [*left, *right], [*kinds, *kinds]))
    except Apart as apart:  # not programs' ways part here, but those of numbers
        made = [np.empty_like(one) for one in left]
        for part in apart.parts or [*np.arange(len(left[0])).reshape(-1, 1)]:
            some = _combined(function, [one[part] for one in left], [one[part] for one in right], kinds)
            for whole, one in zip(made, some, strict=True):
                whole[part] = one
        return made
    found = (getattr(one, "handle", np.asarray(one)).data for one in (said if isinstance(said, tuple) else (said,)))
    return [np.broadcast_to(one, like.shape).astype(like.dtype) for one, like in zip(found, left, strict=True)]


def _rows(given: Sequence[Any], axis: int) -> list[np.ndarray]:
    """Return the arrays of tensors with an axis of theirs put first."""
    return [np.moveaxis(data, axis + 1, 0) for data in np.broadcast_arrays(*(one.handle.data for one in given))]


class _Reduced(interpreter.ReduceOps):  # type: ignore[misc]  # Triton has no annotations: a base of any type
    """`tl.reduce`, for each program."""

    def apply_impl(self, input: Any) -> Any:
        """Return what is left without the axis."""
        name, rank = getattr(self.combine_fn, "__name__", ""), len(input[0].shape)
        axis = 0 if self.axis is None else operator.index(self.axis) % rank
        if self.axis is None:
            input = [_tensor(one.handle.data.reshape(len(one.handle.data), -1), one.dtype) for one in input]
        if getattr(tl.standard, name, None) is self.combine_fn and name in _REDUCED:
            made = [function(input[0].handle.data, axis=axis + 1) for function in _REDUCED[name]]
            kinds = [input[0].dtype, tl.int32][: len(made)]
        else:
            rows, kinds = _rows(input, axis), [one.dtype for one in input]
            shape, function = rows[0].shape[1:], self.combine_fn.rewrite()
            while len(rows[0]) > 1:  # neighbours at once, as on a GPU; there are 2, 4, 8 ...
                left, right = ([row[of::2].reshape(-1) for row in rows] for of in (0, 1))
                rows = [one.reshape(-1, *shape) for one in _combined(function, left, right, kinds)]
            made = [row[0] for row in rows]
        if self.keep_dims:
            made = [np.expand_dims(one, axis + 1) if self.axis is not None else one.reshape(-1, *[1] * rank) for one in made]
        return [_tensor(one, kind) for one, kind in zip(made, kinds, strict=True)]


class _Scanned(interpreter.ScanOps):  # type: ignore[misc]  # as above
    """`tl.associative_scan`, for each program."""

    def apply_impl(self, input: Any) -> Any:
        """Return the same shapes."""
        name = getattr(self.combine_fn, "__name__", "")
        axis = operator.index(self.axis) % len(input[0].shape)
        rows, kinds = _rows(input, axis), [one.dtype for one in input]
        rows = [row[::-1] for row in rows] if self.reverse else rows
        if getattr(tl.standard, name, None) is self.combine_fn and name in _SCANNED:
            made = [_SCANNED[name](rows[0], axis=0)]
        else:
            function, made = self.combine_fn.rewrite(), [row.copy() for row in rows]
            for at in range(1, len(made[0])):
                before, now = ([row[one].reshape(-1) for row in made] for one in (at - 1, at))
                for whole, one in zip(made, _combined(function, before, now, kinds), strict=True):
                    whole[at] = one.reshape(whole.shape[1:])
        made = [one[::-1] for one in made] if self.reverse else made
        return [_tensor(np.moveaxis(one, 0, axis + 1), kind) for one, kind in zip(made, kinds, strict=True)]
