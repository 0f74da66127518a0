"""What a generator asks of a model: sequences in slots of a cache, fed and stepped together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor


class Decoder(Protocol):
    """A model with a cache of `slots` sequences. A call that raises leaves the slots it was given as they were.

    Attributes:
        context: most tokens of a slot.
        vocab: columns of the logits.
        device: where the logits are.
        weights: number of weights.
        ragged: `feed` takes parts of different lengths together, and is the faster for it.
        ahead: `step` waits for nothing, so that the next one may be asked for before the tokens of this one are known.
    """

    context: int
    vocab: int
    device: torch.device
    weights: int
    ragged: bool
    ahead: bool

    def feed(self, slots: Sequence[int], parts: Sequence[Sequence[int]]) -> Tensor:
        """Append parts of prompts to their slots; return the logits after each part (N, vocab). Equally long, unless `ragged`."""

    def step(self, slots: Sequence[int], tokens: Sequence[int] | Tensor) -> Tensor:
        """Append one token to each slot; return the logits after it (N, vocab). `ahead`: tokens may lie on the device."""

    def free(self, slot: int) -> None:
        """Empty a slot."""

    def score(self, tokens: Sequence[int]) -> Iterator[Tensor]:
        """Yield the logits (t, vocab) after each token of a text, in one or several parts from its beginning; no slot is used."""

    def reset(self) -> None:
        """Empty all slots and begin with new memory, after a failure."""


@runtime_checkable
class DrawingDecoder(Decoder, Protocol):
    """One that draws tokens by itself.

    Attributes:
        draws: steps that `draw` takes at a time.
    """

    draws: int

    def draw(
        self,
        slots: Sequence[int],
        tokens: Sequence[int] | Tensor,
        temperatures: Sequence[float],
        uniform: Sequence[Sequence[float]],
    ) -> tuple[Tensor, Tensor]:
        """Append a token to each slot, and draw the next one from the whole vocabulary by its logits, several times.

        Nothing is waited for. The last tokens drawn are not appended.

        Args:
            slots: N of them.
            tokens: to begin with.
            temperatures: of each slot; 0 is greedy.
            uniform: (steps, N) numbers in [0, 1) that tokens are drawn by; at most `draws` steps.

        Returns:
            (steps, N) the tokens, and their log-probabilities at the temperature, or at 1 of greedy ones; on the device.
        """


def put(numbers: Any, device: torch.device) -> Tensor:
    """Return whole numbers on a device, whose work goes on meanwhile: `torch.tensor` with a device waits until it is done."""
    return torch.tensor(numbers, dtype=torch.long).to(device, non_blocking=True)


class HubDecoder(Decoder, Protocol):
    """A decoder of a Hugging Face model, on one rank or several."""

    def score_ends(self, start: Sequence[int], ends: Sequence[Sequence[int]]) -> Tensor:
        """Return (ends,) nats of ends that follow the same text, which is computed once; fp64 on the CPU, no slot is used."""
