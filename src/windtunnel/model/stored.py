"""A folder of safetensors files as its headers describe it, and proof that it is whole before anything is read from it.

Headers alone are read: a few megabytes of a terabyte. Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import math
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windtunnel.recipe import UserError, parse_json

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
HEADER_LIMIT = 100_000_000  # what safetensors itself allows
BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64, "F64": 64, "F32": 32,
    "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4,
}  # fmt: skip
HALF_LOADED = (".incomplete", ".part", ".partial", ".crdownload", ".aria2", ".download")
FETCH_AGAIN = "fetch what is missing: windtunnel fetch OWNER/NAME, or hf download OWNER/NAME --local-dir FOLDER"


@dataclass(frozen=True)
class Stored:
    """A tensor in a file.

    Attributes:
        dtype: as safetensors spells it: F32, BF16, F8_E4M3.
        start: of its bytes in the file, behind the header.
        bytes: how many it has.
    """

    name: str
    file: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    bytes: int


@dataclass(frozen=True)
class StoredModel:
    """A model's folder.

    Attributes:
        tensors: all of them by name, in the order of the files.
        stamps: what tells whether a file is the same as before: its size, its time and its header's size.
        config: config.json, or {} where there is none.
        indexed: whether an index lists the tensors.
    """

    folder: Path
    tensors: dict[str, Stored]
    stamps: dict[str, list[int]]
    config: dict[str, Any] = field(default_factory=dict)
    indexed: bool = False


def read_stored(folder: Path, *, strict: bool = True) -> StoredModel:
    """Read all headers of a folder and check them against the index, the files' sizes and each other.

    Args:
        folder: with safetensors files and their index, or one file.
        strict: files that do not belong to the model are refused; else they are left alone, as training does.

    Raises:
        UserError: no such folder, half a download, a damaged or truncated file, or files and index that disagree.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder", "name a folder with safetensors files, their index and config.json")
    present = sorted(path.name for path in folder.iterdir() if path.name.endswith(".safetensors"))
    index = _read_json(folder / INDEX).get("weight_map", {}) if (folder / INDEX).is_file() else None
    if index is not None and (not isinstance(index, dict) or not all(isinstance(value, str) for value in index.values())):
        raise UserError(f"{folder / INDEX}: weight_map is no table from tensors to files", FETCH_AGAIN)
    # As transformers reads a folder: the index alone says what belongs to the model.
    if not strict:
        present = sorted({*index.values()} & {*present}) if index is not None else [SINGLE] if SINGLE in present else present
    _check_presence(folder, present, index, strict)
    tensors: dict[str, Stored] = {}
    stamps = {}
    for file in present:
        held, stamps[file] = _read_header(folder, file)
        for name, tensor in held.items():
            if name in tensors:
                raise UserError(
                    f"{folder}: {name} is in {tensors[name].file} and in {file}", "remove the one that does not belong"
                )
            tensors[name] = tensor
    if index is not None:
        _check_index(folder, tensors, index)
    if not tensors:
        raise UserError(f"{folder}: its files hold no tensors", FETCH_AGAIN)
    config = _read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    return StoredModel(folder, tensors, stamps, config, index is not None)


def _check_presence(folder: Path, present: list[str], index: dict[str, str] | None, strict: bool) -> None:
    """Refuse half a download, files that the index lacks and several files without an index."""
    cache = folder / ".cache" / "huggingface" / "download"
    names = [path.name for place in (folder, cache) if place.is_dir() for path in place.iterdir()]
    # Names that downloaders give to what is not whole.
    waiting = [name for name in names if name.endswith(HALF_LOADED)]
    if index is None:
        if present == [SINGLE] and not (strict and waiting):
            return
        what = f"{len(present)} files of weights but no {INDEX}" if present else "no safetensors files"
        what = f"half a download: {min(waiting)} is not whole" if waiting else f"{what} in it"
        raise UserError(f"{folder}: {what}", FETCH_AGAIN)
    named = set(index.values())
    elsewhere = sorted(name for name in named if Path(name).name != name)
    if elsewhere:  # only files of the folder itself are read, so fetching again would never bring it
        raise UserError(
            f"{folder}/{INDEX} names {elsewhere[0]}, which is not in the folder itself: expected names of files without a path",
            "put that file into the folder and its name alone into the index, or fetch the index of this model",
        )
    missing = sorted(named - set(present))
    if missing:
        begun = f", and {min(waiting)} is not whole" if waiting else ""
        raise UserError(
            f"{folder} is half a download: {len(missing)} of {len(named)} files are missing, such as {missing[0]}{begun}",
            FETCH_AGAIN,
        )
    strange = sorted(set(present) - named)
    if strange:
        raise UserError(
            f"{folder}: its index does not name {', '.join(strange[:3])}{' ...' if len(strange) > 3 else ''}",
            "move what does not belong to the model elsewhere, or fetch the index that belongs to these files",
        )


def _check_index(folder: Path, tensors: dict[str, Stored], index: dict[str, str]) -> None:
    for name, file in index.items():
        if name not in tensors:
            raise UserError(f"{folder / file} lacks {name}, which the index says is in it", FETCH_AGAIN)
        if tensors[name].file != file:
            raise UserError(f"{folder}: {name} is in {tensors[name].file}, its index says {file}", FETCH_AGAIN)
    for name, tensor in tensors.items():
        if name not in index:
            raise UserError(f"{folder / tensor.file} holds {name}, which the index lacks", FETCH_AGAIN)


def _read_header(folder: Path, file: str) -> tuple[dict[str, Stored], list[int]]:
    """Return a file's tensors and its stamp; every byte of the file must belong to one of them."""
    path = folder / file
    try:
        with open(path, "rb") as opened:
            status = os.fstat(opened.fileno())
            first = opened.read(8)
            length = struct.unpack("<Q", first)[0] if len(first) == 8 else 0
            # git without lfs leaves a text of three lines in each file's place.
            if first.startswith(b"version "):
                raise UserError(f"{path} is a pointer of git-lfs, not the weights", "git lfs pull; or " + FETCH_AGAIN)
            if not 2 <= length <= min(HEADER_LIMIT, status.st_size - 8):
                raise UserError(f"{path} is truncated or no safetensors file ({status.st_size:,} bytes)", _again(file))
            header = parse_json(opened.read(length))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}", "look at its permissions and its disk") from None
    except ValueError:
        raise UserError(f"{path}: its header is damaged", _again(file)) from None
    held = {}
    if not isinstance(header, dict):
        raise UserError(f"{path}: its header is damaged", _again(file))
    for name, entry in header.items():
        if name != "__metadata__":
            held[name] = _stored(path, name, entry, 8 + length)
    end = 8 + length
    for tensor in sorted(held.values(), key=lambda tensor: (tensor.start, tensor.bytes)):
        # No gaps and no overlaps: the format forbids both, and a truncated copy shows by them.
        if tensor.start != end:
            raise UserError(f"{path}: {tensor.name} does not begin where the tensor before it ends", _again(file))
        end += tensor.bytes
    if end != status.st_size:
        kind = "truncated" if status.st_size < end else "longer than its header says"
        raise UserError(f"{path} is {kind}: {status.st_size:,} bytes, its header asks for {end:,}", _again(file))
    return held, [status.st_size, status.st_mtime_ns, length]


def _again(file: str) -> str:
    return f"remove {file} and {FETCH_AGAIN}"


def _stored(path: Path, name: str, entry: Any, base: int) -> Stored:
    try:
        dtype, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        whole = all(isinstance(number, int) and number >= 0 for number in (*shape, start, end - start))
    except (TypeError, KeyError, ValueError):
        whole, dtype, shape, start, end = False, "", (), 0, 0
    if not whole:
        raise UserError(f"{path}: the header's entry of {name} is damaged", _again(path.name))
    if dtype not in BITS:
        raise UserError(f"{path}: {name} is of type {dtype}, which is not known here", f"known: {', '.join(BITS)}")
    if 8 * (end - start) != BITS[dtype] * math.prod(shape):
        raise UserError(f"{path}: {name}, {dtype} {list(shape)}, cannot have {end - start:,} bytes", _again(path.name))
    return Stored(name, path.name, dtype, shape, base + start, end - start)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as JSON: {error}", FETCH_AGAIN) from None
    if not isinstance(content, dict):
        raise UserError(f"{path} holds a {type(content).__name__}, expected an object of keys", FETCH_AGAIN)
    return content
