"""Continuous batching: sequences join and leave the running batch between two tokens.

One thread owns the model and the KV cache. Everybody else submits sequences, and is told about their
text through a callback. A decode step always runs over all slots, idle ones included: matrix
products round differently for different batch shapes, so only a constant shape makes a sequence's text
independent of what happens to run beside it.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from windtunnel.data import Tokenizer
from windtunnel.model import GPT, KVCache, choose, extend, top_log_probabilities

from .text import Piece, TextStream

log = logging.getLogger(__name__)

# Prompt tokens fed at a time, and in one turn of the loop: decoding waits no longer than that.
CHUNK = 256
TURN = 512
RATE_SECONDS = 10.0


class QueueFull(Exception):
    """No room to wait. `retry_after` is a guess in seconds."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"queue full, retry after {retry_after} s")
        self.retry_after = retry_after


class EngineDown(Exception):
    """The worker has died or was closed; nothing will be generated any more."""


@dataclass(frozen=True)
class Job:
    """One sequence to continue. Limits are the caller's to check, except that prompts are not empty and fit the context.

    Args:
        prompt: token ids.
        seed: same seed, same text, whatever runs beside.
        stop: the text ends before the first of these.
        logprobs: report log-probabilities with this many alternatives; None: none.
        score_prompt: also report those of the prompt's tokens, in the first piece.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    score_prompt: bool = False


@dataclass
class Generation:
    """A submitted job. `on_piece` is called from the engine's thread with pieces, at last one with `finish`, or an error."""

    job: Job
    on_piece: Callable[[Piece | EngineDown], None]
    text: TextStream
    random: random.Random
    submitted: float
    generated: int = 0
    fed: int = 0
    newest: int = -1
    cancelled: bool = False
    slot: int = -1

    def cancel(self) -> None:
        """Stop it at the next token; no further pieces arrive. Callable from any thread, more than once."""
        self.cancelled = True


@dataclass
class Stats:
    """Counters since the start, written by the engine's thread."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    finished: int = 0
    cancelled: int = 0
    steps: int = 0
    recent: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=4096))

    def tokens_per_second(self) -> float:
        """Generated tokens a second over the last ten seconds."""
        since = time.monotonic() - RATE_SECONDS
        return sum(count for at, count in list(self.recent) if at >= since) / RATE_SECONDS


class Engine:
    """Generates text for many clients at once. `close` it in the end.

    Args:
        slots: sequences decoded together.
        queue: sequences that may wait for a slot.
        capacity: tokens of prompt and completion a sequence may have; None: the model's context.
    """

    def __init__(self, model: GPT, tokenizer: Tokenizer, *, slots: int, queue: int, capacity: int | None = None) -> None:
        self.tokenizer, self.slots, self.queue = tokenizer, slots, queue
        self.stats = Stats()
        self._model = model.eval()
        self._device = model.head.weight.device
        self._cache = KVCache(model, slots, capacity)
        self._waiting: deque[Generation] = deque()
        self._running: dict[int, Generation] = {}
        self._wake = threading.Condition()
        self._closing = False
        self._failure: BaseException | None = None
        self._seconds = 1.0
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self._thread.start()

    @property
    def context(self) -> int:
        """Most tokens of a sequence."""
        return self._cache.capacity

    @property
    def alive(self) -> bool:
        """Whether the worker is there to generate."""
        return self._thread.is_alive() and self._failure is None and not self._closing

    @property
    def waiting(self) -> int:
        """Sequences without a slot yet."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Sequences in slots."""
        return len(self._running)

    def submit(self, jobs: Sequence[Job], callbacks: Sequence[Callable[[Piece | EngineDown], None]]) -> list[Generation]:
        """Queue all of these sequences, or none.

        Raises:
            QueueFull: there is no room for them now.
            EngineDown: the worker has ended.
        """
        assert all(job.prompt and len(job.prompt) <= self.context for job in jobs)
        now = time.monotonic()
        generations = [
            Generation(job, callback, TextStream(self.tokenizer, job.stop), random.Random(job.seed), now)
            for job, callback in zip(jobs, callbacks, strict=True)
        ]
        with self._wake:
            if not self.alive:
                raise EngineDown("the engine is down")
            there = sum(not g.cancelled for g in [*self._waiting, *self._running.values()])
            if there + len(jobs) > self.slots + self.queue:
                raise QueueFull(max(1, min(60, round(self._seconds * there / self.slots))))
            self._waiting.extend(generations)
            self._wake.notify()
        return generations

    def close(self, timeout: float = 10.0) -> None:
        """End the worker after the step under way; whoever still waits is told."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(timeout)

    def _work(self) -> None:
        try:
            with torch.inference_mode():
                while self._admit():
                    self._prefill()
                    self._decode()
        except BaseException as error:
            self._failure = error
            log.exception("the engine's worker died; no more requests will be answered")
        finally:
            with self._wake:
                self._closing = True
                left = [*self._waiting, *self._running.values()]
                self._waiting.clear()
                self._running.clear()
            for generation in left:
                self._tell(generation, EngineDown("the engine is down"))

    def _admit(self) -> bool:
        """Wait for work, drop what was cancelled, give free slots away. False: time to end."""
        with self._wake:
            self._drop_cancelled()
            self._wake.wait_for(lambda: self._closing or self._waiting or self._running)
            free = [slot for slot in range(self.slots) if slot not in self._running]
            while self._waiting and free:
                generation = self._waiting.popleft()
                generation.slot = free.pop(0)
                self._running[generation.slot] = generation
                self._cache.reset(generation.slot)
            return not self._closing

    def _prefill(self) -> None:
        """Feed prompts, oldest first, at most about TURN tokens; the chunks' borders depend on the prompt alone."""
        fed = 0
        for generation in sorted(self._running.values(), key=lambda g: g.submitted):
            prompt = generation.job.prompt
            if generation.fed == 0 and generation.job.score_prompt and not generation.cancelled:
                self._score(generation)
                if generation.job.max_tokens == 0:
                    self._finish(generation, "length")
                    continue
            while generation.fed < len(prompt) and fed < TURN and not generation.cancelled:
                part = prompt[generation.fed : generation.fed + CHUNK]
                slot = torch.tensor([generation.slot], device=self._device)
                logits = extend(self._model, torch.tensor([part], device=self._device), slot, self._cache)
                generation.fed += len(part)
                fed += len(part)
                self.stats.prompt_tokens += len(part)
                if generation.fed == len(prompt):
                    if generation.job.max_tokens == 0:
                        self._finish(generation, "length")
                    else:
                        self._take(logits, [generation])

    def _score(self, generation: Generation) -> None:
        """Log-probabilities of the prompt's tokens, from one pass over the whole prompt."""
        job, count = generation.job, generation.job.logprobs or 0
        tokens = torch.tensor([job.prompt], device=self._device)
        stream = TextStream(self.tokenizer, ())
        infos = list(stream.push(job.prompt[0], float("nan"))[0].tokens)
        if len(job.prompt) > 1:
            own, values, ids = top_log_probabilities(self._model(tokens)[0, :-1], tokens[0, 1:], max(count, 1))
            for token, p, row, names in zip(job.prompt[1:], own.tolist(), values.tolist(), ids.tolist(), strict=True):
                top = dict(zip(names, row, strict=True)) if count else None
                infos += stream.push(token, p, top)[0].tokens
        infos += stream.finish("length").tokens
        self._tell(generation, Piece("", tuple(infos)))

    def _decode(self) -> None:
        """One token for every sequence whose prompt is in the cache."""
        ready = {s: g for s, g in self._running.items() if g.fed == len(g.job.prompt) and not g.cancelled}
        if not ready:
            return
        newest = torch.zeros((self.slots, 1), dtype=torch.long)
        for slot, generation in ready.items():
            newest[slot, 0] = generation.newest
        lengths = self._cache.lengths.clone()
        logits = extend(self._model, newest.to(self._device), torch.arange(self.slots, device=self._device), self._cache)
        # The idle slots took part with a token that was not theirs: it is overwritten by whatever comes next.
        used = torch.zeros(self.slots, dtype=torch.bool)
        used[list(ready)] = True
        self._cache.lengths = torch.where(used.to(self._device), self._cache.lengths, lengths)
        self.stats.steps += 1
        self._take(logits, [ready.get(slot) for slot in range(self.slots)])

    def _take(self, logits: Tensor, rows: Sequence[Generation | None]) -> None:
        """Sample a token for each row that has a sequence, and pass its text on."""
        jobs = [None if g is None else g.job for g in rows]

        def column(values: list[float] | list[int]) -> Tensor:
            return torch.tensor(values, device=self._device)

        tokens = choose(
            logits,
            column([j.temperature if j else 0.0 for j in jobs]),
            column([j.top_p if j else 1.0 for j in jobs]),
            column([j.top_k if j else 0 for j in jobs]),
            column([g.random.random() if g else 0.0 for g in rows]),
        )
        count = max((j.logprobs for j in jobs if j and j.logprobs is not None), default=None)
        scored = None
        if count is not None:
            scored = [t.tolist() for t in top_log_probabilities(logits, tokens, max(count, 1))]
        made = 0
        for row, (generation, token) in enumerate(zip(rows, tokens.tolist(), strict=True)):
            if generation is None:
                continue
            made += 1
            wanted = generation.job.logprobs
            if scored is None or wanted is None:
                self._advance(generation, token, None, None)
            else:
                top = dict(list(zip(scored[2][row], scored[1][row], strict=True))[:wanted])
                self._advance(generation, token, scored[0][row], top)
        self.stats.completion_tokens += made
        self.stats.recent.append((time.monotonic(), made))

    def _advance(self, generation: Generation, token: int, log_probability: float | None, top: dict[int, float] | None) -> None:
        """Add one token to a sequence and end it where it has to end. BOS begins the next document: the text is over."""
        if token == self.tokenizer.bos:
            self._finish(generation, "stop")
            return
        generation.newest = token
        generation.generated += 1
        piece, stopped = generation.text.push(token, log_probability, top)
        full = len(generation.job.prompt) + generation.generated > self.context
        if piece.text or piece.tokens:
            self._tell(generation, piece)
        if stopped:
            self._finish(generation, "stop")
        elif full or generation.generated >= generation.job.max_tokens:
            self._finish(generation, "length")

    def _finish(self, generation: Generation, reason: str) -> None:
        piece = generation.text.finish(reason)
        self._seconds = 0.8 * self._seconds + 0.2 * (time.monotonic() - generation.submitted)
        self.stats.finished += 1
        with self._wake:
            self._running.pop(generation.slot, None)
        self._tell(generation, piece)

    def _drop_cancelled(self) -> None:
        for generation in [g for g in self._running.values() if g.cancelled]:
            del self._running[generation.slot]
            self.stats.cancelled += 1
        gone = sum(g.cancelled for g in self._waiting)
        if gone:
            self._waiting = deque(g for g in self._waiting if not g.cancelled)
            self.stats.cancelled += gone

    def _tell(self, generation: Generation, piece: Piece | EngineDown) -> None:
        if generation.cancelled:
            return
        try:
            generation.on_piece(piece)
        except Exception:  # the client's event loop is gone; the engine goes on for the others
            generation.cancel()
