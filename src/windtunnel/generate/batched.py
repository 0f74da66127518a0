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

import torch

from windtunnel.model import out_of_memory

from .ahead import StepsAhead
from .decoder import Decoder
from .protocol import Completion, GenerationFailed, GenerationJob, Notify, QueueFull, Stats, Ticket
from .running import Running
from .telling import Teller
from .text import TextCodec, TextStream

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
        self.stats = Stats()
        self._teller = Teller(text, decoder, self.stats, version, self._leave)
        self._decoder, self._ahead = decoder, StepsAhead(decoder, self._teller, self.stats)
        self._waiting: deque[Running] = deque()
        self._running: dict[int, Running] = {}
        self._renewals: deque[tuple[Future[None], Callable[[], None], int]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._failures = 0
        self._thread = threading.Thread(target=self._work, name="generator", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Return whether the worker is there and its last steps have not all failed."""
        return self._thread.is_alive() and not self._closing and self._failures < UNWELL

    @property
    def weights_version(self) -> int:
        """Return the version of the weights that the next token comes from."""
        return self._teller.version

    @property
    def waiting(self) -> int:
        """Return how many sequences have no slot yet."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Return how many sequences are in slots."""
        return len(self._running)

    def submit(
        self, jobs: Sequence[GenerationJob], notify: Notify | None = None, *, stream: bool = True, bounded: bool = True
    ) -> list[Ticket]:
        """Queue all of these jobs, or none. See `Generator`."""
        assert all(job.prompt and len(job.prompt) <= self.context for job in jobs)
        now = time.monotonic()
        made = []
        for job in jobs:
            text = TextStream(self.text, job.stop, job.include_stop, job.prompt)
            # Else the reader makes the text when it takes it, in one go, and the generator's thread saves the time.
            needed = bool(job.stop) or job.logprobs is not None
            ticket = Ticket(job, notify, stream and notify is not None, None if needed else text)
            # The last token is said and never computed with, so that the context has room for one more.
            most = min(job.max_tokens, self.context + 1 - len(job.prompt))
            made.append(Running(ticket, text if needed else None, random.Random(job.seed), now, most, job.prompt))
        with self._wake:
            self._require_open()
            # Those that were cancelled leave at the next step: no reason to refuse who comes now.
            there = sum(not s.ticket.cancelled for s in [*self._waiting, *self._running.values()])
            if bounded and there + len(jobs) > self.slots + self.queue:
                raise QueueFull(max(1, min(60, round(self._teller.seconds * there / self.slots))))
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
            self._require_open()
            self._renewals.append((done, change, version))
            self._wake.notify()
        done.result()

    def _require_open(self) -> None:
        if self._closing or not self._thread.is_alive():
            raise GenerationFailed("the generator is closed")

    def close(self, timeout: float = 10.0) -> None:
        """End the worker after the step under way; whoever still waits is told."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(timeout)

    def _work(self) -> None:
        """Do rounds until closed, as the thread's body. A round that fails is never the last."""
        if self._decoder.device.type == "cpu":
            # Here, not by the caller: torch keeps this number for each thread.
            torch.set_num_threads(1 if self._decoder.weights < ONE_THREAD_WEIGHTS else len(os.sched_getaffinity(0)))
        try:
            with torch.inference_mode():
                while self._admit():
                    self._round()
        finally:
            with self._wake:
                self._closing = True
                # Taken out under the lock: whoever submits from here on is refused, and nobody is left waiting for ever.
                left = [*self._waiting, *self._running.values()]
                renewals = list(self._renewals)
                self._waiting.clear()
                self._running.clear()
                self._renewals.clear()
            for sequence in left:
                self._teller.give_up(sequence, "the generator is closed")
            for done, _, _ in renewals:
                done.set_exception(GenerationFailed("the generator is closed"))

    def _round(self) -> None:
        """Do a turn of prompts, then a step: however long a prompt that joins, the others wait for one turn of it."""
        try:
            self._renew()
            self._prefill()
            self._decode()
        except _ShortOfMemory:
            self._halve()
        except BaseException:
            log.exception("a round of the generator failed; it begins again with an empty cache")
            self._begin_again()

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
                self._teller.version = version
                done.set_result(None)

    def _begin_again(self) -> None:
        self._failures += 1
        self._ahead.forget()
        for sequence in list(self._running.values()):
            self._teller.give_up(sequence, "a round failed")
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
            if self._waiting and len(self._running) < self.together:
                self._fill_slots()
            return not self._closing

    def _fill_slots(self) -> None:
        # Lowest first: the same jobs come to the same slots, and to the same rows of a batch.
        free = [slot for slot in range(self.slots) if slot not in self._running]
        while self._waiting and free and len(self._running) < self.together:
            sequence = self._waiting.popleft()
            sequence.slot = free.pop(0)
            sequence.ticket.began = time.monotonic()
            self._running[sequence.slot] = sequence

    def _drop_cancelled(self) -> None:
        # Before slots are given away, so that those that wait get them at once.
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
        while not all(s.ready for s in self._running.values()):
            fed, together, anybody = 0, dict[int, list[Running]](), any(s.ready for s in self._running.values())
            seen = set[Sequence[int]]()
            for sequence in sorted((s for s in self._running.values() if not s.ready), key=lambda s: s.submitted):
                if fed >= turn:
                    break
                size = min(CHUNK, len(sequence.before) - sequence.fed)
                # Parts of one length make one matrix; a ragged decoder takes any together.
                together.setdefault(0 if self._decoder.ragged else size, []).append(sequence)
                # A prompt that several share is computed once.
                if not (self._decoder.ragged and sequence.fed == 0 and sequence.before in seen):
                    fed += size
                seen.add(sequence.before)
            for sequences in together.values():
                self._guarded(sequences, self._feed)
            # Else those that came first would say all their words before the last prompt is read.
            if anybody or not together or not self._decoder.ragged:
                return

    def _feed(self, sequences: list[Running]) -> None:
        parts = [s.before[s.fed : s.fed + CHUNK] for s in sequences]
        logits = self._decoder.feed([s.slot for s in sequences], parts)
        for sequence, part in zip(sequences, parts, strict=True):
            if sequence.fed == 0 and sequence.job.score_prompt and not sequence.ticket.tokens:
                self._teller.score(sequence)
            sequence.fed += len(part)
        self.stats.prompt_tokens += sum(map(len, parts))
        # One that came back to a slot has its next token already: the logits after its beginning are old news.
        done = [i for i, sequence in enumerate(sequences) if sequence.ready and not sequence.ticket.tokens]
        if done:
            self._teller.take(logits[done], [sequences[i] for i in done])

    def _decode(self) -> None:
        """Decode one token for every sequence whose prompt is in the cache."""
        ready = sorted((s for s in self._running.values() if s.ready and not s.ticket.cancelled), key=lambda s: s.slot)
        # Alternatives are read on the host at each step, so that nothing can go ahead of it.
        if self._decoder.ahead and all(s.job.logprobs is None for s in ready):
            try:
                landed = self._ahead.begin(ready, waited_for=bool(self._waiting))
            except Exception as error:
                self._land()
                self._require_memory(error)
            else:
                self._failures = 0 if landed else self._failures
                return
        self._land()
        # What has landed may have ended some of them.
        ready = [s for s in ready if s.slot >= 0]
        if ready:
            self._guarded(ready, self._step)

    def _land(self) -> None:
        """Take the tokens of the steps in flight, if there are any. Never raises."""
        if self._ahead.land():
            self._failures = 0

    def _require_memory(self, error: Exception) -> None:
        """Raise _ShortOfMemory where fewer sequences at once may do."""
        if out_of_memory(error) and len(self._running) > 1:
            raise _ShortOfMemory from None

    def _step(self, sequences: list[Running]) -> None:
        logits = self._decoder.step([s.slot for s in sequences], [s.ticket.tokens[-1] for s in sequences])
        self.stats.steps += 1
        self._teller.take(logits, sequences)

    def _guarded(self, sequences: list[Running], do: Callable[[list[Running]], None]) -> None:
        """Do something for sequences together. If it fails, for each alone: whose fault it is, is given up, the others go on.

        Raises:
            _ShortOfMemory: fewer at once may do.
        """
        try:
            do(sequences)
            self._failures = 0
        except Exception as error:
            self._require_memory(error)
            if len(sequences) == 1:
                log.exception("a sequence is given up")
                self._failures += 1
                self._teller.give_up(sequences[0], "its step failed")
            else:
                for sequence in sequences:
                    self._guarded([sequence], do)

    def _leave(self, sequence: Running) -> None:
        """Free a sequence's slot at once: an idle slot that is full must not be there when the others step."""
        if sequence.slot >= 0:
            self._running.pop(sequence.slot, None)
            self._decoder.free(sequence.slot)
            sequence.slot = -1
