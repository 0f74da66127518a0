"""Safetensors files written as a stream of raw buffers with a running checksum, and read by slices.

The format is https://github.com/huggingface/safetensors#format: 8 bytes of header length (little
endian), a JSON header, the buffers. Streaming keeps the extra memory at zero and, because writing
and hashing release the GIL on large blocks, leaves the step loop alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

BLOCK = 4 << 20
_NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
_DTYPES = {code: name for name, code in _NAMES.items() if name != "bfloat16"}


@dataclass(frozen=True)
class Written:
    """What a file must look like: its size in bytes and the hex xxh3_128 of all of them."""

    bytes: int
    checksum: str


@dataclass(frozen=True)
class Entry:
    """One tensor of a file: numpy dtype name, shape and byte range from the file's start."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def file_bytes(tensors: Mapping[str, np.ndarray]) -> int:
    """Size in bytes of the file that `write_tensors` would write."""
    return len(_header(_ordered(tensors), {})) + sum(a.nbytes for a in tensors.values())


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None) -> Written:
    """Write and fsync a safetensors file. Raises OSError (disk full, quota, I/O)."""
    ordered = _ordered(tensors)
    digest = xxhash.xxh3_128()
    size = 0
    with open(path, "wb", buffering=0) as file:
        for block in _blocks(ordered, dict(metadata or {})):
            digest.update(block)
            view = block
            while len(view):  # a raw file may write less than it was given
                written = file.write(view)
                assert written is not None
                view = view[written:]
            size += len(block)
        os.fsync(file.fileno())
    return Written(size, digest.hexdigest())


def read_header(path: Path) -> dict[str, Entry]:
    """Entries of a safetensors file by tensor name. Raises ValueError on anything malformed, OSError."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise ValueError(f"{path}: not a safetensors file")
        header = json.loads(file.read(length))
    base = 8 + length
    entries = {}
    for name, item in header.items():
        if name == "__metadata__":
            continue
        start, stop = item["data_offsets"]
        if item["dtype"] not in _DTYPES or base + stop > size:
            raise ValueError(f"{path}: tensor {name}: dtype {item['dtype']} or extent not readable")
        entries[name] = Entry(_DTYPES[item["dtype"]], tuple(item["shape"]), base + start, base + stop)
    return entries


def read_flat(path: Path, entry: Entry, start: int, stop: int) -> np.ndarray:
    """Elements start:stop of a flattened tensor, read from the file, 1-D and writable."""
    dtype = np.dtype(entry.dtype)
    with open(path, "rb") as file:
        return np.fromfile(file, dtype, stop - start, offset=entry.start + start * dtype.itemsize)


def checksum(path: Path) -> Written:
    """Size and checksum of a file as it is on disk. Raises OSError."""
    digest = xxhash.xxh3_128()
    size = 0
    buffer = memoryview(bytearray(BLOCK))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            size += count
    return Written(size, digest.hexdigest())


def _ordered(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    # Widest types first keeps every tensor aligned to its own size.
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    return {name: np.ascontiguousarray(tensors[name]).reshape(tensors[name].shape) for name in names}


def _header(ordered: Mapping[str, np.ndarray], metadata: dict[str, str]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **metadata}}
    offset = 0
    for name, array in ordered.items():
        assert array.dtype.name in _NAMES, f"{name}: dtype {array.dtype} has no safetensors name"
        header[name] = {
            "dtype": _NAMES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _blocks(ordered: Mapping[str, np.ndarray], metadata: dict[str, str]) -> Iterator[memoryview]:
    yield memoryview(_header(ordered, metadata))
    for array in ordered.values():
        raw = array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")
        for start in range(0, len(raw), BLOCK):
            yield raw[start : start + BLOCK]
