"""Documents that are in both splits, whole or in large parts: hashes of documents and of windows of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

CHUNK = 1 << 21
WINDOW_BYTES = 64
LEAST_WINDOW, MOST_WINDOW = 8, 64
KEPT = 16
"""One window in so many is looked at, chosen by its hash: the same ones wherever the text stands."""
LEAST_KEPT = 4
"""Documents of fewer such windows are too short to be judged by parts."""
COPIED = 0.8
"""A document with so much of it in the other split counts as a copy."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15 | 1)
_INVERSE = np.uint64(pow(int(_FACTOR), -1, 2**64))


@dataclass(frozen=True)
class Overlap:
    """Held-out documents and how many of them training has seen.

    Attributes:
        documents: held out. same: those that are in training as they are. judged: long enough to be compared by
            windows. copied: those of which most stands in training. examples: tokens (first, last) of some, same first.
    """

    documents: int
    same: int
    judged: int
    copied: int
    examples: tuple[tuple[int, int], ...]


def overlap(train: Array, validation: Array, bos: int, bytes_per_token: float) -> Overlap:
    """Compare two splits (tokens, each document behind BOS). Takes about a second for 30 M tokens."""
    window = int(min(MOST_WINDOW, max(LEAST_WINDOW, round(WINDOW_BYTES / max(bytes_per_token, 0.1)))))
    held = list(_pieces(validation, bos, window))
    documents = np.concatenate([piece.documents for piece in held])
    starts = np.concatenate([piece.starts for piece in held])
    ends = np.concatenate([piece.ends for piece in held])
    windows = np.concatenate([piece.windows for piece in held])
    offset = np.cumsum([0, *(len(piece.documents) for piece in held[:-1])])
    owner = np.concatenate([piece.owner + base for piece, base in zip(held, offset, strict=True)])
    wanted, wanted_windows = np.unique(documents), np.unique(windows)
    seen, seen_windows = np.zeros(len(wanted), dtype=bool), np.zeros(len(wanted_windows), dtype=bool)
    for piece in _pieces(train, bos, window):
        seen |= np.isin(wanted, piece.documents)
        seen_windows |= np.isin(wanted_windows, piece.windows)
    same = seen[np.searchsorted(wanted, documents)]
    known = seen_windows[np.searchsorted(wanted_windows, windows)] if len(windows) else np.zeros(0, dtype=bool)
    kept = np.bincount(owner, minlength=len(documents))
    found = np.bincount(owner, weights=known, minlength=len(documents))
    judged = kept >= LEAST_KEPT
    copied = judged & (found >= COPIED * kept) & ~same
    order = [*np.flatnonzero(same)[:3], *np.flatnonzero(copied)[:3]]
    examples = tuple((int(starts[i]), int(ends[i])) for i in order)
    return Overlap(len(documents), int(same.sum()), int(judged.sum()), int(copied.sum()), examples)


@dataclass(frozen=True)
class _Piece:
    """Documents of a part of a split: (n,) hashes, first and last token; (m,) hashes of windows and whose they are."""

    documents: Array
    starts: Array
    ends: Array
    windows: Array
    owner: Array


def _pieces(tokens: Array, bos: int, window: int) -> Iterator[_Piece]:
    begin = 0
    while begin < len(tokens):
        stop = min(len(tokens), begin + CHUNK)
        part = np.asarray(tokens[begin:stop]).astype(np.uint64)
        if stop < len(tokens):
            marks = np.flatnonzero(part == bos)
            if len(marks) and marks[-1] > 0:  # the last document goes on: leave it for the next part
                part = part[: marks[-1]]
        yield _piece(part, bos, window, begin)
        begin += len(part)


def _piece(part: Array, bos: int, window: int, begin: int) -> _Piece:
    """Hashes by prefix sums of token * FACTOR**position, moved back to position 0 by the inverse powers."""
    with np.errstate(over="ignore"):
        powers = np.cumprod(np.full(len(part) + 1, _FACTOR, dtype=np.uint64))
        inverse = np.cumprod(np.full(len(part) + 1, _INVERSE, dtype=np.uint64))
        sums = np.zeros(len(part) + 1, dtype=np.uint64)
        np.cumsum((part + np.uint64(1)) * powers[:-1], out=sums[1:])
        starts = np.flatnonzero(part == bos) + 1
        ends = np.append(starts[1:] - 1, len(part))
        filled = ends > starts
        starts, ends = starts[filled], ends[filled]
        documents = _mix((sums[ends] - sums[starts]) * inverse[starts] + (ends - starts).astype(np.uint64))
        hashes = _mix((sums[window:] - sums[:-window]) * inverse[: len(sums) - window]) if len(part) >= window else sums[:0]
    at = np.flatnonzero(hashes % np.uint64(KEPT) == 0)
    owner = np.searchsorted(starts, at, side="right") - 1
    inside = (owner >= 0) & (at + window <= ends[np.maximum(owner, 0)]) if len(starts) else np.zeros(len(at), dtype=bool)
    return _Piece(documents, starts + begin, ends + begin, hashes[at[inside]], owner[inside])


def _mix(x: Array) -> Array:
    x = (x ^ (x >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return np.asarray(x ^ (x >> np.uint64(32)))
