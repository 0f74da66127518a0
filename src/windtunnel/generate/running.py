"""Jobs in a generator's hands, and the steps whose tokens nobody has looked at yet."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .protocol import GenerationJob, Ticket
from .text import TextStream


@dataclass
class Running:
    """A job in the generator's hands.

    Attributes:
        text: None where the ticket's reader makes it.
        random: of its draws, one number a token.
        most: tokens that it may say: what it asked for, or what its context has room for. The last one needs no room: nothing is
            computed after it.
        before: what its slot must hold before the next step: its prompt, and of one that lost its slot what it had said, but
            for the last token. fed: of these tokens, those in the cache.
    """

    ticket: Ticket
    text: TextStream | None
    random: random.Random
    submitted: float
    most: int
    before: Sequence[int]
    fed: int = 0
    slot: int = -1
    _numbers: list[float] = field(default_factory=list)

    @property
    def job(self) -> GenerationJob:
        """Return what was asked for."""
        return self.ticket.job

    @property
    def ready(self) -> bool:
        """Return whether all that must come before the next step is in the cache."""
        return self.fed == len(self.before)

    @property
    def plain(self) -> bool:
        """Return whether nobody needs to see its tokens as they come, and each is drawn from the whole vocabulary."""
        job = self.job
        # What cuts the vocabulary needs sorting, which recorded steps do not do.
        whole = job.temperature == 0 or (job.top_p >= 1 and job.top_k <= 0)
        return whole and self.text is None and not self.ticket.stream

    def ends(self, tokens: int) -> bool:
        """Return whether it takes no token after so many."""
        return tokens >= self.most

    def number(self, token: int) -> float:
        """Return what the token of a place is drawn by: always the same, however often it is drawn, beside whomever."""
        # Kept: one that loses its slot, or is drawn for twice, gets the same number again.
        while len(self._numbers) <= token:
            self._numbers.append(self.random.random())
        return self._numbers[token]

    def leave_slot(self) -> None:
        """Go back to those that wait, to go on from the last token."""
        self.before = (*self.job.prompt, *self.ticket.tokens[:-1])
        self.fed, self.slot = 0, -1


class Flight:
    """Steps whose tokens nobody has looked at yet: the device goes on to the next ones with them.

    Args:
        sequences: N of them.
        tokens: (steps, N) on the device.
        logs: their log-probabilities, where they were asked for.

    Attributes:
        sequences: the same. newest: (N,) tokens of the last step, on the device. steps: how many.
    """

    def __init__(self, sequences: list[Running], tokens: Tensor, logs: Tensor | None) -> None:
        self.sequences, self.newest, self.steps = sequences, tokens[-1], len(tokens)
        self._found, self._done = (tokens, logs), None
        if tokens.device.type == "cuda":  # brought to the host without waiting
            self._found = tokens.to("cpu", non_blocking=True), None if logs is None else logs.to("cpu", non_blocking=True)
            self._done = torch.cuda.Event()
            self._done.record()

    def land(self) -> tuple[list[list[int]], list[list[float]] | None]:
        """Wait for the tokens; return those of each sequence, and their log-probabilities."""
        if self._done is not None:
            self._done.synchronize()
        tokens, logs = self._found
        return tokens.t().tolist(), None if logs is None else logs.t().tolist()
