"""Token files: a flat array of token ids on disk, memory-mapped when read."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from windtunnel.recipe import UserError

Tokens = np.ndarray[Any, np.dtype[Any]]
Short = dict[int, int]


def token_dtype(vocab: int) -> np.dtype[Any]:
    """The narrowest unsigned type that holds every id of a vocabulary."""
    return np.dtype(np.uint8 if vocab <= 2**8 else np.uint16 if vocab <= 2**16 else np.uint32)


@dataclass(frozen=True)
class Draw:
    """What random changes of a batch's rows depend on: the run's seed, and (rows,) the epoch each row is of."""

    seed: int
    epochs: Tokens


@dataclass(frozen=True)
class TokenFile:
    """`count` token ids of type `dtype` ('uint8', 'uint16' or 'uint32', little-endian) in one file without a header.

    vocab: ids from here on are refused when they are read; None: the reader vouches for them.
    """

    path: Path
    dtype: str
    count: int
    vocab: int | None = None

    @cached_property
    def array(self) -> Tokens:
        """(count,) ids, memory-mapped and read-only."""
        return np.memmap(self.path, dtype=np.dtype(self.dtype).newbyteorder("<"), mode="r", shape=(self.count,))

    @property
    def bytes(self) -> int:
        """Size on disk."""
        return self.count * np.dtype(self.dtype).itemsize

    def __len__(self) -> int:
        return self.count

    def sequences(self, sequence: int) -> int:
        """Sequences of `sequence` targets in one epoch, the last of them perhaps partial."""
        return max(0, -(-(self.count - 1) // sequence))

    def targets(self, limit: int | None = None) -> int:
        """Targets in the file, or the first `limit` of them (at least one)."""
        return min(self.count - 1, self.count - 1 if limit is None else max(1, limit))

    def width(self, sequence: int) -> int:
        """Ids that a row of `read` takes: the targets are the inputs moved by one."""
        return sequence + 1

    def read(self, rows: Tokens, sequence: int, out: Tokens, *, targets: int | None = None, draw: Draw | None = None) -> Short:
        """Copy sequences into `out`, (rows, width); a negative row stays empty.

        Sequence i covers tokens [i*T, (i+1)*T]: inputs i*T .. i*T+T-1 and the targets one further.

        Args:
            targets: how many of the file are in use; None: all.
            draw: what random changes of the data depend on; text has none.

        Returns:
            For each row that lacks some: how many targets it has.

        Raises:
            UserError: an id is outside the vocabulary: the file was damaged after it was prepared.
        """
        short = self._fill(rows, sequence, out, targets, draw)
        # On a GPU a lookup outside the table reads other memory or ends the process without a name for it.
        if self.vocab is not None and out.size and int(out.max()) >= self.vocab:
            row, column = (int(i) for i in np.argwhere(out >= self.vocab)[0])
            raise UserError(
                f"{self.path}: sequence {int(rows[row])} has token id {int(out[row, column])} at offset {column}, "
                f"and the vocabulary has {self.vocab}",
                f"remove {self.path.parent}; it is prepared again when training",
            )
        return short

    def _fill(self, rows: Tokens, sequence: int, out: Tokens, targets: int | None, draw: Draw | None) -> Short:
        count, tokens = self.targets(targets) + 1, self.array
        short = {}
        for b, row in enumerate(rows.tolist()):
            start = row * sequence
            have = min(sequence + 1, count - start) if row >= 0 else 0
            out[b, :have] = tokens[start : start + have]
            if have < sequence + 1:
                out[b, have:] = 0
                short[b] = max(0, have - 1)
        return short


class TokenWriter:
    """Appends ids to a new token file and checksums them on the way."""

    def __init__(self, path: Path, vocab: int) -> None:
        self.path = path
        self.dtype = token_dtype(vocab)
        self.count = 0
        self._file = open(path, "wb")  # noqa: SIM115 - closed by close() or abandon()
        self._digest = xxhash.xxh3_128()

    def append(self, tokens: Tokens) -> None:
        """Write (n,) ids."""
        data = np.ascontiguousarray(tokens, dtype=self.dtype.newbyteorder("<")).data.cast("B")
        self._file.write(data)
        self._digest.update(data)
        self.count += len(tokens)

    def close(self) -> None:
        """Flush to the disk."""
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()

    def abandon(self) -> None:
        """Close without caring whether the rest can be written."""
        with contextlib.suppress(OSError):
            self._file.close()

    @property
    def checksum(self) -> str:
        """xxh3-128 of the ids written so far."""
        return self._digest.hexdigest()


def file_checksum(path: Path) -> str:
    """xxh3-128 of a file's bytes."""
    digest = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()
