"""bfloat16 on Triton's interpreter, which keeps its bits in whole numbers and computes with these.

Here a handle of bfloat16 holds float32 numbers that bfloat16 has, and whatever an operation makes is rounded to such: as on a
GPU, which computes each operation in float32. In memory there are its bits, 16 of them. Runs only in sandboxed children.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

HIGH = np.uint32(0xFFFF0000)


def rounded(values: np.ndarray) -> np.ndarray:
    """Return the nearest numbers that bfloat16 has, ties to even; what is not a number stays so."""
    given = np.ascontiguousarray(values, dtype=np.float32)
    bits = given.view(np.uint32)
    # Half of the last place that is kept, less one where that is even.
    near = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & HIGH
    return np.where(np.isnan(given), given, near.view(np.float32))


def bits_of(values: np.ndarray) -> np.ndarray:
    """Return the bits (uint16) of numbers that bfloat16 has."""
    whole = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    # Cutting off the lower half may leave an infinity of a NaN.
    quiet = np.where(np.isnan(values), np.uint32(0x7FC00000), whole)
    return (quiet >> np.uint32(16)).astype(np.uint16)


def from_bits(bits: np.ndarray) -> np.ndarray:
    """Return the numbers (float32) of bfloat16's bits."""
    return (np.asarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32)


def add_bfloat16(builder: Any) -> None:
    """Teach the interpreter's builder bfloat16, before a kernel is made."""
    _handles()
    _memory(builder)
    _casts(builder)
    builder.get_bf16 = lambda value: interpreter.TensorHandle(np.array([value], dtype=np.float32), tl.bfloat16)
    absolute = builder.create_fabs
    builder.create_fabs = lambda arg: interpreter.TensorHandle(np.abs(arg.data), tl.bfloat16) if _is(arg.dtype) else absolute(arg)


def _is(dtype: Any) -> bool:
    return _name(dtype) == "bf16"


def _name(dtype: Any) -> str:
    """Return an element's name: types are asked for at every step, and names compare several times as fast as types."""
    return getattr(getattr(dtype, "scalar", dtype), "name", "")


def _handles() -> None:
    """Make the interpreter's handles round what they are made with."""
    original, size = interpreter._get_np_dtype, interpreter._validate_np_data_size
    made = interpreter.TensorHandle.__post_init__
    known: dict[str, Any] = {"bf16": np.dtype(np.float32)}

    def in_numpy(dtype: Any) -> Any:
        """Look a type up in a table that is kept; the interpreter builds one of all types at every question."""
        name = _name(dtype)
        if name not in known:
            if not name:
                return original(dtype)
            known[name] = original(dtype)
        return known[name]

    fitted: dict[str, int] = {}  # the most bytes of an element that were found to fit a type

    def made_of(handle: Any) -> None:
        name = getattr(handle.dtype, "name", "")  # asked of every handle there is
        if name == "bf16":
            if handle.data.dtype == np.uint16:
                handle.data = from_bits(handle.data)
            elif handle.data.dtype != bool:
                handle.data = rounded(handle.data)
        if handle.data.itemsize > fitted.get(name, 0):
            made(handle)
            fitted[name] = handle.data.itemsize

    interpreter._get_np_dtype = in_numpy
    interpreter._validate_np_data_size = lambda data, dtype: _is(dtype) or size(data, dtype)
    interpreter.TensorHandle.__post_init__ = made_of


def _memory(builder: Any) -> None:
    """Load and store numbers of bfloat16 as their bits."""
    load, store, rmw = builder.create_masked_load, builder.create_masked_store, builder.create_atomic_rmw
    native = interpreter._interpreter

    def masked_load(ptrs: Any, mask: Any, other: Any, *rest: Any, **named: Any) -> Any:
        if not _is(ptrs.get_element_ty()):
            return load(ptrs, mask, other, *rest, **named)
        spare = np.zeros(ptrs.data.shape, np.uint16) if other is None else bits_of(other.data)
        spare = np.ascontiguousarray(np.broadcast_to(spare, ptrs.data.shape))
        return interpreter.TensorHandle(native.load(ptrs.data, mask.data, spare, np.dtype(np.uint16)), tl.bfloat16)

    def masked_store(ptrs: Any, value: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        if not _is(ptrs.get_element_ty()):
            return store(ptrs, value, mask, *rest, **named)
        return native.store(ptrs.data, bits_of(value.data), mask.data)

    def atomic_rmw(op: Any, ptr: Any, value: Any, mask: Any, *rest: Any) -> Any:
        if not _is(ptr.get_element_ty()):
            return rmw(op, ptr, value, mask, *rest)
        if "FADD" not in str(op):
            raise NotImplementedError(f"{op} of bfloat16")
        shape = ptr.data.shape
        places, kept = ptr.data.reshape(-1), np.broadcast_to(np.asarray(mask.data, bool), shape).reshape(-1)
        terms, before = np.broadcast_to(value.data, shape).reshape(-1), np.zeros(places.size, np.float32)
        always, nothing = np.ones(1, bool), np.zeros(1, np.uint16)
        for at in np.flatnonzero(kept):  # one after the other: several may be of one place
            place = places[at : at + 1]
            before[at : at + 1] = from_bits(native.load(place, always, nothing, np.dtype(np.uint16)))
            native.store(place, bits_of(rounded(before[at : at + 1] + terms[at : at + 1])), always)
        return interpreter.TensorHandle(before.reshape(shape), tl.bfloat16)

    builder.create_masked_load, builder.create_masked_store, builder.create_atomic_rmw = masked_load, masked_store, atomic_rmw


def _casts(builder: Any) -> None:
    """Convert from and to other types: its numbers are float32's."""
    cast, convert, reinterpret = builder.cast_impl, builder.create_fp_to_fp, builder.create_bitcast

    def as_single(handle: Any) -> Any:
        return interpreter.TensorHandle(handle.data, tl.float32) if _is(handle.dtype) else handle

    def between(original: Any, src: Any, dst: Any, *rest: Any) -> Any:
        if _is(dst):
            plain = as_single(src)
            if plain.dtype.scalar.is_fp8():
                plain = convert(plain, tl.float32, *rest)
            return interpreter.TensorHandle(plain.data.astype(np.float32), tl.bfloat16)
        if _is(src.dtype) and dst.scalar == tl.float32:
            return as_single(src)
        return original(as_single(src), dst, *rest)

    def bitcast(src: Any, dst: Any) -> Any:
        if _is(src.dtype) and not _is(dst):
            src = interpreter.TensorHandle(bits_of(src.data), tl.uint16)
        return reinterpret(src, dst) if not _is(dst) else interpreter.TensorHandle(_as_bits(src), tl.bfloat16)

    for name in ("si_to_fp", "ui_to_fp", "fp_to_si", "fp_to_ui", "fp_ext", "fp_trunc"):
        setattr(builder, f"create_{name}", lambda src, dst: between(cast, src, dst))
    builder.cast_impl = lambda src, dst: between(cast, src, dst)
    builder.create_fp_to_fp = lambda src, dst, mode: (
        between(convert, src, dst, mode) if _is(dst) or _is(src.dtype) else (convert(src, dst, mode))
    )
    builder.create_bitcast = builder.create_int_to_ptr = builder.create_ptr_to_int = bitcast


def _as_bits(handle: Any) -> np.ndarray:
    return bits_of(handle.data) if _is(handle.dtype) else handle.data.view(np.uint16)
