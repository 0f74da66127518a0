"""Find held-out texts that are nearly the same as a text of another split: MinHash with bands, then the words themselves.

Near copies are those whose sets of word trigrams have a Jaccard similarity of 0.8 or more: of sixty words about three may
differ. Candidates are found by MinHash over windows of 16 bytes (Broder 1997), 12 bands of 4 values each: a pair at 0.8
is a candidate with probability 0.998, one at 0.3 with 0.09. Only held-out texts are kept in memory; training texts pass by.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xxhash

from .windows import hash_windows

Array = np.ndarray[Any, np.dtype[Any]]

SIMILAR = 0.8
WINDOW, KEPT = 16, 4
"""Bytes of a window, and one in how many is used."""
BANDS, ROWS = 12, 4
MOST_COMPARED = 8
"""Candidates compared word by word with one held-out text: boilerplate may make thousands of them."""
_FACTORS = np.random.RandomState(5).randint(0, 2**62, BANDS * ROWS).astype(np.uint64) * np.uint64(2) + np.uint64(1)
_EMPTY = np.uint64(2**64 - 1)


class NearCopies:
    """Held-out texts, against which others are held.

    Attributes:
        found: those with a near copy: number -> (number of the other text, similarity).
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = list(texts)
        self.found: dict[int, tuple[int, float]] = {}
        self._seen = 0
        self._compared = np.zeros(len(self.texts), dtype=np.int64)
        self._open = np.ones(len(self.texts), dtype=bool)  # not found, and not compared too often
        self._whole = _hashes(self.texts)
        keys = [_band_keys(self.texts[at : at + 4096]) for at in range(0, len(self.texts), 4096)]
        flat = np.concatenate([*keys, np.zeros((0, BANDS), np.uint64)]).reshape(-1)
        order = np.argsort(flat, kind="stable")
        self._keys, self._owners = flat[order], order // BANDS

    def compare(self, others: Sequence[str]) -> None:
        """Look for near copies among some other texts; those are numbered on from the ones before."""
        if len(self.texts) and len(others):
            self._find_same(_hashes(others))
            keys = _band_keys(others).reshape(-1)
            first, last = (np.searchsorted(self._keys, keys, side=side) for side in ("left", "right"))
            hits = np.flatnonzero(last > first)
            seen: set[tuple[int, int]] = set()
            for hit in hits.tolist():
                self._look(hit // BANDS, others[hit // BANDS], self._owners[first[hit] : last[hit]], seen)
            left = self._open[self._owners]
            self._keys, self._owners = self._keys[left], self._owners[left]
        self._seen += len(others)

    def _look(self, number: int, other: str, owners: Array, seen: set[tuple[int, int]]) -> None:
        """Compare one text with held-out ones of the same band."""
        for owner in owners[self._open[owners]].tolist():
            if (number, owner) in seen:
                continue
            seen.add((number, owner))
            self._compared[owner] += 1
            similarity = jaccard(self.texts[owner], other)
            if similarity >= SIMILAR:
                self.found[owner] = self._seen + number, similarity
            self._open[owner] = similarity < SIMILAR and self._compared[owner] < MOST_COMPARED

    def _find_same(self, hashes: Array) -> None:
        """Find the texts that are the same but for letter case and blanks, however many there are."""
        order = np.argsort(hashes, kind="stable")
        at = np.minimum(np.searchsorted(hashes[order], self._whole), len(hashes) - 1)
        for owner in np.flatnonzero((hashes[order][at] == self._whole) & self._open).tolist():
            self.found[owner] = self._seen + int(order[at[owner]]), 1.0
            self._open[owner] = False


def trigrams(text: str) -> set[tuple[str, ...]]:
    """Return the word trigrams of a text, in small letters; of shorter ones the text itself."""
    words = text.lower().split()
    return set(zip(words, words[1:], words[2:], strict=False)) or {tuple(words)}


def jaccard(one: str, other: str) -> float:
    """Return how many trigrams two texts share, of all that either has."""
    a, b = trigrams(one), trigrams(other)
    return len(a & b) / len(a | b)


def _hashes(texts: Sequence[str]) -> Array:
    """Return (texts,) uint64 hashes of the words."""
    found = (xxhash.xxh3_64_intdigest(" ".join(text.lower().split()).encode("utf-8", "replace")) for text in texts)
    return np.fromiter(found, dtype=np.uint64, count=len(texts))


def _band_keys(texts: Sequence[str]) -> Array:
    """Return (texts, BANDS) uint64: texts that agree in ROWS minima of a band have the same key there, whatever the others."""
    words = [" ".join(text.lower().split()).encode("utf-8", "replace").replace(b"\0", b" ") for text in texts]
    joined = b"\0" + b"\0".join(text.ljust(WINDOW + 2 * KEPT) for text in words)
    piece = hash_windows(np.frombuffer(joined, dtype=np.uint8).astype(np.uint64), 0, WINDOW, kept=KEPT)
    minima = np.full((len(texts), BANDS * ROWS), _EMPTY)
    starts = np.flatnonzero(np.diff(piece.owner, prepend=-1))
    if len(starts):
        owners = piece.owner[starts]
        with np.errstate(over="ignore"):
            for column, factor in enumerate(_FACTORS):
                mixed = piece.windows * factor
                minima[owners, column] = np.minimum.reduceat(mixed ^ (mixed >> np.uint64(29)), starts)
    # A text without a window that is used is compared with nothing but its like, by its own hash.
    none = minima[:, 0] == _EMPTY
    minima[none] = piece.documents[none, None]
    with np.errstate(over="ignore"):
        keys = np.zeros((len(texts), BANDS), dtype=np.uint64)
        for row in range(ROWS):
            keys = (keys ^ minima[:, row::ROWS]) * np.uint64(0x9E3779B97F4A7C15)
            keys ^= keys >> np.uint64(31)
        return np.asarray(keys + np.arange(BANDS, dtype=np.uint64) * np.uint64(0xD1B54A32D192ED03))
