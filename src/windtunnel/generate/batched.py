"""Continuous batching: sequences join and leave the running batch between two tokens.

One thread owns the model and its cache. Everybody else submits jobs, and is told about their text through tickets. What a
sequence says depends on its job alone as far as the decoder can promise that, never on what happens to run beside it.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from windtunnel.model import choose, out_of_memory, top_log_probabilities

from .decoder import Decoder, put
from .protocol import Completion, GenerationFailed, GenerationJob, QueueFull, Stats, Ticket
from .text import Piece, TextCodec, TextStream, TokenInfo

log = logging.getLogger(__name__)

# Prompt tokens fed at a time, and on a CPU in one turn of the loop: decoding waits no longer than that. The borders of a prompt's
# chunks depend on the prompt alone, so that its sums do.
CHUNK = 512
# On a GPU, which takes about as long for many tokens as for few.
GPU_TURN = 16 * CHUNK
# After so many failures without a step that worked between them, the generator says that it is not well.
UNWELL = 3
# Up to so many weights a step on a CPU takes less time than waking a second thread costs, the more so when the cores are busy.
ONE_THREAD_WEIGHTS = 32_000_000


@dataclass
class _Sequence:
    """A job in the generator's hands.

    Attributes:
        text: None where the ticket's reader makes it.
        before: what its slot must hold before the next step: its prompt, and of one that lost its slot what it had said, but
            for the last token. fed: of these tokens, those in the cache.
    """

    ticket: Ticket
    text: TextStream | None
    random: random.Random
    submitted: float
    before: Sequence[int]
    fed: int = 0
    slot: int = -1

    @property
    def job(self) -> GenerationJob:
        return self.ticket.job

    @property
    def ready(self) -> bool:
        """Return whether all that must come before the next step is in the cache."""
        return self.fed == len(self.before)

    def leave_slot(self) -> None:
        """Go back to those that wait, to go on from the last token."""
        self.before = (*self.job.prompt, *self.ticket.tokens[:-1])
        self.fed, self.slot = 0, -1


@dataclass(frozen=True)
class _Flight:
    """A step whose tokens nobody has looked at yet: the device goes on to the next one with them.

    Attributes:
        tokens: (N,) on the device. found: the same and their log-probabilities, where they were asked for, on the host once
            `done` has happened.
    """

    sequences: list[_Sequence]
    tokens: Tensor
    found: tuple[Tensor, Tensor | None]
    done: torch.cuda.Event | None

    def land(self) -> tuple[list[int], list[float] | None]:
        """Wait for the tokens; return them and their log-probabilities."""
        if self.done is not None:
            self.done.synchronize()
        tokens, kept = self.found
        return tokens.tolist(), None if kept is None else kept.tolist()


class _ShortOfMemory(Exception):
    """So many sequences at once do not fit."""


class BatchedGenerator:
    """A `Generator` around a decoder. `close` it in the end.

    A job whose own step fails is given up alone. Where memory runs out, half as many sequences go on at once, the others after
    them. Whatever else fails costs the jobs in their slots, and the generator begins again with an empty cache.

    Args:
        decoder: the model; nobody else may use it.
        text: its tokenizer.
        slots: sequences decoded together, as many as the decoder has.
        queue: sequences that may wait for a slot.
        version: of the weights.

    Attributes:
        together: sequences that are decoded together: `slots`, until memory runs out.
    """

    def __init__(self, decoder: Decoder, text: TextCodec, *, slots: int, queue: int = 0, version: int = 0) -> None:
        self.text, self.slots, self.queue, self.together = text, slots, queue, slots
        self.context, self.vocab, self.weights = decoder.context, decoder.vocab, decoder.weights
        self.weights_version = version
        self.stats = Stats()
        self._decoder = decoder
        self._flight: _Flight | None = None
        self._waiting: deque[_Sequence] = deque()
        self._running: dict[int, _Sequence] = {}
        self._renewals: deque[tuple[Future[None], Callable[[], None], int]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._failures = 0
        self._seconds = 1.0
        self._thread = threading.Thread(target=self._work, name="generator", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Return whether the worker is there and its last steps have not all failed."""
        return self._thread.is_alive() and not self._closing and self._failures < UNWELL

    @property
    def waiting(self) -> int:
        """Return how many sequences have no slot yet."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Return how many sequences are in slots."""
        return len(self._running)

    def submit(
        self,
        jobs: Sequence[GenerationJob],
        notify: Callable[[Ticket], None] | None = None,
        *,
        stream: bool = True,
        bounded: bool = True,
    ) -> list[Ticket]:
        """Queue all of these jobs, or none. See `Generator`."""
        assert all(job.prompt and len(job.prompt) <= self.context for job in jobs)
        now = time.monotonic()
        made = []
        for job in jobs:
            text = TextStream(self.text, job.stop, job.include_stop)
            needed = bool(job.stop) or job.logprobs is not None
            ticket = Ticket(job, notify, stream, None if needed else text)
            made.append(_Sequence(ticket, text if needed else None, random.Random(job.seed), now, job.prompt))
        with self._wake:
            if self._closing or not self._thread.is_alive():
                raise GenerationFailed("the generator is closed")
            there = sum(not s.ticket.cancelled for s in [*self._waiting, *self._running.values()])
            if bounded and there + len(jobs) > self.slots + self.queue:
                raise QueueFull(max(1, min(60, round(self._seconds * there / self.slots))))
            self._waiting.extend(made)
            self._wake.notify()
        return [sequence.ticket for sequence in made]

    def generate(self, jobs: Sequence[GenerationJob]) -> list[Completion]:
        """Run jobs to their ends, however many. See `Generator`."""
        return [ticket.result() for ticket in self.submit(jobs, bounded=False)]

    def renew(self, change: Callable[[], None], version: int) -> None:
        """Change the decoder's weights between two tokens, and wait until that is done: tokens from then on are of this version.

        Sequences under way go on, with what the weights before have left in their cache.

        Args:
            change: writes the weights where they lie.
            version: of the new ones.

        Raises:
            GenerationFailed: the generator is closed. What `change` raises.
        """
        done: Future[None] = Future()
        with self._wake:
            if self._closing or not self._thread.is_alive():
                raise GenerationFailed("the generator is closed")
            self._renewals.append((done, change, version))
            self._wake.notify()
        done.result()

    def close(self, timeout: float = 10.0) -> None:
        """End the worker after the step under way; whoever still waits is told."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(timeout)

    def _work(self) -> None:
        """Do rounds until closed, as the thread's body. A round that fails is never the last."""
        if self._decoder.device.type == "cpu":
            torch.set_num_threads(1 if self._decoder.weights < ONE_THREAD_WEIGHTS else len(os.sched_getaffinity(0)))
        try:
            while self._admit():
                try:
                    # A turn of prompts, then a step: however long a prompt that joins, the others wait for one turn of it.
                    with torch.inference_mode():
                        self._renew()
                        self._prefill()
                        self._decode()
                except _ShortOfMemory:
                    self._halve()
                except BaseException:
                    log.exception("a round of the generator failed; it begins again with an empty cache")
                    self._begin_again()
        finally:
            with self._wake:
                self._closing = True
                left = [*self._waiting, *self._running.values()]
                renewals = list(self._renewals)
                self._waiting.clear()
                self._running.clear()
                self._renewals.clear()
            for sequence in left:
                self._give_up(sequence, "the generator is closed")
            for done, _, _ in renewals:
                done.set_exception(GenerationFailed("the generator is closed"))

    def _renew(self) -> None:
        """Change the weights as was asked. Never raises: who asked is told."""
        if self._renewals:
            self._land()  # its tokens are of the weights before
        while self._renewals:
            done, change, version = self._renewals.popleft()
            try:
                change()
            except Exception as error:
                done.set_exception(error)
            else:
                self.weights_version = version
                done.set_result(None)

    def _begin_again(self) -> None:
        self._failures, self._flight = self._failures + 1, None
        for sequence in list(self._running.values()):
            self._give_up(sequence, "a round failed")
        try:
            self._decoder.reset()
        except Exception:
            log.exception("the decoder cannot begin again")

    def _halve(self) -> None:
        """Decode half as many sequences together from now on. All leave their slots, and memory with them, and go on."""
        self._land()
        ran = sorted(self._running.values(), key=lambda s: s.submitted)
        self.together, self.stats.halvings = len(ran) // 2, self.stats.halvings + 1
        log.warning("memory ran out with %d answers at once; the generator goes on with %d", len(ran), self.together)
        self._running.clear()
        for sequence in ran:
            sequence.leave_slot()
        with self._wake:
            self._waiting.extendleft(reversed(ran))
        self._decoder.reset()
        if self._decoder.device.type == "cuda":
            torch.cuda.empty_cache()

    def _admit(self) -> bool:
        """Wait for work, drop what was cancelled, give free slots away. False: time to end."""
        with self._wake:
            self._drop_cancelled()
            self._wake.wait_for(lambda: self._closing or self._waiting or self._running or self._renewals)
            free = [slot for slot in range(self.slots) if slot not in self._running]
            while self._waiting and free and len(self._running) < self.together:
                sequence = self._waiting.popleft()
                sequence.slot = free.pop(0)
                sequence.ticket.began = time.monotonic()
                self._running[sequence.slot] = sequence
            return not self._closing

    def _drop_cancelled(self) -> None:
        for sequence in [s for s in self._running.values() if s.ticket.cancelled]:
            self._leave(sequence)
            self.stats.cancelled += 1
        gone = sum(s.ticket.cancelled for s in self._waiting)
        if gone:
            self._waiting = deque(s for s in self._waiting if not s.ticket.cancelled)
            self.stats.cancelled += gone

    def _prefill(self) -> None:
        """Feed the next chunks of prompts, oldest first, a turn's tokens or a little more.

        Further turns follow while nobody waits for a step, so that those who come together set out together.
        """
        turn = CHUNK if self._decoder.device.type == "cpu" else GPU_TURN
        while True:
            fed, together, anybody = 0, dict[int, list[_Sequence]](), any(s.ready for s in self._running.values())
            for sequence in sorted((s for s in self._running.values() if not s.ready), key=lambda s: s.submitted):
                if fed >= turn:
                    break
                size = min(CHUNK, len(sequence.before) - sequence.fed)
                together.setdefault(0 if self._decoder.ragged else size, []).append(sequence)
                fed += size
            for sequences in together.values():
                self._guarded(sequences, self._feed)
            if anybody or not together or not self._decoder.ragged:
                return

    def _feed(self, sequences: list[_Sequence]) -> None:
        parts = [s.before[s.fed : s.fed + CHUNK] for s in sequences]
        logits = self._decoder.feed([s.slot for s in sequences], parts)
        for sequence, part in zip(sequences, parts, strict=True):
            if sequence.fed == 0 and sequence.job.score_prompt and not sequence.ticket.tokens:
                self._score(sequence)
            sequence.fed += len(part)
        self.stats.prompt_tokens += sum(map(len, parts))
        done = [i for i, sequence in enumerate(sequences) if sequence.ready and not sequence.ticket.tokens]
        if done:
            self._take(logits[done], [sequences[i] for i in done])

    def _score(self, sequence: _Sequence) -> None:
        """Give a ticket the log-probabilities of its prompt's tokens, by a pass over the whole prompt. Never raises."""
        try:
            sequence.ticket.prompt_infos = tuple(self._scores(sequence))
        except Exception:
            log.exception("a sequence is given up")
            self._give_up(sequence, "its prompt could not be scored")

    def _scores(self, sequence: _Sequence) -> list[TokenInfo]:
        job, count = sequence.job, sequence.job.logprobs or 0
        stream = TextStream(self.text)
        # Nothing comes before the first token, so that it has no probability; NaN keeps its place.
        infos = list(stream.push(job.prompt[0], float("nan"))[0].tokens)
        at = 1
        for logits in self._decoder.score(job.prompt):
            rest = job.prompt[at : at + len(logits)]
            at += len(rest)
            if not rest:
                continue
            chosen = torch.tensor(rest, device=self._decoder.device)
            own, values, ids = top_log_probabilities(logits[: len(rest)], chosen, max(count, 1))
            for token, p, row, names in zip(rest, own.tolist(), values.tolist(), ids.tolist(), strict=True):
                infos += stream.push(token, p, dict(zip(names, row, strict=True)) if count else None)[0].tokens
        return infos + list(stream.finish("length").tokens)

    def _decode(self) -> None:
        """Decode one token for every sequence whose prompt is in the cache."""
        ready = sorted((s for s in self._running.values() if s.ready and not s.ticket.cancelled), key=lambda s: s.slot)
        if self._decoder.ahead and all(s.job.logprobs is None for s in ready):
            self._go_ahead(ready)
            return
        self._land()
        ready = [s for s in ready if s.slot >= 0]
        if ready:
            self._guarded(ready, self._step)

    def _go_ahead(self, ready: list[_Sequence]) -> None:
        """Begin a step with the tokens of the one before where they lie, and only then look at those.

        Whether a sequence has had its last token is known ahead by its length; one that has said its last word goes a step too
        far, and what comes of that is dropped.

        Raises:
            _ShortOfMemory: fewer at once may do.
        """
        before = {} if self._flight is None else {id(s): i for i, s in enumerate(self._flight.sequences)}
        going = [s for s in ready if not self._ends(s, len(s.ticket.tokens) + (id(s) in before))]
        if not going:
            self._land()
            return
        try:
            logits = self._decoder.step([s.slot for s in going], self._newest(going, before))
        except Exception as error:
            self._land()
            if out_of_memory(error) and len(self._running) > 1:
                raise _ShortOfMemory from None
            left = [s for s in going if s.slot >= 0]
            if left:
                self._guarded(left, self._step)
            return
        self.stats.steps += 1
        draws = [s.random.random() for s in going]
        try:
            begun = self._flight_of(logits, going, draws)
        except Exception:  # the cache has grown, so these logits are all that there is
            self._land()
            self._take(logits, going, draws)
            return
        self._land()
        self._flight = begun

    def _ends(self, sequence: _Sequence, drawn: int) -> bool:
        """Return whether a sequence takes no token after so many. The last one needs no room: nothing is computed after it."""
        return drawn >= sequence.job.max_tokens or len(sequence.job.prompt) + drawn > self.context

    def _newest(self, going: list[_Sequence], before: dict[int, int]) -> Tensor:
        """Return each sequence's newest token (N,), on the device; `before` has the place in flight of those that lie there."""
        flight = self._flight
        if (
            flight is not None
            and len(going) == len(flight.sequences)
            and all(before.get(id(s)) == i for i, s in enumerate(going))
        ):
            return flight.tokens
        new = [s.ticket.tokens[-1] for s in going if id(s) not in before]
        places = iter(range(len(before), len(before) + len(new)))
        at = [before[id(s)] if id(s) in before else next(places) for s in going]
        there = [put(new, self._decoder.device)]
        return torch.cat([flight.tokens, *there] if flight is not None else there)[put(at, self._decoder.device)]

    def _flight_of(self, logits: Tensor, going: list[_Sequence], draws: list[float]) -> _Flight:
        """Choose the next tokens on the device, and have them brought to the host without waiting."""
        jobs = [s.job for s in going]
        tokens = self._chosen(logits, jobs, draws)
        kept = _log_probabilities(logits, tokens, jobs) if any(job.draws for job in jobs) else None
        if tokens.device.type != "cuda":
            return _Flight(going, tokens, (tokens, kept), None)
        found = tokens.to("cpu", non_blocking=True), None if kept is None else kept.to("cpu", non_blocking=True)
        done = torch.cuda.Event()
        done.record()
        return _Flight(going, tokens, found, done)

    def _land(self) -> None:
        """Take the tokens of the step in flight, if there is one. Never raises."""
        flight, self._flight = self._flight, None
        if flight is None:
            return
        tokens, kept = flight.land()
        still = [i for i, s in enumerate(flight.sequences) if not s.ticket.over and s.slot >= 0]
        sequences = [flight.sequences[i] for i in still]
        if kept is not None:
            self._keep_draws(sequences, [tokens[i] for i in still], [kept[i] for i in still])
        self._advance_all(sequences, [tokens[i] for i in still], None)
        self.stats.recent.append((time.monotonic(), len(still)))
        self._failures = 0

    def _step(self, sequences: list[_Sequence]) -> None:
        logits = self._decoder.step([s.slot for s in sequences], [s.ticket.tokens[-1] for s in sequences])
        self.stats.steps += 1
        self._take(logits, sequences)

    def _guarded(self, sequences: list[_Sequence], do: Callable[[list[_Sequence]], None]) -> None:
        """Do something for sequences together. If it fails, for each alone: whose fault it is, is given up, the others go on.

        Raises:
            _ShortOfMemory: fewer at once may do.
        """
        try:
            do(sequences)
            self._failures = 0
        except Exception as error:
            if out_of_memory(error) and len(self._running) > 1:
                raise _ShortOfMemory from None
            if len(sequences) == 1:
                log.exception("a sequence is given up")
                self._failures += 1
                self._give_up(sequences[0], "its step failed")
            else:
                for sequence in sequences:
                    self._guarded([sequence], do)

    def _take(self, logits: Tensor, sequences: list[_Sequence], draws: list[float] | None = None) -> None:
        """Sample a token for each row and pass its text on. Never raises: the cache has already grown."""
        # Each sequence draws from its own stream, once a token: its text does not depend on what runs beside it, and the second
        # attempt below takes the numbers of the first.
        draws = [sequence.random.random() for sequence in sequences] if draws is None else draws
        try:
            self._sample(logits, sequences, draws)
        except Exception:
            for row, sequence in enumerate(sequences):
                try:
                    self._sample(logits[row : row + 1], [sequence], draws[row : row + 1])
                except Exception:
                    log.exception("a sequence is given up")
                    self._give_up(sequence, "its token could not be chosen")
        self.stats.recent.append((time.monotonic(), len(sequences)))

    def _sample(self, logits: Tensor, sequences: list[_Sequence], draws: list[float]) -> None:
        jobs = [sequence.job for sequence in sequences]
        tokens = self._chosen(logits, jobs, draws)
        if any(job.draws for job in jobs):
            self._keep_draws(sequences, tokens.tolist(), _log_probabilities(logits, tokens, jobs).tolist())
        count = max((job.logprobs for job in jobs if job.logprobs is not None), default=None)
        scored = None if count is None else [t.tolist() for t in top_log_probabilities(logits, tokens, max(count, 1))]
        self._advance_all(sequences, tokens.tolist(), scored)

    @staticmethod
    def _chosen(logits: Tensor, jobs: Sequence[GenerationJob], draws: list[float]) -> Tensor:
        """Return a token for each row (N,), by one number drawn for each."""
        if all(job.temperature == 0 for job in jobs):
            return logits.argmax(-1)
        columns = ([job.temperature for job in jobs], [job.top_p for job in jobs], [job.top_k for job in jobs], draws)
        return choose(logits.float(), *map(torch.tensor, columns))

    def _advance_all(self, sequences: Sequence[_Sequence], tokens: Sequence[int], scored: list[Any] | None) -> None:
        """Add a token to each sequence, with what `top_log_probabilities` says of it. Never raises."""
        for row, (sequence, token) in enumerate(zip(sequences, tokens, strict=True)):
            if sequence.ticket.over or sequence.slot < 0:
                continue
            wanted = sequence.job.logprobs
            try:
                if scored is None or wanted is None:
                    self._advance(sequence, token, None, None)
                else:
                    top = dict(list(zip(scored[2][row], scored[1][row], strict=True))[:wanted])
                    self._advance(sequence, token, scored[0][row], top)
            except Exception:
                log.exception("a sequence is given up")
                self._give_up(sequence, "its token has no text")

    def _keep_draws(self, sequences: Sequence[_Sequence], tokens: Sequence[int], kept: Sequence[float]) -> None:
        """Note the tokens drawn, with their log-probabilities."""
        for sequence, token, log_probability in zip(sequences, tokens, kept, strict=True):
            if sequence.job.draws and sequence.job.max_tokens and not sequence.ticket.over:
                sequence.ticket.drawn.append((token, log_probability))
                sequence.ticket.versions.append(self.weights_version)

    def _advance(self, sequence: _Sequence, token: int, log_probability: float | None, top: dict[int, float] | None) -> None:
        """Add one token to a sequence and end it where it has to end."""
        job, ticket = sequence.job, sequence.ticket
        if job.max_tokens == 0:
            self._finish(sequence, "length")
            return
        if token in self.text.ends:
            self._finish(sequence, "stop")
            return
        ticket.tokens.append(token)
        self.stats.completion_tokens += 1
        stopped, news = False, True
        if sequence.text is not None:
            piece, stopped = sequence.text.push(token, log_probability, top)
            if news := bool(piece.text or piece.tokens):
                ticket.add(piece)
        if stopped:
            self._finish(sequence, "stop")
        elif self._ends(sequence, len(ticket.tokens)):
            self._finish(sequence, "length")
        elif news:
            ticket.tell()

    def _finish(self, sequence: _Sequence, reason: str) -> None:
        # A running mean, by which those who find the queue full are told when to come again.
        self._seconds = 0.8 * self._seconds + 0.2 * (time.monotonic() - sequence.submitted)
        self.stats.finished += 1
        self._leave(sequence)
        sequence.ticket.add(Piece("", (), reason) if sequence.text is None else sequence.text.finish(reason))
        sequence.ticket.tell()

    def _give_up(self, sequence: _Sequence, why: str) -> None:
        self.stats.failed += 1
        self._leave(sequence)
        sequence.ticket.add(GenerationFailed(why))
        sequence.ticket.tell()

    def _leave(self, sequence: _Sequence) -> None:
        """Free a sequence's slot at once: an idle slot that is full must not be there when the others step."""
        if sequence.slot >= 0:
            self._running.pop(sequence.slot, None)
            self._decoder.free(sequence.slot)
            sequence.slot = -1


def _log_probabilities(logits: Tensor, tokens: Tensor, jobs: Sequence[GenerationJob]) -> Tensor:
    """Return (N,) log-probabilities of tokens over the whole vocabulary at their jobs' temperatures."""
    temperatures = torch.tensor([job.temperature or 1.0 for job in jobs]).to(logits.device, non_blocking=True)
    return torch.log_softmax(logits.float() / temperatures[:, None], -1).gather(1, tokens[:, None])[:, 0]
