"""What generates text, as its users see it: jobs go in, tickets with pieces of text come out.

Three implementations: `BatchedGenerator` over our GPT, the same over any Hugging Face causal model, and vLLM. Evaluation and
serving know this module and nothing behind it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from .text import Piece, TextCodec, TextStream, TokenInfo


class QueueFull(Exception):
    """No room to wait. `retry_after` is a guess in seconds."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"queue full, retry after {retry_after} s")
        self.retry_after = retry_after


class GenerationFailed(Exception):
    """A sequence was given up: its own step failed, or the generator failed or was closed while it ran."""


@dataclass(frozen=True)
class GenerationJob:
    """One sequence to continue. Limits are the caller's to check, except that prompts are not empty and fit the context.

    Attributes:
        prompt: token ids.
        max_tokens: most tokens to generate; 0 only scores the prompt.
        temperature: 0 is greedy.
        top_p: nucleus sampling; 1 is off.
        top_k: only so many likeliest tokens; 0 is off.
        seed: the same seed gives the same text.
        stop: the text ends before the first of these.
        include_stop: the text ends after it instead.
        ignore_ends: tokens that end a text do not end it.
        logprobs: report log-probabilities with this many alternatives; None: none.
        score_prompt: also report those of the prompt's tokens.
        draws: keep each token as it was drawn, an end token too, with the log-probability that it had at the temperature.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    ignore_ends: bool = False
    logprobs: int | None = None
    score_prompt: bool = False
    draws: bool = False


@dataclass(frozen=True)
class Completion:
    """A finished job.

    Attributes:
        text: what was generated, without a stop string.
        finish: 'stop' (an end token or a stop string) or 'length'.
        tokens: ids generated, an end token not among them.
        infos: the tokens' log-probabilities, where they were asked for.
        prompt_infos: the prompt's, where they were.
        drawn: token and log-probability of every draw, where they were kept.
    """

    text: str
    finish: str
    tokens: tuple[int, ...]
    infos: tuple[TokenInfo, ...] = ()
    prompt_infos: tuple[TokenInfo, ...] = ()
    drawn: tuple[tuple[int, float], ...] = ()


class Ticket:
    """A submitted job. The generator's thread adds to it, any other thread reads and cancels it.

    Args:
        job: what was asked for.
        notify: called from the generator's thread, after one or several pieces were added; must be quick. Until the reader has
            taken these, only the end is told.
        stream: False: `notify` is called once, when the job is over.
        text: makes the text of `tokens` when the reader takes it; None: the generator adds pieces with their text. Where
            neither stop strings nor log-probabilities are asked for, the reader can do it, and in one go.

    Attributes:
        tokens: ids generated so far, an end token not among them.
        prompt_infos: log-probabilities of the prompt's tokens, there with the first piece where they were asked for.
        drawn: see `Completion`.
        versions: of the weights that gave each draw, where draws are kept; empty: whoever asked knows it.
        began: time.monotonic() when the generator took it up; before that, when it was submitted.
        seconds: from there to its end, whatever else ran beside it; 0 until it is over.
    """

    def __init__(
        self, job: GenerationJob, notify: Notify | None = None, stream: bool = True, text: TextStream | None = None
    ) -> None:
        self.job, self.stream = job, stream
        self._text, self._read = text, 0
        self.tokens: list[int] = []
        self.prompt_infos: tuple[TokenInfo, ...] = ()
        self.drawn: list[tuple[int, float]] = []
        self.versions: list[int] = []
        self.began, self.seconds = time.monotonic(), 0.0
        self.cancelled = self._told = False
        self._notify = notify
        self._pieces: deque[Piece | GenerationFailed] = deque()
        self._over = threading.Event()

    @property
    def over(self) -> bool:
        """Return whether its last piece, or a failure, is there."""
        return self._over.is_set()

    def cancel(self) -> None:
        """Stop it at the next token; nothing more arrives. May be called more than once."""
        self.cancelled = True

    def take(self) -> Piece:
        """Return all that has come since the last call, joined into one piece, perhaps an empty one.

        Raises:
            GenerationFailed: it was given up.
        """
        self._told = False  # before anything is taken: what comes meanwhile is told again
        pieces: list[Piece] = []
        while self._pieces:
            piece = self._pieces.popleft()
            if isinstance(piece, GenerationFailed):
                raise piece
            pieces.append(piece)
        finish = pieces[-1].finish if pieces else None
        if self._text is not None:  # if that was the end, no more tokens come
            new = self.tokens[self._read :]
            self._read += len(new)
            # Several tokens in one go: a reader that is slow pays for one decoding, not for each.
            text = self._text.push_all(new)
            return Piece(text if finish is None else text + self._text.finish(finish).text, (), finish)
        return Piece("".join(p.text for p in pieces), tuple(t for p in pieces for t in p.tokens), finish)

    def result(self, timeout: float | None = None) -> Completion:
        """Wait for the end and return all that was generated.

        Raises:
            GenerationFailed: it was given up, or `timeout` seconds have passed.
        """
        if not self._over.wait(timeout):
            raise GenerationFailed("no end within the time")
        piece = self.take()
        infos = piece.tokens, self.prompt_infos
        return Completion(piece.text, piece.finish or "stop", tuple(self.tokens), *infos, tuple(self.drawn))

    def ended(self) -> str:
        """Return how it ended, 'stop' or 'length', of one that is over and was not read; its text need not be made for that.

        Raises:
            GenerationFailed: it was given up.
        """
        last = self._pieces[-1]
        if isinstance(last, GenerationFailed):
            raise last
        return last.finish or "stop"

    def add(self, piece: Piece | GenerationFailed) -> None:
        """Add a piece, which the next `tell` tells the reader; for the generator."""
        # Deques may be appended to and taken from by two threads without a lock.
        self._pieces.append(piece)
        if isinstance(piece, GenerationFailed) or piece.finish:
            self.seconds = time.monotonic() - self.began
            self._over.set()

    def tell(self) -> None:
        """Wake the reader, if it wants to be woken now; for the generator."""
        # A reader that has not come yet is not woken twice; its end is told in any case.
        if self._notify is not None and not self.cancelled and (self.over or (self.stream and not self._told)):
            self._told = True
            try:
                self._notify(self)
            except Exception:  # the reader's event loop is gone; the generator goes on for the others
                self.cancel()


Notify = Callable[[Ticket], None]
"""Wakes the reader of a ticket; see `Ticket`."""


@dataclass
class Stats:
    """Counters since the start, written by the generator's thread.

    Attributes:
        halvings: times that memory ran out and half as many sequences went on at once.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    steps: int = 0
    halvings: int = 0
    recent: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=4096))

    def tokens_per_second(self, now: float, window: float = 10.0) -> float:
        """Return the tokens generated a second over the last `window` seconds before `now` (time.monotonic)."""
        return sum(count for at, count in list(self.recent) if at >= now - window) / window


class Generator(Protocol):
    """Continues prompts.

    Attributes:
        text: its tokenizer: text to ids and back, and the chat template where there is one.
        context: most tokens of a sequence, prompt and completion together.
        vocab: token ids are below this.
        slots: sequences decoded together.
        stats: counters.
    """

    text: TextCodec
    context: int
    vocab: int
    slots: int
    stats: Stats

    @property
    def weights_version(self) -> int:
        """Return a number that changes with the weights."""

    @property
    def alive(self) -> bool:
        """Return whether it can be expected to answer."""

    @property
    def waiting(self) -> int:
        """Return how many sequences have no slot yet."""

    @property
    def running(self) -> int:
        """Return how many sequences are in slots."""

    def submit(
        self, jobs: Sequence[GenerationJob], notify: Notify | None = None, *, stream: bool = True, bounded: bool = True
    ) -> list[Ticket]:
        """Queue all of these jobs, or none. See `Ticket` for `notify` and `stream`; `bounded`: hold to the queue's limit.

        Raises:
            QueueFull: there is no room for them now.
            GenerationFailed: the generator is closed.
        """

    def generate(self, jobs: Sequence[GenerationJob]) -> list[Completion]:
        """Run jobs to their ends, however many. Raises GenerationFailed."""

    def close(self) -> None:
        """End it after the step under way; whoever still waits is told."""
