"""A decoder of Hugging Face models whose steps are recorded as CUDA graphs.

transformers launches some thousand kernels for a token of a small model: the host takes tens of milliseconds or more, whatever
the GPU could do. Here a step of the running batch is recorded once and replayed from then on, which needs tensors that stay where
they are: a cache of a fixed number of rows and columns, of which a mask says what is there. Rows whose sequence has ended go on
without meaning until few are left, and so do columns until they are full; then a batch of other sizes is recorded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.cache_utils import Cache, DynamicLayer

from windtunnel.model import SAME_STEPS, Recording, Replay, cuda_recorder

from .hf import GrowingLayer, HFDecoder

Record = Callable[[Callable[[], None]], Recording]

LEAST_COLUMNS = 256
ATTENTION = "windtunnel_newest"
"""The name under which transformers knows the attention of a step."""
SPARSE = 4
"""A batch is made anew once fewer than one row in so many is in use."""


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
            room.index_copy_(2, self.batch.column, states)
        return self.room

    def get_seq_length(self) -> int:
        """Return the columns that are there."""
        return self.batch.end


class StaticBatch:
    """Rows that are decoded together, and their cache.

    Args:
        rows, columns: of the cache.
        like: keys and values of each layer of some cache, for their shapes.
        vocab: tokens.

    Attributes:
        end: columns that are there.
        column: (1,) where a step writes.
        first: (rows,) each row's first column; it attends to those from there to the newest.
        mask: (rows, 1, 1, columns), the same as a mask, which attention on a CPU takes.
        logits: (rows, vocab) fp32 of the last step.
    """

    def __init__(self, rows: int, columns: int, like: Sequence[tuple[Tensor, Tensor]], vocab: int) -> None:
        self.rows, self.columns, self.end = rows, columns, 0
        device = like[0][0].device
        self.mask = torch.zeros(rows, 1, 1, columns, dtype=torch.bool, device=device)
        self.logits = torch.zeros(rows, vocab, dtype=torch.float32, device=device)
        self.column = torch.zeros(1, dtype=torch.long, device=device)
        self.first = torch.zeros(rows, dtype=torch.long, device=device)
        self.cache = Cache(layers=[StaticLayer(self, _room(pair, rows, columns)) for pair in like])

    @property
    def layers(self) -> list[StaticLayer]:
        """Return the cache's layers."""
        return [layer for layer in self.cache.layers if isinstance(layer, StaticLayer)]


def _room(like: tuple[Tensor, Tensor], rows: int, columns: int) -> tuple[Tensor, Tensor]:
    keys, values = (one.new_zeros(rows, one.size(1), columns, one.size(3)) for one in like)
    return keys, values


class RecordedDecoder(HFDecoder):
    """As `HFDecoder`, its steps recorded.

    Args:
        record: makes a recording of a function; see `windtunnel.model.Replay`. Called from the thread that decodes.
        kernel: whether a kernel of Triton attends; None: where there is a GPU.
    """

    def __init__(
        self, model: Any, capacity: int | None = None, record: Callable[[], Record] = cuda_recorder, *, kernel: bool | None = None
    ) -> None:
        self._batch: StaticBatch | None = None
        self._recorder, self._replay = record, Replay()
        super().__init__(model, capacity)
        self._kernel = self.device.type == "cuda" if kernel is None else kernel

    def reset(self) -> None:
        """Empty all slots and begin with new memory, after a failure."""
        super().reset()
        self._let_go()

    def step(self, slots: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """Append one token to each slot; return the logits after it (N, vocab)."""
        batch = self._batch
        if batch is None or self._is_done_with(batch, slots):
            batch = self._gather(slots)
        place = {slot: row for row, slot in enumerate(self._rows) if slot is not None}
        ids, positions = [0] * batch.rows, [0] * batch.rows
        for slot, token in zip(slots, tokens, strict=True):
            ids[place[slot]], positions[place[slot]] = token, self._lengths[slot]
        given = torch.tensor([ids, positions, [batch.end] * batch.rows], device=self.device)
        self._replay("step", self._pass, given)
        batch.end += 1
        for slot in slots:
            self._lengths[slot] += 1
        return batch.logits[torch.tensor([place[slot] for slot in slots], device=self.device)]

    def _pass(self, given: Tensor) -> None:
        """Go through the model with (3, rows) tokens, positions, and the column that they are written to."""
        batch = self._batch
        assert batch is not None
        # A view, not a number: what the host knows would be recorded as a constant, and every replay write the same column.
        batch.column = given[2, :1]
        batch.mask.index_fill_(3, batch.column, True)
        with self._attention(batch) as more:
            out = self.model(
                input_ids=given[0][:, None],
                attention_mask=batch.mask,
                position_ids=given[1][:, None],
                past_key_values=batch.cache,
                use_cache=True,
                **more,
            )
        batch.logits.copy_(out.logits[:, -1])

    @contextlib.contextmanager
    def _attention(self, batch: StaticBatch) -> Iterator[dict[str, Any]]:
        """Have the model attend by each row's span of columns, where a kernel does; what it is to be called with besides."""
        if not self._kernel:
            yield {}
            return
        config = self.model.config.get_text_config()
        before = config._attn_implementation
        AttentionInterface.register(ATTENTION, _attend)
        config._attn_implementation = ATTENTION
        try:
            yield {"spans": (batch.first, batch.column)}
        finally:
            config._attn_implementation = before

    def _is_done_with(self, batch: StaticBatch, slots: Sequence[int]) -> bool:
        """Return whether other rows or columns are needed."""
        here = {slot for slot in self._rows if slot is not None}
        return batch.end == batch.columns or here != set(slots) or len(slots) * SPARSE < batch.rows

    def _gather(self, slots: Sequence[int]) -> StaticBatch:
        """Make a batch of exactly these slots; the others wait, each with a cache of its own."""
        old, rows = self._batch, {slot: row for row, slot in enumerate(self._rows) if slot is not None}
        if old is not None:
            for slot in rows.keys() - set(slots):
                self._alone[slot] = self._packed([(old.cache, rows[slot], self._lengths[slot])])
        alone = {slot: self._alone[slot] for slot in slots if slot in self._alone}
        like = next(iter(alone.values())) if old is None or alone else old.cache
        pairs = [(layer.keys, layer.values) for layer in like.layers if isinstance(layer, (GrowingLayer, StaticLayer))]
        # Rows end at the same column, wherever they begin, so that a step writes one column of all of them. Powers of two leave
        # columns to grow into and rows to run empty before the next recording.
        width = max(self._lengths[slot] for slot in slots)
        columns = max(LEAST_COLUMNS, 1 << width.bit_length())
        batch = StaticBatch(1 << (len(slots) - 1).bit_length(), columns, pairs, self.vocab)
        stay = [(to, rows[slot]) for to, slot in enumerate(slots) if slot not in alone]
        to, at = torch.tensor(stay, dtype=torch.long, device=self.device).reshape(-1, 2).unbind(1)
        for number, layer in enumerate(batch.layers):
            for which, room in enumerate(layer.room):
                if stay:
                    assert old is not None
                    span, source = min(width, old.end), old.layers[number].room[which]
                    room[to, :, width - span : width] = source[at, :, old.end - span : old.end]
                for row, slot in enumerate(slots):
                    if slot in alone:
                        length, cache = self._lengths[slot], alone[slot]
                        states = getattr(cache.layers[number], ("keys", "values")[which])
                        room[row, :, width - length : width] = states[0, :, -length:]
        own = torch.tensor([self._lengths[slot] for slot in slots], device=self.device)[:, None]
        column = torch.arange(columns, device=self.device)
        batch.mask[: len(slots), 0, 0] = (column >= width - own) & (column < width)
        batch.first.fill_(width)  # of rows that nobody uses
        batch.first[: len(slots)] -= own[:, 0]
        batch.end = width
        self._let_go()
        for slot in alone:
            del self._alone[slot]
        self._batch, self._rows = batch, [*slots, *[None] * (batch.rows - len(slots))]
        self._replay = Replay(self._recorder())
        return batch

    def _let_go(self) -> None:
        """Drop the batch and its recording with their memory."""
        self._replay.forget()
        self._batch = None


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *,
    spans: tuple[Tensor, Tensor], scaling: float | None = None, **_: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attend to spans of columns; called by transformers in place of its own. Returns (rows, 1, heads, dim), and no weights."""
    from windtunnel.model import attend_newest  # Triton is there where a GPU is

    scale = query.size(-1) ** -0.5 if scaling is None else scaling
    return attend_newest(query, key, value, *spans, scale).transpose(1, 2), None


def hf_decoder(model: Any, capacity: int | None = None) -> HFDecoder:
    """Return a decoder of a model of transformers: on a GPU one whose steps are recorded, where its steps are all alike."""
    return RecordedDecoder(model, capacity) if _may_be_recorded(model) else HFDecoder(model, capacity)


def _may_be_recorded(model: Any) -> bool:
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    whole = set(kinds) == {"full_attention"} if kinds else not getattr(config, "sliding_window", None)
    plain = config.model_type in SAME_STEPS and getattr(config, "_attn_implementation", None) == "sdpa"
    return model.device.type == "cuda" and plain and whole
