"""Proof of a conversion afterwards: samples of it against the plain formula, bit for bit."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import torch

from windtunnel.model import StoredModel, read_stored
from windtunnel.recipe import GateFailed

from .decode import reference, scale_values
from .entries import Choice, Entry, make_entries
from .work import Files

SEED = 0
"""Chooses what is compared."""
ROWS = 256
"""Rows of a matrix that are compared at most: its first, its last and some between."""


@dataclass(frozen=True)
class Verified:
    """How much was compared: tensors, and their weights. Everything was equal."""

    tensors: int
    weights: int


def verify_folder(source: Path | str, to: Path | str, choice: Choice | None = None, *, samples: int = 64) -> Verified:
    """Compare a finished conversion to bf16 with the formula in fp32, which shares no operation with what made it.

    Args:
        source: the folder that was converted.
        to: the folder that was written.
        choice: as it was converted.
        samples: decoded tensors that are compared, and as many of those that were copied.

    Raises:
        GateFailed: something differs; the message names it.
        UserError: a folder is not whole.
    """
    read, made = read_stored(Path(source)), read_stored(Path(to))
    entries, _ = make_entries(read, choice or Choice())
    for entry in entries:
        for output in entry.outputs:
            found = made.tensors.get(output.name)
            if found is None or (found.dtype, found.shape) != (output.dtype, output.shape):
                raise _differs(made, output.name, "is missing" if found is None else f"is {found.dtype} {list(found.shape)}")
    chosen: list[Entry] = []
    # Some of each kind: hundreds of gigabytes are not read twice.
    for kind in ("decode", "copy"):
        some = [entry for entry in entries if entry.kind == kind]
        chosen += random.Random(SEED).sample(some, min(samples, len(some)))
    weights = 0
    with Files(read.folder, read.stamps) as before, Files(made.folder, made.stamps) as after:
        for entry in chosen:
            weights += _compare(entry, made, before, after, random.Random(SEED))
    return Verified(len(chosen), weights)


def _differs(made: StoredModel, name: str, how: str) -> GateFailed:
    return GateFailed(f"{made.folder}: {name} {how}", f"remove {made.folder} and convert again")


def _compare(entry: Entry, made: StoredModel, before: Files, after: Files, rng: random.Random) -> int:
    """Compare some rows of a tensor; returns how many weights that were."""
    name = entry.outputs[0].name
    stored = made.tensors[name]
    # Whole: what was only copied is read as fast as the disk gives it.
    if entry.kind == "copy":
        for start in range(0, stored.bytes, 1 << 24):
            size = min(1 << 24, stored.bytes - start)
            if not torch.equal(before.bytes_of(entry.weight, start, size), after.bytes_of(stored, start, size)):
                raise _differs(made, name, "is not what it was")
        return entry.weight.bytes
    assert entry.scale is not None
    assert entry.coding is not None
    scale = scale_values(before.tensor(entry.scale)).reshape(entry.matrices, *entry.grid)
    width, weights = entry.row_bytes, 0
    for matrix in sorted(rng.sample(range(entry.matrices), min(4, entry.matrices))):
        for first, rows in _bands(entry, rng):
            codes = before.bytes_of(entry.weight, (matrix * entry.rows + first) * width, rows * width).view(rows, width)
            # Bands begin with a block, so that the plain formula needs no offset within one.
            block_row = first // entry.block[0]
            wanted = reference(codes, entry.coding, scale[matrix][block_row:], entry.block)
            if entry.transposed:
                whole = after.bytes_of(stored, 2 * matrix * entry.rows * entry.columns, 2 * entry.rows * entry.columns)
                found = whole.view(torch.int16).view(entry.columns, entry.rows)[:, first : first + rows].T
            else:
                place = 2 * (matrix * entry.rows + first) * entry.columns
                found = after.bytes_of(stored, place, wanted.nbytes).view(torch.int16).view(rows, entry.columns)
            if not torch.equal(found, wanted.view(torch.int16)):
                raise _differs(made, name, f"differs from fp32(code) * scale in rows {first}-{first + rows - 1}")
            weights += wanted.numel()
    return weights


def _bands(entry: Entry, rng: random.Random) -> list[tuple[int, int]]:
    """Return (first, count) of the rows to compare; each begins a block."""
    step = entry.block[0] if entry.block[0] > 1 else min(entry.rows, 128)
    starts = list(range(0, entry.rows, step))
    some = {starts[0], starts[-1], *rng.sample(starts, min(len(starts), max(1, ROWS // step)))} if starts else set()
    return [(start, min(step, entry.rows - start)) for start in sorted(some)]
