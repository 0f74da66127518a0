"""Any causal language model of a Hugging Face folder, as a decoder.

Sequences are decoded as a batch padded on the left, which is what every model of transformers understands: windows and
positions come out right without this module knowing the architecture. The cache is transformers' own, in layers that grow in
place.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicLayer

from windtunnel.convert import decoded_weights, has_coded_experts, is_coded
from windtunnel.model import ExpertGroup, NewRows, grow_tables, hollow, verify_model, weights_folder, without_bar
from windtunnel.recipe import UserError

# Tokens scored at a time: the logits of a long text over a large vocabulary would not fit.
SCORED_AT_ONCE = 512
ROOM = 64
"""Tokens by which a cache grows at least, so that it is copied seldom."""


class GrowingLayer(DynamicLayer):
    """transformers' DynamicLayer with room to grow, so that a step copies one token and not the whole cache."""

    keys: Tensor
    values: Tensor

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Append keys and values (N, heads, t, dim); return all of them so far."""
        # The first keys tell dtype and device; their memory is taken as it is, without a copy.
        if not self.is_initialized:
            self.hold((key_states, value_states), 0)
        length = self.keys.shape[-2]
        end = length + key_states.shape[-2]
        if end > self.room[0].shape[-2]:
            more = max(ROOM, end // 4) + end - length
            self.hold(tuple(F.pad(states, (0, 0, 0, more)) for states in (self.keys, self.values)), length)
        for room, states in zip(self.room, (key_states, value_states), strict=True):
            room[..., length:end, :] = states
        self.keys, self.values = (room[..., :end, :] for room in self.room)
        return self.keys, self.values

    def hold(self, room: tuple[Tensor, ...], length: int) -> None:
        """Take these tensors for keys and values, of which `length` tokens are there."""
        self.is_initialized, self.dtype, self.device = True, room[0].dtype, room[0].device
        self.room = room
        self.keys, self.values = (states[..., :length, :] for states in room)

    def cut(self, length: int) -> None:
        """Forget what came after the first `length` tokens."""
        self.keys, self.values = self.keys[..., :length, :], self.values[..., :length, :]


class HFDecoder:
    """A transformers model with a cache. See `Decoder`.

    Args:
        model: a causal language model; not to be trained any more.
        capacity: tokens a sequence may have; None: the model's context.

    Attributes:
        model: the same.

    Raises:
        UserError: the model keeps more of a text than keys and values.
    """

    ragged, ahead = False, False

    def __init__(self, model: Any, capacity: int | None = None) -> None:
        config = model.config.get_text_config()
        # A recurrent state can be neither cut back after a failure nor taken out of a batch.
        kinds = set(getattr(config, "layer_types", None) or ())
        if getattr(model, "_is_stateful", False) or any("attention" not in kind or "linear" in kind for kind in kinds):
            raise UserError(f"{config.model_type}: models with a recurrent state are not generated from here", "use vLLM")
        self.model, self._takes = model.eval(), inspect.signature(model.forward).parameters
        self.device, self.vocab = model.device, config.vocab_size
        self.weights = model.num_parameters()
        # Models without learned positions name no most; then the caller says how far to go.
        most = getattr(config, "max_position_embeddings", None) or capacity or 4096
        self.context = min(capacity or most, most)
        if self.device.type == "cpu":
            for part in model.modules():
                # Transposed in memory: products of few rows are faster so.
                if isinstance(part, nn.Linear):
                    part.weight.data = part.weight.data.t().contiguous().t()
        self.reset()

    def reset(self) -> None:
        """Empty all slots and begin with new memory, after a failure."""
        self._lengths: dict[int, int] = {}
        # The running batch: its slots by row (None: gone), and its cache, whose rows end together.
        self._rows: list[int | None] = []
        self._cache = self._new()
        # Prompts that have not joined it yet, each with a cache of its own.
        self._alone: dict[int, Cache] = {}

    def free(self, slot: int) -> None:
        """Empty a slot."""
        self._lengths.pop(slot, None)
        self._alone.pop(slot, None)
        self._rows = [None if row == slot else row for row in self._rows]

    def feed(self, slots: Sequence[int], parts: Sequence[Sequence[int]]) -> Tensor:
        """Append parts of prompts, equally long, to their slots; return the logits after each part (N, vocab)."""
        if len(slots) > 1 and any(slot in self._lengths for slot in slots):
            return torch.cat([self.feed([slot], [part]) for slot, part in zip(slots, parts, strict=True)])
        (first, *_), length = slots, self._lengths.get(slots[0], 0)
        # A prompt that goes on is fed alone: its cache is not in the running batch yet.
        cache = self._alone[first] if length else self._new()
        try:
            logits = self._forward(parts, cache, [length] * len(slots), length)[:, -1]
        except BaseException:
            _cut(cache, length)
            raise
        for row, slot in enumerate(slots):
            self._alone[slot] = cache if len(slots) == 1 else self._packed([(cache, row, length + len(parts[0]))])
            self._lengths[slot] = length + len(parts[0])
        return logits

    def step(self, slots: Sequence[int], tokens: Sequence[int] | Tensor) -> Tensor:
        """Append one token to each slot; return the logits after it (N, vocab)."""
        # Most steps are of the same slots as the one before, and cost no copy.
        if list(slots) != self._rows:
            self._join(slots)
        width = max(self._lengths[slot] for slot in slots)
        lengths = [self._lengths[slot] for slot in slots]
        try:
            logits = self._forward([[int(token)] for token in tokens], self._cache, lengths, self._cache.get_seq_length())[:, -1]
        except BaseException:
            _cut(self._cache, width)
            raise
        for slot in slots:
            self._lengths[slot] += 1
        return logits

    def score(self, tokens: Sequence[int]) -> Iterator[Tensor]:
        """Yield the logits (t, vocab) after each token of a text, in parts from its beginning; no slot is used."""
        cache = self._new()
        for at in range(0, len(tokens), SCORED_AT_ONCE):
            yield self._forward([tokens[at : at + SCORED_AT_ONCE]], cache, [at], at, keep=0)[0]

    @torch.inference_mode()
    def score_ends(self, start: Sequence[int], ends: Sequence[Sequence[int]]) -> Tensor:
        """Score ends that follow the same text; see `HubDecoder`. It takes `passes_of_ends` forward passes."""
        cache, longest = self._new(), max(map(len, ends))
        logits = self._forward([start], cache, [0], 0).expand(len(ends), -1, -1)
        # What is behind the end of a shorter one comes later and changes nothing before it.
        ids = [[*end, *[end[-1]] * (longest - len(end))] for end in ends]
        if longest > 1:
            # Each end in a row of its own, all of them behind the same beginning.
            cache = self._packed([(cache, 0, len(start))] * len(ends))
            rest = self._forward([row[:-1] for row in ids], cache, [len(start)] * len(ends), len(start), keep=0)
            logits = torch.cat([logits, rest], 1)
        # Sums in fp64: hundreds of small terms are added, and ends are told apart by their difference.
        there = torch.tensor([[i < len(end) for i in range(longest)] for end in ends], device=self.device)
        wanted = torch.tensor(ids, device=self.device)
        found = F.cross_entropy(logits.transpose(1, 2), wanted, reduction="none")
        return (found.double() * there).sum(1).cpu()

    def _forward(
        self, tokens: Sequence[Sequence[int]], cache: Cache, lengths: Sequence[int], width: int, keep: int = 1
    ) -> Tensor:
        """Return the logits after tokens that follow the cache's, which grows by them.

        Args:
            tokens: (N, T) ids.
            cache: of the N rows.
            lengths: of each row, tokens in the cache that are its own, the last ones.
            width: tokens in the cache.
            keep: logits of so many last tokens; 0: of all.

        Returns:
            (N, keep, vocab) fp32.
        """
        ids = torch.tensor(tokens, device=self.device)
        T = ids.size(1)
        own = torch.tensor(lengths, device=self.device)[:, None]
        # Rows end together and are padded on the left: a row attends to its own last `lengths` columns and to what is new.
        column = torch.arange(width + T, device=self.device)
        # Models differ in which of these they take; what they do not know would be refused.
        wanted = {"position_ids": own + torch.arange(T, device=self.device), "logits_to_keep": keep}
        mask = (column >= width - own).long()
        out = self.model(
            input_ids=ids,
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
            **{name: value for name, value in wanted.items() if name in self._takes},
        )
        logits: Tensor = out.logits.float()
        return logits

    def _join(self, slots: Sequence[int]) -> None:
        """Make the running batch one of exactly these slots; the others wait, each with a cache of its own."""
        for row, slot in enumerate(self._rows):
            if slot is not None and slot not in slots:
                self._alone[slot] = self._packed([(self._cache, row, self._lengths[slot])])
        sources = []
        for slot in slots:
            own = self._alone.get(slot)
            sources.append((own, 0, self._lengths[slot]) if own else (self._cache, self._rows.index(slot), self._lengths[slot]))
        self._cache = self._packed(sources)
        self._rows = list(slots)
        for slot in slots:
            self._alone.pop(slot, None)

    def _packed(self, sources: Sequence[tuple[Cache, int, int]]) -> Cache:
        """Return a cache of rows, each given as (cache, row in it, own tokens), padded on the left to the longest."""
        # Rows end together: shorter ones begin later, and what is before them is masked.
        width = max(length for _, _, length in sources)
        packed = self._new()
        for i, layer in enumerate(sources[0][0].layers):
            both = []
            for name in ("keys", "values"):
                like = getattr(layer, name)
                room = like.new_zeros(len(sources), like.size(1), width + ROOM, like.size(3))
                for row, (cache, at, length) in enumerate(sources):
                    room[row, :, width - length : width] = getattr(cache.layers[i], name)[at, :, -length:]
                both.append(room)
            made = GrowingLayer()
            made.hold(tuple(both), width)
            packed.layers.append(made)
        return packed

    @staticmethod
    def _new() -> Cache:
        return Cache(layer_class_to_replicate=GrowingLayer)


def passes_of_ends(ends: Sequence[Sequence[int]]) -> int:
    """Return the forward passes of `HFDecoder.score_ends`."""
    return 2 if max(map(len, ends)) > 1 else 1


def _cut(cache: Cache, length: int) -> None:
    """Cut a cache back to so many tokens, after a pass that failed on its way through the layers."""
    for layer in cache.layers:
        assert isinstance(layer, GrowingLayer)
        if layer.is_initialized:
            layer.cut(length)


def load_hf(
    folder: Path, device: torch.device, dtype: torch.dtype, group: ExpertGroup | None = None, new: NewRows | None = None
) -> Any:
    """Return the causal language model of a folder, on a device.

    Args:
        folder: with config.json and weights; those in fp8 or fp4 are decoded, but for experts in fp8, which stay so.
        device: where it computes.
        dtype: in which.
        group: the ranks that share experts in fp8; None: this one holds them all.
        new: rows of tokens that were added to its tokenizer, with what training begins with; None: there are none.

    Raises:
        UserError: it is damaged, is no causal language model, or needs code of its own.
    """
    if weights_folder(str(folder)) is not None:
        verify_model(folder)
    if has_coded_experts(folder):
        from .shared_experts import load_coded

        model: Any = load_coded(folder, device, dtype, group or ExpertGroup())
    else:
        with without_bar():
            model = _load(folder, dtype)
    if new is not None:
        grow_tables(model, new)
    return model.to(device)


def _load(folder: Path, dtype: torch.dtype) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        if is_coded(folder):
            # Not by transformers, whose decoding of fp8 is wrong for matrices that are not whole blocks.
            weights = {name: read() for name, read in decoded_weights(folder).items()}
            if hasattr(config, "quantization_config"):
                del config.quantization_config
            kind = type(hollow(config.to_dict()))
            return kind.from_pretrained(None, config=config, dtype=dtype, state_dict=weights)
        return AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=dtype, local_files_only=True)
    except UserError:
        raise
    except Exception as error:  # the library raises many kinds
        words = str(error).strip().splitlines()
        raise UserError(
            f"{folder} is not a causal language model that transformers can load: {words[0] if words else error!r}",
            "name a folder with config.json, safetensors and tokenizer.json of a model that needs no code of its own",
        ) from None


def end_tokens(folder: Path) -> list[int] | None:
    """Return the tokens that end a text, as generation_config.json or config.json of a folder says; None: neither does."""
    # Generation's own file first: chat models name the end of a turn there, and of a text in the other.
    for name in ("generation_config.json", "config.json"):
        try:
            found = json.loads((folder / name).read_text(encoding="utf-8")).get("eos_token_id")
        except (OSError, ValueError):
            continue
        if found is not None:
            return [int(i) for i in (found if isinstance(found, list) else [found])]
    return None
