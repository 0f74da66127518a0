"""Our GPT, plain and recursive, as a decoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from windtunnel.model import GPT, KVCache, extend, lay_out


class GPTDecoder:
    """A GPT with a cache. See `Decoder`.

    Args:
        model: not to be trained any more: its weights are laid out anew for products of few rows.
        slots: sequences it holds.
        capacity: tokens a sequence may have; None: the model's context.
        exact: a sequence's logits have the same bits whatever runs beside it. A product rounds differently for different
            numbers of rows. On a CPU it does not for two rows or more of weights laid out so; on a GPU, if this is asked
            for, all steps have `slots` rows, and prompts are fed alone.

    Raises:
        UserError: the model is not causal.
    """

    ragged, ahead = False, False

    def __init__(self, model: GPT, slots: int, capacity: int | None = None, *, exact: bool = True) -> None:
        self._model, self._slots, self._capacity = model.eval(), slots, capacity
        self.vocab, self.device = model.shape.vocab, model.head.weight.device
        self.weights = sum(p.numel() for p in model.parameters())
        lay_out(model)
        self.reset()
        self.context = self._cache.capacity
        # On a CPU the bits of a row do not depend on the others, so that prompts of one length go together.
        self._alone = exact and self.device.type != "cpu"
        self._rows = 2 if self.device.type == "cpu" else slots if exact else 1

    def feed(self, slots: Sequence[int], parts: Sequence[Sequence[int]]) -> Tensor:
        """Append parts of prompts, equally long, to their slots; return the logits after each part (N, vocab)."""
        if self._alone and len(slots) > 1:
            return torch.cat([self.feed([slot], [part]) for slot, part in zip(slots, parts, strict=True)])
        # A single token is a step, whose rows are filled up; a product of one row would round otherwise.
        if len(parts[0]) == 1:
            return self.step(slots, [part[0] for part in parts])
        return self._extend(slots, parts)

    def step(self, slots: Sequence[int], tokens: Sequence[int] | Tensor) -> Tensor:
        """Append one token to each slot; return the logits after it (N, vocab)."""
        missing = self._rows - len(slots)
        if missing <= 0:
            return self._extend(slots, [[token] for token in tokens])
        # Rows of an empty slot fill the batch up: of the next one, so that both are read where they lie, or of the spare one.
        filler = self._slots
        if missing == 1 and not self._cache.lengths[slots[-1] + 1]:
            filler = slots[-1] + 1
        logits = self._extend([*slots, *[filler] * missing], [[token] for token in (*tokens, *[0] * missing)])
        self._cache.reset(filler)
        return logits[: len(slots)]

    def free(self, slot: int) -> None:
        """Empty a slot."""
        self._cache.reset(slot)

    def score(self, tokens: Sequence[int]) -> Iterator[Tensor]:
        """Yield the logits (t, vocab) after each token of a text, in one part."""
        yield self._model(torch.tensor([tokens], device=self.device))[0]

    def reset(self) -> None:
        """Empty all slots and begin with new memory, after a failure."""
        # One slot more than sequences, which fills batches up; see `step`.
        self._cache = KVCache(self._model, self._slots + 1, self._capacity)

    def _extend(self, slots: Sequence[int], tokens: Sequence[Sequence[int]]) -> Tensor:
        return extend(self._model, torch.tensor(tokens, device=self.device), slots, self._cache)
