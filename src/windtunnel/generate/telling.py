"""What becomes of tokens: which are drawn, what readers are told of them, and when a sequence ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from windtunnel.model import choose, top_log_probabilities

from .decoder import Decoder
from .protocol import GenerationFailed, GenerationJob, Stats
from .running import Flight, Running
from .text import Piece, TextCodec, TextStream, TokenInfo

log = logging.getLogger(__name__)


class Teller:
    """Passes tokens on to the tickets of sequences, and ends these; on the generator's thread.

    Args:
        text: the tokenizer. decoder: scores prompts.
        stats: counters, which grow.
        version: of the weights.
        leave: frees the slot of a sequence that ends.

    Attributes:
        version: the same; noted with each token drawn.
        seconds: a running mean of what a sequence takes from its submission on.
    """

    def __init__(self, text: TextCodec, decoder: Decoder, stats: Stats, version: int, leave: Callable[[Running], None]) -> None:
        self._text, self._decoder, self._stats, self._leave = text, decoder, stats, leave
        self.version, self.seconds = version, 1.0

    def score(self, sequence: Running) -> None:
        """Give a ticket the log-probabilities of its prompt's tokens, by a pass over the whole prompt. Never raises."""
        try:
            sequence.ticket.prompt_infos = tuple(self._scores(sequence))
        except Exception:
            log.exception("a sequence is given up")
            self.give_up(sequence, "its prompt could not be scored")

    def _scores(self, sequence: Running) -> list[TokenInfo]:
        job, count = sequence.job, sequence.job.logprobs or 0
        # Through the same stream as what is generated: offsets and names are counted alike.
        stream = TextStream(self._text)
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

    def land(self, flight: Flight) -> None:
        """Take the tokens of a flight. Never raises."""
        tokens, logs = flight.land()
        taken = 0
        for i, sequence in enumerate(flight.sequences):
            if sequence.ticket.over or sequence.slot < 0:
                continue
            try:
                taken += self._advance_far(sequence, tokens[i], None if logs is None else logs[i])
            except Exception:
                log.exception("a sequence is given up")
                self.give_up(sequence, "its token has no text")
        self._stats.recent.append((time.monotonic(), taken))

    def take(self, logits: Tensor, sequences: list[Running]) -> None:
        """Sample a token for each row and pass its text on. Never raises: the cache has already grown."""
        try:
            self._sample(logits, sequences)
        except Exception:
            for row, sequence in enumerate(sequences):
                try:
                    self._sample(logits[row : row + 1], [sequence])
                except Exception:
                    log.exception("a sequence is given up")
                    self.give_up(sequence, "its token could not be chosen")
        self._stats.recent.append((time.monotonic(), len(sequences)))

    def _sample(self, logits: Tensor, sequences: list[Running]) -> None:
        jobs = [sequence.job for sequence in sequences]
        tokens = chosen(logits, jobs, [sequence.number(len(sequence.ticket.tokens)) for sequence in sequences])
        if any(job.draws for job in jobs):
            logs = log_probabilities(logits, tokens, jobs).tolist()
            for sequence, token, log_probability in zip(sequences, tokens.tolist(), logs, strict=True):
                if not sequence.ticket.over:
                    self._keep(sequence, [token], [log_probability])
        # The most that anybody wants, once for all rows; each gets its own number of them.
        count = max((job.logprobs for job in jobs if job.logprobs is not None), default=None)
        scored = None if count is None else [t.tolist() for t in top_log_probabilities(logits, tokens, max(count, 1))]
        self._advance_all(sequences, tokens.tolist(), scored)

    def _advance_all(self, sequences: Sequence[Running], tokens: Sequence[int], scored: list[Any] | None) -> None:
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
                self.give_up(sequence, "its token has no text")

    def _keep(self, sequence: Running, tokens: Sequence[int], logs: Sequence[float]) -> None:
        """Note tokens as they were drawn, with their log-probabilities, where that was asked for."""
        if sequence.job.draws and sequence.job.max_tokens:
            sequence.ticket.drawn += zip(tokens, logs, strict=True)
            sequence.ticket.versions += [self.version] * len(tokens)

    def _advance_far(self, sequence: Running, tokens: list[int], logs: list[float] | None) -> int:
        """Add the tokens of some steps to a sequence, up to the one that ends it; return how many of them there are."""
        ticket = sequence.ticket
        # A flight may be longer than what is left to say.
        tokens = tokens[: max(1, sequence.most - len(ticket.tokens))]
        ends = () if sequence.job.ignore_ends else self._text.ends
        ended = next((i for i, token in enumerate(tokens) if token in ends), None)
        taken = tokens if ended is None else tokens[: ended + 1]
        if logs is not None:
            self._keep(sequence, taken, logs[: len(taken)])
        # Stop strings and log-probabilities are looked at token by token.
        if sequence.text is not None or not sequence.job.max_tokens:
            for token in taken:
                self._advance(sequence, token, None, None)
            return len(taken)
        said = taken if ended is None else taken[:-1]
        ticket.tokens += said
        self._stats.completion_tokens += len(said)
        if ended is not None:
            self.finish(sequence, "stop")
        elif sequence.ends(len(ticket.tokens)):
            self.finish(sequence, "length")
        else:
            ticket.tell()
        return len(taken)

    def _advance(self, sequence: Running, token: int, log_probability: float | None, top: dict[int, float] | None) -> None:
        """Add one token to a sequence and end it where it has to end."""
        job, ticket = sequence.job, sequence.ticket
        if job.max_tokens == 0:
            self.finish(sequence, "length")
            return
        if token in self._text.ends and not job.ignore_ends:
            self.finish(sequence, "stop")
            return
        ticket.tokens.append(token)
        self._stats.completion_tokens += 1
        stopped, news = False, True
        if sequence.text is not None:
            piece, stopped = sequence.text.push(token, log_probability, top)
            if news := bool(piece.text or piece.tokens):
                ticket.add(piece)
        if stopped:
            self.finish(sequence, "stop")
        elif sequence.ends(len(ticket.tokens)):
            self.finish(sequence, "length")
        elif news:
            ticket.tell()

    def finish(self, sequence: Running, reason: str) -> None:
        """End a sequence."""
        # A running mean, by which those who find the queue full are told when to come again.
        self.seconds = 0.8 * self.seconds + 0.2 * (time.monotonic() - sequence.submitted)
        self._stats.finished += 1
        self._leave(sequence)
        sequence.ticket.add(Piece("", (), reason) if sequence.text is None else sequence.text.finish(reason))
        sequence.ticket.tell()

    def give_up(self, sequence: Running, why: str) -> None:
        """End a sequence that has failed; its reader is told why."""
        self._stats.failed += 1
        self._leave(sequence)
        sequence.ticket.add(GenerationFailed(why))
        sequence.ticket.tell()


def chosen(logits: Tensor, jobs: Sequence[GenerationJob], numbers: list[float]) -> Tensor:
    """Return a token for each row (N,), by one number in [0, 1) for each."""
    # Greedy alone is one pass; sorting for top-p and top-k costs several.
    if all(job.temperature == 0 for job in jobs):
        return logits.argmax(-1)
    columns = ([job.temperature for job in jobs], [job.top_p for job in jobs], [job.top_k for job in jobs], numbers)
    return choose(logits.float(), *map(torch.tensor, columns))


def log_probabilities(logits: Tensor, tokens: Tensor, jobs: Sequence[GenerationJob]) -> Tensor:
    """Return (N,) log-probabilities of tokens over the whole vocabulary at their jobs' temperatures."""
    temperatures = torch.tensor([job.temperature or 1.0 for job in jobs]).to(logits.device, non_blocking=True)
    return torch.log_softmax(logits.float() / temperatures[:, None], -1).gather(1, tokens[:, None])[:, 0]
