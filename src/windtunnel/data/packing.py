"""Conversations as tokens on disk, and packed into sequences of one length without one seeing another.

Samples are packed by best fit, longest first (as TRL's 'bfd'): whole, each beginning at position 0, so that
attention can be kept within each. The packs depend on the lengths alone; the loader visits them in the order
of the seed, like sequences of text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from windtunnel.recipe import UserError

from .documents import Array
from .tokens import Draw, Short, TokenFile

# The upper bits of an id on disk: the first token of a sample, and a token that is learned.
FIRST, LEARNED = np.uint32(1 << 31), np.uint32(1 << 30)
IDS = np.uint32((1 << 30) - 1)
NO_TARGET = np.uint32(0xFFFFFFFF)  # -1 once it is seen as int32
_BLOCK = 1 << 20  # tokens read at once
ROUND = 256  # positions with a target are scored in multiples of this
SHAPES = 8  # of them there are at most so many where shapes are to be few


def pack_ids(ids: Array, learned: Array) -> Array:
    """Return (n,) ids and (n,) bool of one sample as they stand on disk, (n,) uint32."""
    stored = ids.astype(np.uint32) | np.where(learned, LEARNED, np.uint32(0))
    stored[:1] |= FIRST
    return np.asarray(stored)


@dataclass(frozen=True)
class Packing:
    """Samples in sequences of one length.

    Attributes:
        order: (samples kept,) sample numbers, pack after pack.
        starts: (packs + 1,) where each pack begins in `order`.
        lengths: (samples kept,) tokens of each, in the same order; truncated ones have what is left of them.
        targets: (packs,) learned tokens that are predicted in each.
        dropped, truncated: samples longer than the sequence that were left out, and cut at their end.
        untaught: samples cut so that nothing to learn was left; they are left out too.
    """

    sequence: int
    order: Array
    starts: Array
    lengths: Array
    targets: Array
    dropped: int = 0
    truncated: int = 0
    untaught: int = 0

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def filled(self) -> float:
        """Share of the positions that hold a token of a sample."""
        return float(self.lengths.sum()) / max(1, len(self) * self.sequence)

    def describe(self) -> str:
        """Say in one line what was packed, and what was left out."""
        text = f"{len(self.order):,} conversations in {len(self):,} sequences of {self.sequence:,}, {self.filled:.1%} full; "
        text += f"{int(self.targets.sum()):,} of {int(self.lengths.sum()):,} tokens are learned"
        for count, what in (
            (self.dropped, "dropped"),
            (self.truncated, "truncated"),
            (self.untaught, "with nothing to learn left"),
        ):
            text += f"; {count:,} too long, {what}" if count else ""
        return text


@dataclass(frozen=True)
class ConversationFile(TokenFile):
    """Samples one after the other: ids with their two flags (uint32), `count` tokens in all.

    A row of `read` is a pack: ids, targets (-1 where there is none) and positions, `sequence` of each.
    Behind the last sample of a pack stand ids 0 without targets, at positions of their own.
    """

    overlong: str = "drop"

    @property
    def packed(self) -> bool:
        """Return True: rows hold several samples, with their positions (see `Batch`)."""
        return True

    @cached_property
    def starts(self) -> Array:
        """Return (samples + 1,) int64, where each sample begins; the last entry is the end."""
        found = [np.flatnonzero(block & FIRST != 0) + at for at, block in self._blocks()]
        return np.concatenate([*found, np.array([self.count])]).astype(np.int64)

    @cached_property
    def _learned_before(self) -> Array:
        """Return (samples + 1,) int64: learned tokens before each sample, not counting first tokens, which nothing predicts."""
        before, total = np.empty(len(self.starts), dtype=np.int64), 0
        for at, block in self._blocks():
            counts = np.zeros(len(block) + 1, dtype=np.int64)
            np.cumsum((block & (LEARNED | FIRST)) == LEARNED, out=counts[1:])
            first, last = np.searchsorted(self.starts, (at, at + len(block)))
            before[first:last] = total + counts[self.starts[first:last] - at]
            total += int(counts[-1])
        before[-1] = total
        return before

    def _blocks(self) -> Iterator[tuple[int, Array]]:
        """Yield (position, tokens) of all the file: read, not mapped, so that no more of it than that is in memory."""
        dtype = np.dtype(self.dtype).newbyteorder("<")
        for at in range(0, self.count, _BLOCK):
            yield at, np.fromfile(self.path, dtype, min(_BLOCK, self.count - at), offset=at * dtype.itemsize)

    @property
    def samples(self) -> int:
        """Conversations in the file."""
        return len(self.starts) - 1

    @property
    def learned(self) -> int:
        """Return how many tokens are learned, of all samples whatever their length."""
        return int(self._learned_before[-1])

    def sample(self, number: int) -> tuple[Array, Array]:
        """Return (n,) int64 ids of one sample, and (n,) bool which of them are learned."""
        stored = np.asarray(self.array[self.starts[number] : self.starts[number + 1]])
        return (stored & IDS).astype(np.int64), (stored & LEARNED) != 0

    def last_turn(self, number: int) -> tuple[Array, Array]:
        """(n,) ids of a sample up to the last turn that is learned, as a generator is given them, and (m,) those of the turn."""
        ids, learned = self.sample(number)
        turn = np.flatnonzero(learned)
        end = int(turn[-1]) + 1
        begin = end - int(np.append(np.diff(turn)[::-1] != 1, True).argmax()) - 1
        return ids[:begin], ids[begin:end]

    def packing(self, sequence: int) -> Packing:
        """Return the packs of one length; made once.

        Raises:
            UserError: a sample is too long and that is refused, or none is short enough.
        """
        kept: dict[int, Packing] = self.__dict__.setdefault("_packings", {})
        if sequence not in kept:
            kept[sequence] = self._pack(sequence)
        return kept[sequence]

    def _pack(self, sequence: int) -> Packing:
        lengths = np.diff(self.starts)
        targets = np.diff(self._learned_before)
        long = np.flatnonzero(lengths > sequence)
        use = np.ones(len(lengths), dtype=bool)
        truncated = untaught = 0
        if len(long) and self.overlong == "refuse":
            raise UserError(
                f"data.corpus.overlong: {len(long):,} of {len(lengths):,} conversations are longer than model.sequence="
                f"{sequence}, the longest has {int(lengths.max()):,} tokens",
                f"--set data.corpus.overlong=drop (or truncate), or --set model.sequence={int(lengths.max())}",
            )
        for number in long.tolist() if self.overlong == "truncate" else ():
            targets[number] = int(self.sample(number)[1][1:sequence].sum())
            truncated += bool(targets[number])
            untaught += not targets[number]
        if self.overlong == "truncate":
            use[long] = targets[long] > 0
            lengths = np.minimum(lengths, sequence)
        else:
            use[long] = False
        chosen = np.flatnonzero(use)
        if not len(chosen):
            shortest = int(np.diff(self.starts).min())
            raise UserError(
                f"data.corpus: none of {len(lengths):,} conversations fits into model.sequence={sequence}",
                f"--set model.sequence={shortest} or more, or --set data.corpus.overlong=truncate",
            )
        order, starts = best_fit(lengths[chosen], sequence)
        order = chosen[order]
        dropped = 0 if self.overlong == "truncate" else len(long)
        return Packing(
            sequence, order, starts, lengths[order], np.add.reduceat(targets[order], starts[:-1]), dropped, truncated, untaught
        )

    def sequences(self, sequence: int) -> int:
        """Packs of this length."""
        return len(self.packing(sequence))

    def used(self, sequence: int, limit: int | None) -> tuple[Array, int]:
        """Return (rows,) the first packs that hold `limit` targets, at least one, and how many they hold."""
        total = np.cumsum(self.packing(sequence).targets)
        rows = len(total) if limit is None else min(len(total), int(np.searchsorted(total, limit)) + 1)
        return np.arange(rows), int(total[rows - 1])

    def width(self, sequence: int) -> int:
        """Ids, targets and positions."""
        return 3 * sequence

    def ids_of(self, out: Array, sequence: int) -> Array:
        """Return the part of rows that holds ids."""
        return out[:, :sequence]

    def _fill(self, rows: Array, sequence: int, out: Array, targets: int | None, draw: Draw | None) -> Short:
        packing = self.packing(sequence)
        ids, wanted, positions = (out[:, i * sequence : (i + 1) * sequence] for i in range(3))
        ids[:], wanted[:] = 0, NO_TARGET
        for row, pack in enumerate(rows.tolist()):
            at = 0
            span = range(packing.starts[pack], packing.starts[pack + 1]) if pack >= 0 else range(0)
            for k in span:
                number, length = packing.order[k], int(packing.lengths[k])
                stored = np.asarray(self.array[self.starts[number] : self.starts[number] + length])
                there = slice(at, at + length)
                ids[row, there] = stored & IDS
                # The target of a position is the token behind it, in the same sample and only if it is learned.
                wanted[row, at : at + length - 1] = np.where(stored[1:] & LEARNED, stored[1:] & IDS, NO_TARGET)
                positions[row, there] = np.arange(length)
                at += length
            # Padding is a document of its own, so that no sample attends to it.
            positions[row, at:] = np.arange(sequence - at)
        return {}


def best_fit(lengths: Array, sequence: int) -> tuple[Array, Array]:
    """Pack samples, longest first, each into the fullest pack that still has room for it.

    Args:
        lengths: (n,) tokens of each sample, from 1 to `sequence`.
        sequence: tokens that a pack has room for.

    Returns:
        (n,) the samples, pack after pack, and (packs + 1,) where each pack begins among them.
    """
    assert len(lengths) == 0 or 1 <= lengths.min() <= lengths.max() <= sequence
    order = np.argsort(-lengths, kind="stable")
    pack_of = np.empty(len(lengths), dtype=np.int64)
    # Packs by the room that they have left: the lowest set bit of `rooms` from a length on is the fullest pack that fits.
    by_room: list[list[int]] = [[] for _ in range(sequence + 1)]
    rooms = 0  # bit r: a pack with room for r tokens is open
    packs = 0
    for sample, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        fitting = rooms >> length
        if fitting:
            room = length + (fitting & -fitting).bit_length() - 1
            pack = by_room[room].pop()
            if not by_room[room]:
                rooms ^= 1 << room
        else:
            room, pack = sequence, packs
            packs += 1
        pack_of[sample] = pack
        if left := room - length:
            by_room[left].append(pack)
            rooms |= 1 << left
    packed = np.lexsort((np.arange(len(lengths)), pack_of))
    starts = np.zeros(packs + 1, dtype=np.int64)
    np.cumsum(np.bincount(pack_of, minlength=packs), out=starts[1:])
    return packed, starts


def sequence_starts(positions: Array) -> tuple[Array, Array]:
    """Return where packed documents begin, from (rows, T) positions that are counted from 0 in each.

    Returns:
        (rows * T + 1,) int32, the starts in the flattened rows; behind the last document all are the end, so that the
        shape is the same for every batch. And (2,) int64: documents, and tokens of the longest.
    """
    flat: Any = positions.reshape(-1)
    found = np.flatnonzero(flat == 0)
    starts = np.full(flat.size + 1, flat.size, dtype=np.int32)
    starts[: len(found)] = found
    return starts, np.array([len(found), np.diff(starts[: len(found) + 1]).max()], dtype=np.int64)


def bucketed(documents: int, longest: int, positions: int, sequence: int) -> tuple[int, int]:
    """Return at least so many documents and tokens of the longest, as numbers of which there are few, and one for most batches.

    Both are powers of two, unless that is more than there can be: of documents at least 16 and one for 256 `positions` of all
    rows, of the longest at least 128. What there is, `sequence_starts` finds.
    """
    return min(positions, max(16, _power(positions // 256), _power(documents))), min(sequence, max(128, _power(longest)))


def _power(number: int) -> int:
    """Return the least power of two that is not below a number."""
    return 1 << max(0, number - 1).bit_length()


def coarse_round(positions: int) -> int:
    """Return of what the number of scored positions is a multiple, so that there are at most 8 such numbers."""
    return -(-positions // SHAPES // ROUND) * ROUND if positions > SHAPES * ROUND else ROUND


def target_rows(targets: Array, multiple: int = ROUND) -> Array:
    """Return the flattened positions that have a target, then others up to a multiple of 256 (tiles of a matrix product)."""
    there = targets.reshape(-1) != NO_TARGET
    found = np.flatnonzero(there)
    # At least one tile: a batch without any target has to go through the same kernels.
    wanted = min(there.size, -(-max(1, len(found)) // multiple) * multiple)
    return np.concatenate([found, np.flatnonzero(~there)[: wanted - len(found)]])
