"""One tensor from its file to its new place: bands of rows are read, decoded, looked at, hashed and written.

A worker is a thread with buffers of its own. What it writes depends on the tensor alone, and goes where the new file's header
says: any number of workers, and any device, make the same file.
"""

from __future__ import annotations

import contextlib
import json
import os
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from safetensors import SafetensorError, safe_open
from torch import Tensor

from windtunnel import model
from windtunnel.model import BITS, Stored, read_stored
from windtunnel.recipe import UserError

from .decode import Decoder, canonical_nan, encode_blocks, scale_values
from .entries import CODED, Choice, Entry, Output, make_entries

BAND = {"cpu": 1 << 21, "cuda": 8 << 20}
"""Bytes of the source that a worker holds at a time: what a core's cache holds through all passes, or what fills a GPU."""
SIGNS = {"F16": (np.int16, 0x7C00), "BF16": (np.int16, 0x7F80), "F32": (np.int32, 0x7F800000), "F64": (np.int64, 0x7FF << 52)}
"""Floating-point types as sign and magnitude: the integer type, and the bits of infinity."""
WIDTH = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}

TYPES = WIDTH | {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64,
    "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
}  # fmt: skip
"""What safetensors' types are to PyTorch."""

Write = Callable[[int, np.ndarray], None]
"""Writes bytes of an output at an offset from its begin."""


class Stopped(Exception):
    """Another worker failed, or the user stopped it."""


class Files:
    """Files of a folder, opened once and read at offsets, by any number of threads. Raises UserError where one cannot be."""

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        self._folder = folder
        self._numbers: dict[str, int] = {}
        opened = contextlib.ExitStack()
        self._ended = weakref.finalize(self, opened.close)  # where nobody does
        for name in names:
            try:
                self._numbers[name] = os.open(folder / name, os.O_RDONLY)
            except OSError as error:
                raise UserError(f"{folder / name} cannot be read: {error.strerror}", "look at its permissions") from None
            opened.callback(os.close, self._numbers[name])

    def __enter__(self) -> Files:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended()

    def read(self, tensor: Stored, offset: int, into: np.ndarray) -> None:
        """Fill `into` (uint8) with a tensor's bytes from an offset on."""
        view, done = into.data, 0
        while done < len(view):
            try:
                got = os.preadv(self._numbers[tensor.file], [view[done:]], tensor.start + offset + done)
            except OSError as error:
                path = self._folder / tensor.file
                raise UserError(f"{path} cannot be read at {tensor.name}: {error.strerror}", "look at its disk") from None
            # The loop would wait for bytes that never come.
            if got == 0:
                raise UserError(f"{self._folder / tensor.file} became shorter while it was read", "let nothing else write there")
            done += got

    def bytes_of(self, tensor: Stored, offset: int, count: int) -> Tensor:
        """Return some of a tensor's bytes (count,) uint8."""
        held = np.empty(count, np.uint8)
        self.read(tensor, offset, held)
        return torch.from_numpy(held)

    def tensor(self, stored: Stored) -> Tensor:
        """Return a whole tensor, which must be small, with its own type; bytes as uint8."""
        return self.bytes_of(stored, 0, stored.bytes).view(TYPES[stored.dtype]).view(stored.shape)


@dataclass
class Measured:
    """What is known of a tensor's bytes when they have passed: smallest and largest finite value, and what is not finite."""

    dtype: str
    least: float | None = None
    largest: float | None = None
    nan: int = 0
    infinite: int = 0
    hash: Any = field(default_factory=xxhash.xxh3_128)

    def see(self, data: np.ndarray, *, clean: bool = False) -> None:
        """Take the next bytes into account.

        Args:
            data: uint8, whole numbers of the type.
            clean: first give every NaN the same bits, in place; for bf16.
        """
        if self.dtype in SIGNS and data.size:
            integers, infinity = SIGNS[self.dtype]
            bits = data.view(integers)
            unsigned = bits.view(f"u{integers.__name__}")
            # As whole numbers: sorted like floats where the sign is apart, and several times faster to go through.
            high, low = int(bits.max()), int(unsigned.max())
            top = 1 << (8 * bits.itemsize - 1)
            if high >= infinity or low >= top + infinity:
                self._see_slowly(data, clean)
            else:
                # Of what is negative the largest magnitude is the smallest number.
                least = low if low >= top else int(unsigned.min())
                largest = high if high >= 0 else int(unsigned.min())
                self._extend(*(_number(value, self.dtype) for value in (least, largest)))
        self.hash.update(data)

    def _see_slowly(self, data: np.ndarray, clean: bool) -> None:
        """Do the same where something is not finite."""
        values = torch.from_numpy(data).view(WIDTH[self.dtype])
        # Devices give NaN different bits, and the same checkpoint must have one checksum.
        if clean:
            canonical_nan(values)
        self.nan += int(values.isnan().sum())
        self.infinite += int(values.isinf().sum())
        finite = values[values.isfinite()]
        if finite.numel():
            self._extend(float(finite.min()), float(finite.max()))

    def _extend(self, least: float, largest: float) -> None:
        self.least = least if self.least is None else min(self.least, least)
        self.largest = largest if self.largest is None else max(self.largest, largest)

    def to_json(self) -> dict[str, Any]:
        """Return what the report says of it."""
        facts: dict[str, Any] = {"checksum": f"xxh3_128:{self.hash.hexdigest()}"}
        if self.dtype in SIGNS:
            facts |= {"min": self.least, "max": self.largest, "nan": self.nan, "inf": self.infinite}
        return facts


def _number(bits: int, dtype: str) -> float:
    size = BITS[dtype] // 8
    return float(torch.frombuffer(bytearray(bits.to_bytes(size, "little")), dtype=WIDTH[dtype])[0])


class Worker:
    """Converts tensors one after the other on one device.

    Args:
        files: of the source.
        device: where to decode.
        stop: asked between bands; when it says so, `Stopped` is raised.
        progress: told how many bytes of outputs were written.
    """

    def __init__(self, files: Files, device: torch.device, stop: Callable[[], bool], progress: Callable[[int], None]) -> None:
        self._files, self._stop, self._progress = files, stop, progress
        self._decoder = Decoder(device)
        self._device, self._band = device, BAND[device.type]
        self._held: dict[str, Tensor] = {}
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def convert(self, entry: Entry, write: list[Write]) -> dict[str, Any]:
        """Write what an entry says.

        Args:
            entry: the tensor.
            write: one for each of its outputs.

        Returns:
            What the report says of it, without names.
        """
        # Both sides are hashed as they pass: a checksum needs no second reading.
        before = Measured(entry.weight.dtype)
        after = [Measured(output.dtype) for output in entry.outputs]
        facts: dict[str, Any] = {}
        if entry.kind == "copy":
            for start in range(0, entry.weight.bytes, self._band):
                data = self._read(entry.weight, start, min(self._band, entry.weight.bytes - start))
                before.see(data)
                self._put(write[0], start, data)
            return {"before": _before(entry, before), **before.to_json()}
        if entry.kind == "decode":
            self._decode(entry, write[0], before, after[0])
        else:
            facts = self._encode(entry, write, before, after)
        said: dict[str, Any] = {"before": _before(entry, before)}
        if entry.scale is not None:
            said["scale"] = {"name": entry.scale.name, "dtype": entry.scale.dtype, "shape": list(entry.scale.shape)}
            said["scale"]["checksum"] = f"xxh3_128:{xxhash.xxh3_128(self._scale_bytes.data).hexdigest()}"
        for output, measured in zip(entry.outputs[1:], after[1:], strict=True):
            said["scale_inv"] = {"name": output.name, **measured.to_json()}
        return {**said, **after[0].to_json(), **facts}

    def _decode(self, entry: Entry, write: Write, before: Measured, after: Measured) -> None:
        assert entry.scale is not None
        assert entry.coding is not None
        scale, width = self._scale(entry), entry.row_bytes
        # A matrix that is turned must be there as a whole.
        step = max(1, self._band // max(1, width)) if not entry.transposed else entry.rows
        offset = 0
        for matrix in range(entry.matrices):
            for row in range(0, entry.rows, step):
                rows = min(step, entry.rows - row)
                source = (matrix * entry.rows + row) * width
                codes = self._read(entry.weight, source, rows * width)
                before.see(codes)
                values = self._buffer("values", 2 * rows * entry.columns).view(torch.bfloat16).view(rows, entry.columns)
                self._rows(entry, codes, scale[matrix], row, values)
                if entry.transposed:
                    turned = self._buffer("turned", values.nbytes).view(torch.bfloat16).view(entry.columns, rows)
                    values = turned.copy_(values.T)
                data = values.view(-1).view(torch.uint8).numpy()
                after.see(data, clean=True)
                self._put(write, offset, data)
                offset += len(data)

    def _rows(self, entry: Entry, codes: np.ndarray, scale: Tensor, first: int, out: Tensor) -> None:
        """Decode rows of a matrix into `out` on the host, wherever it is computed."""
        assert entry.coding is not None
        held = torch.from_numpy(codes).view(len(out), -1)
        if self._device.type == "cpu":
            self._decoder.decode(held, entry.coding, scale, entry.block, first, out)
            return
        with torch.cuda.stream(self._stream):  # its own, so that workers' copies and operations overlap
            there = held.to(self._device, non_blocking=True)
            made = torch.empty(out.shape, dtype=out.dtype, device=self._device)
            self._decoder.decode(there, entry.coding, scale, entry.block, first, made)
            out.copy_(made)

    def _scale(self, entry: Entry) -> Tensor:
        """Return an entry's scales as (matrices, block rows, block columns) fp32 on the device."""
        assert entry.scale is not None
        stored = self._files.tensor(entry.scale)
        self._scale_bytes = stored.contiguous().view(-1).view(torch.uint8).numpy()
        return scale_values(stored).reshape(entry.matrices, *entry.grid).to(self._device)

    def _encode(self, entry: Entry, write: list[Write], before: Measured, after: list[Measured]) -> dict[str, Any]:
        """Write fp8 codes and their scales; returns how far they are from the weights."""
        columns, size = entry.columns, BITS[entry.weight.dtype] // 8
        step = max(1, self._band // max(1, columns * size * entry.block[0])) * entry.block[0]
        scales, largest, gone, total = [], 0.0, 0.0, 0.0
        for row in range(0, entry.rows, step):
            rows = min(step, entry.rows - row)
            data = self._read(entry.weight, row * columns * size, rows * columns * size)
            before.see(data)
            weight = torch.from_numpy(data).view(WIDTH[entry.weight.dtype]).view(rows, columns).to(self._device).float()
            if not bool(weight.isfinite().all()):
                raise UserError(f"{entry.weight.file}: {entry.weight.name} has NaN or infinite values", "repair the model first")
            codes, scale = encode_blocks(weight, entry.block)
            # Decoded as a reader would: what the report calls the error is what a model gets to see.
            back = torch.empty(rows, columns, dtype=torch.bfloat16, device=self._device)
            self._decoder.decode(codes, entry.coding, scale, entry.block, 0, back)  # type: ignore[arg-type]
            off = (back.float() - weight).abs_()
            gone, total = gone + float(off.sum(dtype=torch.float64)), total + float(weight.abs().sum(dtype=torch.float64))
            spread = scale.repeat_interleave(entry.block[0], 0)[:rows].repeat_interleave(entry.block[1], 1)[:, :columns]
            largest = max(largest, float(off.div_(spread).amax()) / 448.0)
            out = codes.cpu().contiguous().view(-1).numpy()
            after[0].see(out)
            self._put(write[0], row * columns, out)
            scales.append(scale.cpu())
        data = torch.cat(scales).view(-1).view(torch.uint8).numpy()
        after[1].see(data)
        self._put(write[1], 0, data)
        return {"error": {"mean": gone / total if total else 0.0, "max_of_block": largest}}

    def _read(self, tensor: Stored, offset: int, count: int) -> np.ndarray:
        if self._stop():
            raise Stopped
        data = self._buffer("read", count).numpy()
        self._files.read(tensor, offset, data)
        return data

    def _put(self, write: Write, offset: int, data: np.ndarray) -> None:
        write(offset, data)
        self._progress(len(data))

    def _buffer(self, name: str, count: int) -> Tensor:
        """Return so many bytes of a buffer, which grows as needed; pinned where a GPU reads and writes it."""
        if name not in self._held or self._held[name].numel() < count:
            self._held.pop(name, None)
            self._held[name] = torch.empty(count, dtype=torch.uint8, pin_memory=self._device.type == "cuda")
        return self._held[name][:count]


def _before(entry: Entry, measured: Measured) -> dict[str, Any]:
    facts = {"dtype": entry.weight.dtype, "shape": list(entry.weight.shape), "file": entry.weight.file}
    return facts | {"checksum": measured.to_json()["checksum"]}


def header_of(outputs: list[Output]) -> bytes:
    """Return the first bytes of a file that holds these tensors one after the other."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for output in outputs:
        end = offset + output.bytes
        entries[output.name] = {"dtype": output.dtype, "shape": list(output.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight bytes
    return len(text).to_bytes(8, "little") + text


def decoded_weights(folder: Path) -> dict[str, Callable[[], Tensor]]:
    """Return what reads each tensor of a model's folder, by its name in a folder of bf16: coded weights are decoded on the way.

    One reader at a time may run.

    Raises:
        UserError: the folder is not whole, or its format is not known.
    """
    if not is_coded(folder):
        return model.open_weights(folder)
    source = read_stored(folder)
    # One worker, hence one reader at a time: its buffers are shared by all of them.
    worker = Worker(Files(folder, source.stamps), torch.device("cpu"), lambda: False, lambda count: None)

    def read(entry: Entry) -> Tensor:
        made = torch.empty(entry.outputs[0].bytes, dtype=torch.uint8)
        held = made.numpy()

        def write(offset: int, data: np.ndarray) -> None:
            held[offset : offset + len(data)] = data

        worker.convert(entry, [write])
        return made.view(TYPES[entry.outputs[0].dtype]).view(entry.outputs[0].shape)

    return {entry.outputs[0].name: partial(read, entry) for entry in make_entries(source, Choice())[0]}


def decoded_heads(folder: Path) -> dict[str, Callable[[], Tensor]]:
    """Return the same names with tensors that have a shape and no numbers, on the device 'meta'. Raises UserError too."""
    if not is_coded(folder):
        return model.open_heads(folder)
    outputs = [entry.outputs[0] for entry in make_entries(read_stored(folder), Choice())[0]]
    return {output.name: partial(torch.empty, output.shape, device="meta") for output in outputs}


def is_coded(folder: Path) -> bool:
    """Return whether any weight is in fp8 or fp4. What cannot be read is not; opening it says why."""
    try:
        for path in model.weight_files(folder):
            with safe_open(path, framework="np") as file:
                for name in file.keys():  # noqa: SIM118
                    # By headers alone: no weight is read for the answer.
                    if file.get_slice(name).get_dtype() in CODED or name.endswith(("_blocks", ".qweight", ".weight_packed")):
                        return True
    except (OSError, SafetensorError, UserError):
        return False
    return False
