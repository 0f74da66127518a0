"""A decoder of Hugging Face models whose steps are recorded as CUDA graphs.

transformers launches some thousand kernels for a token of a small model: the host takes tens of milliseconds or more, whatever
the GPU could do. Here a step of the running batch is recorded once and replayed from then on, which needs tensors that stay where
they are: a cache of a fixed number of rows and columns, of which a mask says what is there. Rows whose sequence has ended go on
without meaning until another one takes their place, or few are left and a smaller batch is recorded. When columns are full
those that are still somebody's move to the front.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.cache_utils import Cache

from windtunnel.model import SAME_STEPS, CudaRecorder

from .decoder import put
from .hf import GrowingLayer, HFDecoder
from .lean_step import LeanStep, fits_lean_step
from .static_batch import MOST_DRAWN, Record, StaticBatch, StaticLayer, StaticRoom

LEAST_COLUMNS = 256
ATTENTION = "windtunnel_newest"
"""The name under which transformers knows the attention of a step."""
SPARSE = 2
"""Another batch goes on once no more than one row in so many is in use."""
ALIGNED = 64
SLACK = 128
"""Columns beyond the longest sequence: so many steps pass between two moves to the front, whoever comes and goes."""
PLENTY = 3
"""The cache's whole room is taken at once where the GPU has so many times as much free."""
MOST_FED = 32_768
"""Tokens of prompts, filled up to the longest, in one pass."""


class RecordedDecoder(HFDecoder):
    """As `HFDecoder`, its steps recorded; `feed` takes parts of different lengths.

    Args:
        record: makes a recording of a function; see `windtunnel.model.Replay`. Called from the thread that decodes.
        kernel: whether a kernel of Triton attends; None: where there is a GPU.
    """

    ragged, ahead, draws = True, True, MOST_DRAWN

    def __init__(
        self, model: Any, capacity: int | None = None, record: Callable[[], Record] = CudaRecorder, *, kernel: bool | None = None
    ) -> None:
        # Before the parent's constructor, which resets what these hold.
        self._recorder, self._static = record, cast("StaticRoom | None", None)
        super().__init__(model, capacity)
        self._kernel = self.device.type == "cuda" if kernel is None else kernel
        self._lean = LeanStep(model) if self._kernel and fits_lean_step(model) else None

    def reset(self) -> None:
        """Empty all slots and begin with new memory, after a failure."""
        super().reset()
        if self._static is not None:
            self._static.close()
        self._static = None
        self._batch: StaticBatch | None = None
        self._row: dict[int, int] = {}  # of slots in the batch
        # Slots that are not in it: a cache, and the row in it whose first columns are theirs. Several may share one.
        self._apart: dict[int, tuple[Cache, int]] = {}
        self._order: tuple[list[int], Tensor] | None = None

    def free(self, slot: int) -> None:
        """Empty a slot."""
        self._lengths.pop(slot, None)
        self._apart.pop(slot, None)
        self._row.pop(slot, None)

    def feed(self, slots: Sequence[int], parts: Sequence[Sequence[int]]) -> Tensor:
        """Append parts of prompts to their slots; return the logits after each part (N, vocab).

        A prompt that several slots begin with is computed once.
        """
        # By place, since groups are computed in another order than they were asked in.
        found: dict[int, Tensor] = {}
        fresh = [i for i, slot in enumerate(slots) if slot not in self._lengths]
        for i in sorted(set(range(len(slots))) - set(fresh)):
            found[i] = self._go_on(slots[i], parts[i])
        # Shortest first, so that neighbours are alike in length and little is filled up.
        unlike = sorted({tuple(parts[i]) for i in fresh}, key=len)
        for group in _alike(unlike):
            cache, logits = self._begin(group)
            row = {prompt: number for number, prompt in enumerate(group)}
            for i in fresh:
                number = row.get(tuple(parts[i]))
                if number is not None:
                    found[i] = logits[number]
                    self._apart[slots[i]], self._lengths[slots[i]] = (cache, number), len(parts[i])
        return torch.stack([found[i] for i in range(len(slots))])

    def _go_on(self, slot: int, part: Sequence[int]) -> Tensor:
        """Append a part to a slot that has a beginning; return the logits after it (vocab,)."""
        if slot in self._row:
            self._set_apart(slot)
        length = self._lengths[slot]
        # A copy: what several slots share must stay as it is for the others.
        cache = self._packed([self._own(slot)])
        logits = self._forward([part], cache, [length], length)[0, -1]
        self._apart[slot], self._lengths[slot] = (cache, 0), length + len(part)
        return logits

    def _begin(self, prompts: Sequence[Sequence[int]]) -> tuple[Cache, Tensor]:
        """Go through prompts from their beginnings; return their cache, with room behind shorter ones, and logits (N, vocab)."""
        longest, cache = max(map(len, prompts)), self._new()
        ids = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts], device=self.device)
        last = torch.tensor([len(prompt) - 1 for prompt in prompts], device=self.device)
        rows = torch.arange(len(prompts), device=self.device)

        def at_ends(module: Any, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return (given[0][rows, last][:, None], *given[1:])

        # What is behind the end of a shorter one comes later and changes nothing before it; logits of one place suffice.
        hook = self.model.get_output_embeddings().register_forward_pre_hook(at_ends)
        try:
            out = self.model(input_ids=ids, past_key_values=cache, use_cache=True)
        finally:
            hook.remove()
        return cache, out.logits[:, -1].float()

    def step(self, slots: Sequence[int], tokens: Sequence[int] | Tensor) -> Tensor:
        """Append one token to each slot; return the logits after it (N, vocab). Nothing is waited for."""
        batch = self._batch_of(slots)
        rows = self._rows_of(slots)
        batch.tokens[rows] = tokens if isinstance(tokens, Tensor) else put(tokens, self.device)
        batch.replay("step", self._step)
        self._grow(slots, 1)
        return batch.logits[rows]

    def draw(
        self,
        slots: Sequence[int],
        tokens: Sequence[int] | Tensor,
        temperatures: Sequence[float],
        uniform: Sequence[Sequence[float]],
    ) -> tuple[Tensor, Tensor]:
        """Append a token to each slot, and draw the next one by its logits, several times. See `Decoder`."""
        batch = self._batch_of(slots, len(uniform))
        rows = self._rows_of(slots)
        batch.tokens[rows] = tokens if isinstance(tokens, Tensor) else put(tokens, self.device)
        # One tensor of all numbers: one copy to the device.
        numbers = torch.tensor([temperatures, *uniform], dtype=torch.float32).to(self.device, non_blocking=True)
        batch.temperature[rows] = numbers[0]
        batch.uniform[: len(uniform), rows] = numbers[1:]
        batch.turn.zero_()
        for _ in uniform:
            batch.replay("draw", self._drawing_step)
        self._grow(slots, len(uniform))
        return batch.drawn[: len(uniform), rows], batch.logs[: len(uniform), rows]

    def _grow(self, slots: Sequence[int], steps: int) -> None:
        assert self._batch is not None
        self._batch.end += steps
        for slot in slots:
            self._lengths[slot] += steps

    def _rows_of(self, slots: Sequence[int]) -> Tensor:
        """Return the rows of slots on the device: the last ones are kept, as most steps are of the same."""
        rows = [self._row[slot] for slot in slots]
        if self._order is None or self._order[0] != rows:
            # Each copy to the device is a launch of its own: for the same rows it was made before.
            self._order = rows, put(rows, self.device)
        return self._order[1]

    def _pass(self) -> Tensor:
        """Go through the model with the batch's tokens, each row's next position, written to the next column.

        Returns:
            (rows, vocab) logits.
        """
        batch = self._batch
        assert batch is not None
        logits = self._pass_of_transformers(batch) if self._lean is None else self._lean(batch)
        # On the device, within the recording: the host only knows that so many steps have been asked for.
        batch.column += 1
        batch.positions += 1
        return logits

    def _step(self) -> None:
        logits = self._pass()
        assert self._batch is not None
        self._batch.logits.copy_(logits)

    def _drawing_step(self) -> None:
        logits = self._pass()
        assert self._batch is not None
        self._batch.draw(logits, kernel=self._kernel)

    def _pass_of_transformers(self, batch: StaticBatch) -> Tensor:
        # Views, not numbers: what the host knows would be recorded as a constant, and every replay write the same column.
        batch.mask.index_fill_(3, batch.column, True)
        with self._attention(batch) as more:
            out = self.model(
                input_ids=batch.tokens[:, None],
                attention_mask=batch.mask,
                position_ids=batch.positions[:, None],
                past_key_values=batch.cache,
                use_cache=True,
                **more,
            )
        logits: Tensor = out.logits[:, -1]
        return logits

    @contextlib.contextmanager
    def _attention(self, batch: StaticBatch) -> Iterator[dict[str, Any]]:
        """Have the model attend by each row's span of columns, where a kernel does; what it is to be called with besides."""
        if not self._kernel:
            yield {}
            return
        config = self.model.config.get_text_config()
        before = config._attn_implementation
        # Only while it is this decoder's turn: prompts go through transformers' own attention.
        AttentionInterface.register(ATTENTION, _attend)
        config._attn_implementation = ATTENTION
        try:
            yield {"spans": (batch.first, batch.column)}
        finally:
            config._attn_implementation = before

    def _batch_of(self, slots: Sequence[int], steps: int = 1) -> StaticBatch:
        """Return the batch with exactly these slots in it, and room for steps; the others wait, each with a cache of its own."""
        for slot in self._row.keys() - set(slots):
            self._set_apart(slot)
        batch, new = self._batch, [slot for slot in slots if slot not in self._row]
        # A batch that is nearly empty computes rows for nobody; a full one has no room for more.
        if batch is None or len(slots) > batch.rows or len(slots) * SPARSE <= batch.rows:
            return self._gather(slots, steps)
        if batch.end + steps > batch.columns or any(self._lengths[slot] > batch.end for slot in new):
            return self._gather(slots, steps)
        if new:
            taken = set(self._row.values())
            free = [row for row in range(batch.rows) if row not in taken]
            self._put(batch, {slot: row for slot, row in zip(new, free, strict=False)})
        return batch

    def _gather(self, slots: Sequence[int], steps: int) -> StaticBatch:
        """Move these slots to the first rows of a batch, ending at the column of the longest.

        Rows end at the same column, wherever they begin, so that a step writes one column of all of them. Powers of two leave
        rows to run empty before a smaller batch goes on.
        """
        old, width = self._batch, max(self._lengths[slot] for slot in slots)
        like = old.layers if old is not None else next(iter(self._apart.values()))[0].layers
        pairs = [(layer.keys, layer.values) for layer in like if isinstance(layer, (GrowingLayer, StaticLayer))]
        rows = 1 << (len(slots) - 1).bit_length()
        columns, before = self._columns(rows, width + steps, pairs), None
        if self._static is None or self._static.rows < rows or self._static.columns < columns:
            # The old room lives until its rows have been copied over.
            before, self._static = self._static, StaticRoom(rows, columns, pairs, self.vocab, self._recorder())
        batch = self._static.batch(rows)
        # Those that go on move from batch to batch at once; the others come from caches of their own.
        stay = [slot for slot in slots if slot in self._row]
        if stay:
            assert old is not None
            # Only as far back as the longest sequence reaches: what is before that is nobody's.
            span, at = min(width, old.end), put([self._row[slot] for slot in stay], self.device)
            for layer, source in zip(batch.layers, old.layers, strict=True):
                for room, states in zip(layer.room, source.room, strict=True):
                    room[: len(stay), :, width - span : width] = states[at, :, old.end - span : old.end]
        batch.end_at(width)
        self._row = {slot: row for row, slot in enumerate(stay)}
        if stay:
            batch.begin(range(len(stay)), [self._lengths[slot] for slot in stay])
        self._put(batch, {slot: len(stay) + i for i, slot in enumerate(slot for slot in slots if slot not in self._row)})
        self._batch = batch
        if before is not None:
            before.close()
        return batch

    def _columns(self, rows: int, width: int, like: Sequence[tuple[Tensor, Tensor]]) -> int:
        """Return how many columns a batch gets: all that may ever be needed where memory is plenty, else room to grow into.

        A kernel takes time for the columns that a row has, and none for those that are empty; a mask takes it for all.
        """
        # What is there is large enough: another room would be recorded anew.
        if self._static is not None and self._static.rows >= rows and width <= self._static.columns:
            return self._static.columns
        # Powers of two: a batch grows, and is recorded anew, only when a text has doubled.
        least = max(LEAST_COLUMNS, 1 << (width - 1).bit_length())
        if not self._kernel or self.device.type != "cuda":
            return least
        whole = max(least, -(-(self.context + SLACK) // ALIGNED) * ALIGNED)
        column = sum(states.size(1) * states.size(3) * states.element_size() for pair in like for states in pair)
        return whole if rows * whole * column * PLENTY <= torch.cuda.mem_get_info(self.device)[0] else least

    def _put(self, batch: StaticBatch, rows: Mapping[int, int]) -> None:
        """Copy slots that are apart to rows of a batch, to end at its newest column."""
        if not rows:
            return
        # One gather for all slots of a cache: some hundred answers to a prompt share one.
        together: dict[int, list[int]] = {}
        for slot in rows:
            together.setdefault(id(self._apart[slot][0]), []).append(slot)
        for some in together.values():
            cache, own = self._apart[some[0]][0], [self._lengths[slot] for slot in some]
            to, at, length = put([[rows[slot] for slot in some], [self._apart[slot][1] for slot in some], own], self.device)
            # Column c of the batch is token c - (end - length) of a row; before its beginning stands what nobody attends to.
            span = max(own)
            token = (torch.arange(batch.end - span, batch.end, device=self.device) - (batch.end - length[:, None])).clamp(min=0)
            for layer, source in zip(batch.layers, cache.layers, strict=True):
                assert isinstance(source, GrowingLayer)
                for room, states in zip(layer.room, (source.keys, source.values), strict=True):
                    room[to, :, batch.end - span : batch.end] = states[at[:, None], :, token].transpose(1, 2)
        batch.begin(list(rows.values()), [self._lengths[slot] for slot in rows])
        self._row |= rows
        for slot in rows:
            del self._apart[slot]

    def _set_apart(self, slot: int) -> None:
        """Give a slot of the batch a cache of its own."""
        assert self._batch is not None
        self._apart[slot] = self._packed([(self._batch.cache, self._row.pop(slot), self._lengths[slot])]), 0

    def _own(self, slot: int) -> tuple[Cache, int, int]:
        """Return a slot's cache cut behind its own tokens, the row in it, and how many they are."""
        cache, row = self._apart[slot]
        length, own = self._lengths[slot], self._new()
        for layer in cache.layers:
            assert isinstance(layer, GrowingLayer)
            made = GrowingLayer()
            # Views: nothing is copied until something is appended.
            made.hold((layer.keys[row : row + 1, :, :length], layer.values[row : row + 1, :, :length]), length)
            own.layers.append(made)
        return own, 0, length


def _alike(prompts: Sequence[Sequence[int]]) -> Iterator[Sequence[Sequence[int]]]:
    """Yield prompts, shortest first, in groups that little is filled up in."""
    begun = 0
    for i, prompt in enumerate(prompts):
        # Filling up costs as much as computing: no prompt waits for one more than twice as long.
        if len(prompt) > 2 * len(prompts[begun]) + ALIGNED or (i - begun + 1) * len(prompt) > MOST_FED:
            yield prompts[begun:i]
            begun = i
    if begun < len(prompts):
        yield prompts[begun:]


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
    # Windows would need a mask of their own in each layer, and another recording.
    whole = set(kinds) == {"full_attention"} if kinds else not getattr(config, "sliding_window", None)
    plain = config.model_type in SAME_STEPS and getattr(config, "_attn_implementation", None) == "sdpa"
    return model.device.type == "cuda" and plain and whole
