"""Documents on their way from a corpus to token files: batches of UTF-8 text with a key for each document.

Beside them the counter-based random numbers and hashes (splitmix64) that generated documents and keys are made with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from .formats import open_bytes

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class DocumentBatch:
    """Several documents of one source.

    text: (bytes,) uint8, valid UTF-8, the documents one after the other.
    starts: (n + 1,) int64, where each begins in `text`; the last entry is the end.
    keys: (n,) uint64, a hash of each document's text.
    offsets: (n,) int64, byte offset of each document in the file `source`; None for generated text.
    records: the offsets are numbers of records (lines or rows, from 1) instead of bytes.
    """

    source: str
    text: Array
    starts: Array
    keys: Array
    offsets: Array | None = None
    records: bool = False

    def __len__(self) -> int:
        return len(self.keys)

    def document(self, index: int) -> str:
        """Return the text of one document."""
        return self.text[self.starts[index] : self.starts[index + 1]].tobytes().decode()

    def documents(self) -> list[str]:
        """Return the text of every document."""
        return [self.document(i) for i in range(len(self))]

    def locate(self, index: int, character: int) -> str:
        """Return where a character of a document stands, for messages: file, character offset (from 0) and line (from 1)."""
        if self.offsets is None:
            return f"{self.source}: document {self.document(index)!r}, character offset {character}"
        if self.records:
            return f"{self.source}:{int(self.offsets[index])}: character offset {character} of the text"
        with open_bytes(self.source) as file:
            # Read anew, since this is only for a message and batches do not keep what lies before them.
            before = file.read(int(self.offsets[index])).decode("utf-8-sig")
        before += self.document(index)[:character]
        return f"{self.source}: character offset {len(before)}, line {before.count(chr(10)) + 1}"


def batch_of(
    source: str, documents: Sequence[bytes], offsets: Sequence[int] | None = None, *, records: bool = False
) -> DocumentBatch:
    """Return a batch of whole documents; their key is xxh3-64 of their bytes."""
    n = len(documents)
    starts = np.zeros(n + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, documents), dtype=np.int64, count=n), out=starts[1:])
    keys = np.fromiter(map(xxhash.xxh3_64_intdigest, documents), dtype=np.uint64, count=n)
    text = np.frombuffer(b"".join(documents), dtype=np.uint8)
    return DocumentBatch(source, text, starts, keys, None if offsets is None else np.asarray(offsets, dtype=np.int64), records)


GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio: its multiples are spread evenly


def mix(x: Array) -> Array:
    """Hash uint64 to uint64 of the same shape, one to one, every bit of the result depending on every bit of x."""
    # Stafford's variant 13, as splitmix64 has it.
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))
