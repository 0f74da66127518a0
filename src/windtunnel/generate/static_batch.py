"""Rows that are decoded together in tensors that stay where they are, so that their steps can be recorded and replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from windtunnel.model import Recording, Replay, draw_tokens

from .decoder import put

Record = Callable[[Callable[[], None]], Recording]

MOST_DRAWN = 8
"""Steps whose tokens are drawn one after the other without a look of the host."""


class StaticLayer(DynamicLayer):
    """Keys and values of a layer in room that stays where it is; a step writes one column.

    Args:
        batch: whose layer it is.
        room: keys and values, each (rows, heads, columns, dim).
    """

    def __init__(self, batch: StaticBatch, room: tuple[Tensor, Tensor]) -> None:
        self.batch, self.room = batch, room
        self.is_initialized, self.dtype, self.device = True, room[0].dtype, room[0].device

    @property
    def keys(self) -> Tensor:  # type: ignore[override]
        """Return those that are there."""
        return self.room[0][..., : self.batch.end, :]

    @property
    def values(self) -> Tensor:  # type: ignore[override]
        """Return those that are there."""
        return self.room[1][..., : self.batch.end, :]

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write a column (rows, heads, 1, dim); return all columns, of which the mask tells what counts."""
        for room, states in zip(self.room, (key_states, value_states), strict=True):
            # By a column that lies on the device: a number of the host's would be recorded for ever.
            room.index_copy_(2, self.batch.column, states)
        return self.room

    def get_seq_length(self) -> int:
        """Return the columns that are there."""
        return self.batch.end


class StaticRoom:
    """Memory of the largest batch; smaller ones are its first rows, each with recordings of its own.

    Args:
        rows, columns: of the cache.
        like: keys and values of each layer of some cache, for their shapes.
        vocab: tokens.
        record: makes recordings; see `windtunnel.model.Replay`.

    Attributes:
        states: keys and values of each layer, (rows, heads, columns, dim).
        logits: (rows, vocab) fp32.
    """

    def __init__(self, rows: int, columns: int, like: Sequence[tuple[Tensor, Tensor]], vocab: int, record: Record) -> None:
        self.rows, self.columns, self._record = rows, columns, record
        self.states = [_room(pair, rows, columns) for pair in like]
        self.logits = torch.zeros(rows, vocab, dtype=torch.float32, device=like[0][0].device)
        self._batches: dict[int, StaticBatch] = {}

    def batch(self, rows: int) -> StaticBatch:
        """Return the batch of so many rows, at most all: the same one, with its recordings, whenever it is asked for."""
        if rows not in self._batches:
            # Recordings have addresses in them: each number of rows has its own, in the same memory.
            self._batches[rows] = StaticBatch(self, rows, Replay(self._record))
        return self._batches[rows]

    def close(self) -> None:
        """Give up the memory at once: batches and their layers know each other, and would wait for the garbage collector."""
        for batch in self._batches.values():
            batch.replay.forget()
            batch.cache.layers.clear()
        self._batches.clear()
        self.states.clear()


class StaticBatch:
    """Rows that are decoded together, and their cache.

    Args:
        room: memory, of which the batch has the first rows.
        rows: how many.
        replay: runs the steps.

    Attributes:
        end: columns that are there.
        column: (1,) the same on the device: where a step writes.
        tokens, positions: (rows,) what a step is given: each row's newest token, and how many came before it.
        first: (rows,) each row's first column; it attends to those from there to the newest.
        mask: (rows, 1, 1, columns), the same as a mask, which attention on a CPU takes.
        logits: (rows, vocab) fp32 of the last step.
        temperature: (rows,) fp32, at which tokens are drawn.
        uniform: (MOST_DRAWN, rows) fp32 numbers in [0, 1), by which; turn: (1,) the step that is next among these.
        drawn, logs: (MOST_DRAWN, rows) the tokens, and their log-probabilities at the temperature (of 0: at 1).
    """

    def __init__(self, room: StaticRoom, rows: int, replay: Replay) -> None:
        self.rows, self.columns, self.end, self.replay = rows, room.columns, 0, replay
        device = room.logits.device

        def numbers(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        self.mask = numbers(rows, 1, 1, room.columns, dtype=torch.bool)
        self.logits = room.logits[:rows]
        self.column, self.turn = numbers(1), numbers(1)
        self.tokens, self.positions, self.first = numbers(rows), numbers(rows), numbers(rows)
        self.temperature = numbers(rows, dtype=torch.float32)
        self.uniform, self.logs = (numbers(MOST_DRAWN, rows, dtype=torch.float32) for _ in range(2))
        self.drawn = numbers(MOST_DRAWN, rows)
        # Views of the room's first rows: batches of all sizes share its memory.
        self.cache = Cache(layers=[StaticLayer(self, (keys[:rows], values[:rows])) for keys, values in room.states])

    @property
    def layers(self) -> list[StaticLayer]:
        """Return the cache's layers."""
        return [layer for layer in self.cache.layers if isinstance(layer, StaticLayer)]

    def begin(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        """Have rows begin so many columns before the newest, where their keys and values have been put."""
        at, own = put([list(rows), list(lengths)], self.first.device)
        column = torch.arange(self.columns, device=at.device)
        # Both forms of the same: a kernel reads the span, attention of PyTorch the mask.
        self.mask[at, 0, 0] = (column >= self.end - own[:, None]) & (column < self.end)
        self.first[at], self.positions[at] = self.end - own, own

    def end_at(self, column: int) -> None:
        """Say that so many columns are there, and nothing in them yet."""
        self.end = column
        self.column.fill_(column)
        self.mask.zero_()
        self.first.fill_(column)
        self.positions.zero_()

    def draw(self, logits: Tensor, *, kernel: bool) -> None:
        """Draw each row's next token by its logits (rows, vocab), and have it be the one that the next step is given."""
        # By the turn on the device: all steps of a flight are replays of one recording.
        uniform = self.uniform.index_select(0, self.turn)[0]
        if kernel:
            from windtunnel.model import draw_rows  # Triton is there where a GPU is

            tokens, logs = draw_rows(logits.contiguous(), self.temperature, uniform)
        else:
            tokens, logs = draw_tokens(logits.float(), self.temperature, uniform)
        self.drawn.index_copy_(0, self.turn, tokens[None])
        self.logs.index_copy_(0, self.turn, logs[None])
        self.tokens.copy_(tokens)
        self.turn += 1


def _room(like: tuple[Tensor, Tensor], rows: int, columns: int) -> tuple[Tensor, Tensor]:
    keys, values = (one.new_zeros(rows, one.size(1), columns, one.size(3)) for one in like)
    return keys, values
