"""Hashes of documents and of windows in them, by which copies are found: the same text has the same ones wherever it stands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from .documents import Array

CHUNK = 1 << 21  # tokens hashed at once: 16 MiB of hashes
KEPT = 16  # one window in so many is looked at, chosen by its hash: the same ones wherever the text stands
_FEW = 1 << 17  # positions whose powers are kept: texts are many, and splits few
_FACTOR = np.uint64(0x9E3779B97F4A7C15 | 1)  # odd, so that it has an inverse
_INVERSE = np.uint64(pow(int(_FACTOR), -1, 2**64))


@dataclass(frozen=True)
class Piece:
    """Documents of a part of a split: (n,) hashes, first and last token; (m,) hashes of windows and whose they are."""

    documents: Array
    starts: Array
    ends: Array
    windows: Array
    owner: Array


def hash_parts(tokens: Array, bos: int, window: int) -> Iterator[Piece]:
    """Yield the hashes of a long split, a part of whole documents at a time; see `hash_windows`."""
    begin = 0
    while begin < len(tokens):
        stop = min(len(tokens), begin + CHUNK)
        part = np.asarray(tokens[begin:stop]).astype(np.uint64)
        if stop < len(tokens):
            marks = np.flatnonzero(part == bos)
            if len(marks) and marks[-1] > 0:  # the last document goes on: leave it for the next part
                part = part[: marks[-1]]
        yield hash_windows(part, bos, window, begin)
        begin += len(part)


def hash_windows(part: Array, bos: int, window: int, begin: int = 0, *, kept: int = KEPT) -> Piece:
    """Return hashes of documents, each behind a token `bos`, and of windows of so many tokens within one.

    They are prefix sums of token * FACTOR**position, moved back to position 0 by the inverse powers.

    Args:
        part: (n,) uint64 tokens.
        bos: the token before every document.
        window: tokens of a window.
        begin: position of the first token in the whole.
        kept: one window in so many is kept, a power of two.
    """
    assert kept & (kept - 1) == 0
    powers, inverse = _few_powers(len(part) + 1) if len(part) < _FEW else _powers(len(part) + 1)
    with np.errstate(over="ignore"):
        sums = np.zeros(len(part) + 1, dtype=np.uint64)
        np.cumsum((part + np.uint64(1)) * powers[:-1], out=sums[1:])
        starts = np.flatnonzero(part == bos) + 1
        ends = np.append(starts[1:] - 1, len(part))
        filled = ends > starts
        starts, ends = starts[filled], ends[filled]
        documents = _mix((sums[ends] - sums[starts]) * inverse[starts] + (ends - starts).astype(np.uint64))
        hashes = _mix((sums[window:] - sums[:-window]) * inverse[: len(sums) - window]) if len(part) >= window else sums[:0]
    at = np.flatnonzero(hashes & np.uint64(kept - 1) == 0)
    owner = np.searchsorted(starts, at, side="right") - 1
    inside = (owner >= 0) & (at + window <= ends[np.maximum(owner, 0)]) if len(starts) else np.zeros(len(at), dtype=bool)
    return Piece(documents, starts + begin, ends + begin, hashes[at[inside]], owner[inside])


def _powers(count: int) -> tuple[Array, Array]:
    """(count,) FACTOR**1, FACTOR**2 and so on, and (count,) their inverses."""
    with np.errstate(over="ignore"):
        powers, inverse = (np.cumprod(np.full(count, one, dtype=np.uint64)) for one in (_FACTOR, _INVERSE))
    return powers, inverse


@cache
def _kept_powers() -> tuple[Array, Array]:
    return _powers(_FEW)


def _few_powers(count: int) -> tuple[Array, Array]:
    powers, inverse = _kept_powers()
    return powers[:count], inverse[:count]


def _mix(x: Array) -> Array:
    x = (x ^ (x >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return np.asarray(x ^ (x >> np.uint64(32)))
