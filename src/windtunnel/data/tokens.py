"""Token files: a flat array of token ids on disk, memory-mapped when read, and the order of their sequences."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import xxhash

from windtunnel.recipe import UserError

Tokens = np.ndarray[Any, np.dtype[Any]]
Short = dict[int, int]


def token_dtype(vocab: int) -> np.dtype[Any]:
    """Return the narrowest unsigned type that holds every id of a vocabulary."""
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
        """Return (count,) ids, memory-mapped and read-only."""
        return np.memmap(self.path, dtype=np.dtype(self.dtype).newbyteorder("<"), mode="r", shape=(self.count,))

    @property
    def bytes(self) -> int:
        """Size on disk."""
        return self.count * np.dtype(self.dtype).itemsize

    def __len__(self) -> int:
        return self.count

    @property
    def packed(self) -> bool:
        """Return whether a row holds several samples, with their positions (see `Batch`)."""
        return False

    def sequences(self, sequence: int) -> int:
        """Sequences of `sequence` targets in one epoch, the last of them perhaps partial."""
        # One less than tokens, since the first has none before it.
        return max(0, -(-(self.count - 1) // sequence))

    def targets(self, limit: int | None = None) -> int:
        """Targets in the file, or the first `limit` of them (at least one)."""
        return min(self.count - 1, self.count - 1 if limit is None else max(1, limit))

    def order(self, sequence: int, seed: int) -> Order:
        """Return the order in which training visits the sequences."""
        return SequenceOrder(self.sequences(sequence), seed)

    def used(self, sequence: int, limit: int | None) -> tuple[Tokens, int]:
        """Return (rows,) the first sequences that hold `limit` targets (None: all), and how many targets are in use."""
        targets = self.targets(limit)
        return np.arange(-(-targets // sequence)), targets

    def ids_of(self, out: Tokens, sequence: int) -> Tokens:
        """Return the part of rows, as `read` fills them, that holds ids of the vocabulary."""
        return out

    def width(self, sequence: int) -> int:
        """Ids that a row of `read` takes: the targets are the inputs moved by one."""
        return sequence + 1

    def read(self, rows: Tokens, sequence: int, out: Tokens, *, targets: int | None = None, draw: Draw | None = None) -> Short:
        """Copy sequences into `out`, (rows, width); a negative row stays empty.

        Sequence i covers tokens [i*T, (i+1)*T]: inputs i*T .. i*T+T-1 and the targets one further.

        Args:
            rows: (n,) numbers of sequences.
            sequence: T, tokens of one.
            out: filled, of `token_dtype` or wider.
            targets: how many of the file are in use; None: all.
            draw: what random changes of the data depend on; text has none.

        Returns:
            For each row that lacks some: how many targets it has.

        Raises:
            UserError: an id is outside the vocabulary: the file was damaged after it was prepared.
        """
        short = self._fill(rows, sequence, out, targets, draw)
        # On a GPU a lookup outside the table reads other memory or ends the process without a name for it.
        ids = self.ids_of(out, sequence)
        if self.vocab is not None and ids.size and int(ids.max()) >= self.vocab:
            row, column = (int(i) for i in np.argwhere(ids >= self.vocab)[0])
            raise UserError(
                f"{self.path}: sequence {int(rows[row])} has token id {int(ids[row, column])} at offset {column}, "
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
                out[b, have:] = 0  # some id that is there; `short` says that it is no target
                short[b] = max(0, have - 1)
        return short


class Order(Protocol):
    """In which order training visits sequences."""

    @property
    def seed(self) -> int:
        """Return what the order comes of."""
        ...

    def __call__(self, first: int, n: int) -> Tokens:
        """Return (n,) int64 sequences at global positions first .. first + n - 1."""
        ...


class SequenceOrder:
    """Maps the global count of sequences consumed to the sequence that comes next.

    Epoch e visits all `count` sequences in a permutation given by (seed, e) alone. It is the sorting order
    of raw Philox output, which NumPy keeps the same over versions, so a run can be resumed under another one.
    """

    def __init__(self, count: int, seed: int) -> None:
        assert count > 0
        self.count = count
        self.seed = seed
        self._kept: dict[int, Tokens] = {}

    def permutation(self, epoch: int) -> Tokens:
        """Return (count,) the sequences of one epoch in the order they are visited."""
        if epoch not in self._kept:
            key = np.array([self.seed & (2**64 - 1), epoch], dtype=np.uint64)
            # Not `permutation`: its method may change with NumPy's version.
            raw = np.random.Philox(key=key).random_raw(self.count)
            order = np.argsort(raw, kind="stable").astype(np.uint32 if self.count < 2**32 else np.uint64)
            # A batch can straddle two epochs; older ones are never needed again.
            self._kept = {e: p for e, p in self._kept.items() if e >= epoch - 1} | {epoch: order}
        return self._kept[epoch]

    def __call__(self, first: int, n: int) -> Tokens:
        """Return (n,) int64 sequences at global positions first .. first + n - 1."""
        parts = []
        while n > 0:
            epoch, start = divmod(first, self.count)
            part = self.permutation(epoch)[start : start + n].astype(np.int64)
            parts.append(part)
            first, n = first + len(part), n - len(part)
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


class TokenWriter:
    """Appends ids to a new token file and checksums them on the way."""

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        self.path = path
        self.dtype = dtype
        self.count = 0
        self._file = open(path, "wb")  # noqa: SIM115 - closed by close() or abandon()
        self._digest = xxhash.xxh3_128()

    def append(self, tokens: Tokens) -> None:
        """Write (n,) ids."""
        # Little-endian on every machine, so that prepared data can be copied.
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
        while block := file.read(1 << 22):  # not mapped: a mapped file would count as this process's memory
            digest.update(block)
    return digest.hexdigest()
