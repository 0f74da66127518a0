"""Find held-out texts that are nearly the same as a text of another split: MinHash with bands, then the words themselves.

Near copies are those whose sets of word trigrams have a Jaccard similarity of 0.8 or more: of sixty words about three may
differ. Candidates are found by MinHash over windows of 16 bytes (Broder 1997), 12 bands of 4 values each: a pair at 0.8
is a candidate with probability 0.998, one at 0.3 with 0.09. Of all 48 values a byte each is kept beside, and words are compared
where at least half agree: 3 of 1,000 candidates at 0.3, and all but one in a million at 0.8. Only held-out texts are kept in
memory; training texts pass by.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import xxhash

from .documents import Array
from .windows import hash_windows

SIMILAR = 0.8
WINDOW, KEPT = 16, 4  # bytes of a window, and one in how many is used
BANDS, ROWS = 12, 4
# Candidates compared word by word with one held-out text, and then those alone that agree with it in more values than any of
# them: boilerplate may make thousands.
MOST_COMPARED = 8
MOST_MET = 50_000_000  # candidates of all held-out texts together, those of each in equal parts; a band that is shared counts one
LIKELY = BANDS * ROWS // 2  # values of two texts that agree, so that it is worth comparing their words
# Of a text: a hash of its words, the keys of its bands, and the last byte of each value.
MARK = np.dtype([("hashes", "u8"), ("keys", "u8", (BANDS,)), ("bytes", "u1", (BANDS * ROWS,))])
_BLOCK = 1 << 15  # bytes of text whose windows are hashed at once, so that they stay in the processor's cache
_FACTORS = np.random.RandomState(5).randint(0, 2**62, BANDS * ROWS).astype(np.uint64) * np.uint64(2) + np.uint64(1)
_EMPTY = np.uint64(2**64 - 1)


def mark(texts: Sequence[str]) -> Array:
    """Return what texts are told apart by, (texts,) of MARK, which can be made apart from that of others."""
    # Case and blanks change when text is copied by hand.
    words = [" ".join(text.lower().split()).encode("utf-8", "replace") for text in texts]
    hashes = np.fromiter(map(xxhash.xxh3_64_intdigest, words), dtype=np.uint64, count=len(words))
    marks = np.zeros(len(words), MARK)
    marks["hashes"] = hashes
    begin = size = 0
    for end, word in enumerate(words, 1):
        size += len(word)
        if size >= _BLOCK or end == len(words):
            minima = _minima(words[begin:end])
            marks["keys"][begin:end], marks["bytes"][begin:end] = _band_keys(minima), minima.astype(np.uint8)
            begin, size = end, 0
    return marks


class NearCopies:
    """Held-out texts, against which others are held.

    Attributes:
        found: those with a near copy: number -> (number of the other text, similarity).
    """

    def __init__(self, texts: Sequence[str], marks: Array | None = None) -> None:
        """Begin with held-out texts, and their marks where they are known."""
        self.texts = list(texts)
        self.found: dict[int, tuple[int, float]] = {}
        self._seen = 0
        self._compared = np.zeros(len(self.texts), dtype=np.int64)
        self._met, self._best = np.zeros_like(self._compared), np.zeros_like(self._compared)
        self._most_met = max(64, MOST_MET // max(1, len(self.texts)))
        self._open = np.ones(len(self.texts), dtype=bool)  # not found, and without too many candidates
        marks = mark(self.texts) if marks is None else marks
        self._bytes = np.ascontiguousarray(marks["bytes"])
        self._same = np.argsort(marks["hashes"], kind="stable")
        self._whole = marks["hashes"][self._same]
        flat = marks["keys"].reshape(-1)
        order = np.argsort(flat, kind="stable")
        self._keys, self._owners = flat[order], order // BANDS

    def compare(self, others: Sequence[str], marks: Array | None = None) -> None:
        """Look for near copies among some other texts; those are numbered on from the ones before.

        Only those that share a band with a held-out text are looked at, where their marks are given.
        """
        if len(self.texts) and len(others):
            marks = mark(others) if marks is None else marks
            before = np.count_nonzero(self._open)
            self._find_same(marks["hashes"])
            keys = marks["keys"].reshape(-1)
            first = np.searchsorted(self._keys, keys)
            hits = np.flatnonzero(self._keys[np.minimum(first, len(self._keys) - 1)] == keys) if len(self._keys) else first[:0]
            last = np.searchsorted(self._keys, keys[hits], side="right")
            seen: set[tuple[int, int]] = set()
            for hit, begin, end in zip(hits.tolist(), first[hits].tolist(), last.tolist(), strict=True):
                number, owners = hit // BANDS, self._owners[begin:end]
                owners = owners[self._open[owners]]
                agree = (self._bytes[owners] == marks["bytes"][number]).sum(axis=1)
                likely = (agree >= LIKELY) & ((self._compared[owners] < MOST_COMPARED) | (agree > self._best[owners]))
                self._look(number, others, zip(owners[likely].tolist(), agree[likely].tolist(), strict=True), seen)
                self._met[owners] += 1
                self._open[owners[self._met[owners] >= self._most_met]] = False
            if np.count_nonzero(self._open) < before:
                left = self._open[self._owners]
                self._keys, self._owners = self._keys[left], self._owners[left]
        self._seen += len(others)

    def _look(self, number: int, others: Sequence[str], owners: Iterable[tuple[int, int]], seen: set[tuple[int, int]]) -> None:
        """Compare one text with held-out ones of the same band, each with the number of values that agree."""
        for owner, agree in owners:
            if (number, owner) in seen:
                continue
            seen.add((number, owner))
            self._compared[owner] += 1
            self._best[owner] = max(self._best[owner], agree)
            similarity = jaccard(self.texts[owner], others[number])
            if similarity >= SIMILAR:
                self.found[owner] = self._seen + number, similarity
            self._open[owner] = similarity < SIMILAR

    def _find_same(self, hashes: Array) -> None:
        """Find the texts that are the same but for letter case and blanks, however many there are."""
        different, numbers = np.unique(hashes, return_index=True)
        begins, ends = (np.searchsorted(self._whole, different, side=side) for side in ("left", "right"))
        for hit in np.flatnonzero(ends > begins).tolist():
            for owner in self._same[begins[hit] : ends[hit]].tolist():
                if self._open[owner]:
                    self.found[owner] = self._seen + int(numbers[hit]), 1.0
                    self._open[owner] = False


def trigrams(text: str) -> set[tuple[str, ...]]:
    """Return the word trigrams of a text, in small letters; of shorter ones the text itself."""
    words = text.lower().split()
    return set(zip(words, words[1:], words[2:], strict=False)) or {tuple(words)}


def jaccard(one: str, other: str) -> float:
    """Return how many trigrams two texts share, of all that either has."""
    a, b = trigrams(one), trigrams(other)
    return len(a & b) / len(a | b)


def _minima(words: Sequence[bytes]) -> Array:
    """Return (texts, BANDS * ROWS) uint64: of texts that have a share of their windows in common about so many are the same."""
    # A zero byte stands for the beginning of a text, as BOS among tokens; short texts are filled up to one window.
    joined = b"\0" + b"\0".join(text.replace(b"\0", b" ").ljust(WINDOW + 2 * KEPT) for text in words)
    piece = hash_windows(np.frombuffer(joined, dtype=np.uint8).astype(np.uint64), 0, WINDOW, kept=KEPT)
    minima = np.full((len(words), BANDS * ROWS), _EMPTY)
    starts = np.flatnonzero(np.diff(piece.owner, prepend=-1))
    if len(starts):
        owners = piece.owner[starts]
        mixed, moved = np.empty_like(piece.windows), np.empty_like(piece.windows)
        with np.errstate(over="ignore"):
            for column, factor in enumerate(_FACTORS):
                np.multiply(piece.windows, factor, out=mixed)
                np.right_shift(mixed, np.uint64(29), out=moved)
                np.bitwise_xor(mixed, moved, out=mixed)
                minima[owners, column] = np.minimum.reduceat(mixed, starts)
    # A text without a window that is used is compared with nothing but its like, by its own hash.
    none = minima[:, 0] == _EMPTY
    minima[none] = piece.documents[none, None]
    return minima


def _band_keys(minima: Array) -> Array:
    """Return (texts, BANDS) uint64: texts that agree in ROWS minima of a band have the same key there, whatever the others."""
    with np.errstate(over="ignore"):
        keys = np.zeros((len(minima), BANDS), dtype=np.uint64)
        for row in range(ROWS):
            keys = (keys ^ minima[:, row::ROWS]) * np.uint64(0x9E3779B97F4A7C15)
            keys ^= keys >> np.uint64(31)
        return np.asarray(keys + np.arange(BANDS, dtype=np.uint64) * np.uint64(0xD1B54A32D192ED03))
