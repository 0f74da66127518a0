"""Tensors as they travel between processes: raw bytes with dtype, shape and strides; never pickled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Buffer = bytes | bytearray | memoryview

NUMPY = {
    "float64": "float64",
    "float32": "float32",
    "float16": "float16",
    "bfloat16": "uint16",  # numpy has none: its bits
    "int64": "int64",
    "int32": "int32",
    "int16": "int16",
    "int8": "int8",
    "uint8": "uint8",
    "bool": "uint8",
}
FLOATING = ("float64", "float32", "float16", "bfloat16")
MAX_DIMS = 16


@dataclass(frozen=True)
class Array:
    """One tensor. dtype: torch's name without 'torch.'. stride: in elements. data: its elements in row-major order."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    data: Buffer

    @property
    def floating(self) -> bool:
        """Whether it holds floating-point numbers."""
        return self.dtype in FLOATING

    def raw(self) -> np.ndarray:
        """Return its elements as stored (bfloat16 as uint16 bits), in its shape."""
        return np.frombuffer(self.data, dtype=NUMPY[self.dtype]).reshape(self.shape)

    def values(self) -> np.ndarray:
        """Return its elements as float64, or int64 for whole numbers."""
        raw = self.raw()
        if self.dtype == "bfloat16":
            # bfloat16 is the upper half of a float32.
            return (raw.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return raw.astype(np.float64 if self.floating else np.int64)

    def head(self) -> dict[str, Any]:
        """Return everything but the data, as JSON."""
        return {"dtype": self.dtype, "shape": list(self.shape), "stride": list(self.stride)}


def array_from(head: object, data: Buffer) -> Array | None:
    """Return an array from a head that may have been forged; None unless it fits the data exactly."""
    if not isinstance(head, dict):
        return None
    dtype, shape, stride = head.get("dtype"), head.get("shape"), head.get("stride")
    # It comes from a child in which kernels ran: nothing is believed before it is looked at.
    if not isinstance(dtype, str) or dtype not in NUMPY or not _counts(shape) or not _counts(stride):
        return None
    assert isinstance(shape, list)
    assert isinstance(stride, list)
    # Python's own product of whole numbers cannot overflow, as numpy's can.
    if len(shape) != len(stride) or math.prod(shape) * np.dtype(NUMPY[dtype]).itemsize != len(data):
        return None
    return Array(dtype, tuple(shape), tuple(stride), data)


def _counts(value: object) -> bool:
    return isinstance(value, list) and len(value) <= MAX_DIMS and all(type(n) is int and 0 <= n < 1 << 40 for n in value)


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def plain(value: Any) -> Any:
    """Return constructor arguments as JSON: numbers, strings, None, lists, and tuples marked as such.

    Raises:
        TypeError: anything else is among them.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple):
        return {"tuple": [plain(entry) for entry in value]}
    if isinstance(value, list):
        return [plain(entry) for entry in value]
    raise TypeError(f"get_init_inputs returns a {type(value).__name__}; numbers, strings, lists and tuples are understood")


def unplain(value: Any) -> Any:
    """Return the inverse of `plain`."""
    if isinstance(value, dict):
        return tuple(unplain(entry) for entry in value["tuple"])
    if isinstance(value, list):
        return [unplain(entry) for entry in value]
    return value
