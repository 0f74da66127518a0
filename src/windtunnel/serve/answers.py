"""From a request's jobs to JSON or server-sent events: completions and chat completions."""

from __future__ import annotations

import asyncio
import json
import math
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from windtunnel.generate import GenerationFailed, GenerationJob, Generator, Piece, QueueFull, Ticket, TokenInfo
from windtunnel.web import APIError

from .schema import ChatRequest, CompletionRequest, Prepared, StreamOptions

# News goes out in rounds, at least so far apart: what has come in between goes out together. Every send costs the event loop
# about as much as a small model's step costs the engine, and both are in one process.
GAP_SECONDS = 0.02
# Rounds of text take at most this share of the time, and are for that up to so far apart: ten a second still read as a stream.
SHARE = 0.05
MOST_SECONDS = 0.1


class Rounds:
    """Sets events in the loop for another thread, with one wake-up for all that came since the last round.

    Args:
        most: seconds between two rounds at most; up to there, they are as far apart as `SHARE` asks for.
    """

    def __init__(self, most: float = GAP_SECONDS) -> None:
        self._loop = asyncio.get_running_loop()
        self._news: deque[asyncio.Event] = deque()
        self._most, self._next = most, 0.0
        self._pending = False

    def add(self, news: asyncio.Event) -> None:
        """Set an event in the next round; called from any thread."""
        self._news.append(news)
        if not self._pending:
            self._pending = True
            self._loop.call_soon_threadsafe(self._schedule)

    def _schedule(self) -> None:
        if self._next > self._loop.time():
            self._loop.call_at(self._next, self._deliver)
        else:
            self._deliver()

    def _deliver(self) -> None:
        # Before the queue is emptied: what another thread appends after the last `popleft` finds False and wakes the loop again.
        self._pending, began = False, self._loop.time()
        while self._news:
            self._news.popleft().set()
        self._next = began + GAP_SECONDS
        self._loop.call_soon(self._delivered, began)  # behind the tasks that these events have woken

    def _delivered(self, began: float) -> None:
        spent = self._loop.time() - began
        self._next = began + max(GAP_SECONDS, min(self._most, spent / SHARE))


class Hub:
    """Brings news from the generator's thread to the requests in the event loop.

    A request's first text and its end wait for nobody; the text between them may, for longer the more streams there are.
    """

    def __init__(self) -> None:
        self._soon, self._text = Rounds(), Rounds(MOST_SECONDS)

    def notify(self, news: asyncio.Event, soon: bool) -> None:
        """Set an event in the loop; called from the generator's thread."""
        # Two rounds, so that a first word is not held up by the text of a hundred others.
        (self._soon if soon else self._text).add(news)


class Run:
    """One request's tickets. `events` yields what each wake-up brings until each has finished; leaving it early cancels."""

    def __init__(self, generator: Generator, hub: Hub, jobs: list[GenerationJob], stream: bool) -> None:
        self._news, self._begun = asyncio.Event(), False
        self.text = generator.text
        try:
            self.tickets = generator.submit(jobs, lambda ticket: self._tell(hub, ticket), stream=stream)
        except QueueFull as full:
            # Clients of OpenAI's API wait so long by themselves.
            headers = {"Retry-After": str(full.retry_after)}
            raise APIError(429, "the server is busy, try again later", code="queue_full", headers=headers) from None
        except GenerationFailed:
            raise APIError(503, "the server is ending", code="engine_down") from None

    def _tell(self, hub: Hub, ticket: Ticket) -> None:
        hub.notify(self._news, soon=ticket.over or not self._begun)

    async def events(self) -> AsyncIterator[list[tuple[int, Piece]]]:
        """Yield lists of (choice, piece), as they come. Raises GenerationFailed."""
        left: dict[int, Ticket] = dict(enumerate(self.tickets))
        try:
            while left:
                await self._news.wait()
                self._news.clear()  # before the pieces are taken: one that comes meanwhile sets it again
                found: list[tuple[int, Piece]] = []
                for index, ticket in list(left.items()):
                    if not (ticket.stream or ticket.over):
                        continue
                    try:
                        piece = ticket.take()
                    except GenerationFailed:
                        if found:
                            yield found  # what the others said before
                        raise
                    if piece.finish:
                        del left[index]
                    if piece.text or piece.tokens or piece.finish:
                        found.append((index, piece))
                if found:
                    self._begun = True
                    yield found
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Free the slots. Does nothing to what has finished."""
        for ticket in self.tickets:
            ticket.cancel()

    @property
    def completion_tokens(self) -> int:
        """Return how many tokens were generated so far, over all choices."""
        return sum(len(ticket.tokens) for ticket in self.tickets)


class Answer:
    """Builds a response's JSON, whole or in events.

    Args:
        prepared: the request.
        run: its tickets.
        model: the model's id.
    """

    kind, kind_of_event, prefix = "text_completion", "text_completion", "cmpl"

    def __init__(self, prepared: Prepared, run: Run, model: str) -> None:
        self.prepared, self.run = prepared, run
        self._head = {"id": f"{self.prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}
        self._json = json.JSONEncoder(ensure_ascii=False).encode
        # Encoded once: a streamed answer has hundreds of events that begin alike.
        self._opening = self._json({**self._head, "object": self.kind_of_event}).removesuffix("}")  # of every event

    async def whole(self) -> dict[str, Any]:
        """Return the complete response, once every choice is there."""
        pieces = [Piece("")] * len(self.prepared.jobs)
        async for found in self.run.events():
            for index, piece in found:
                pieces[index] = piece  # of a job that is not streamed there is one
        choices = [self.choice(i, piece) for i, piece in enumerate(pieces)]
        return {**self._head, "object": self.kind, "choices": choices, "usage": self._usage()}

    async def stream(self) -> AsyncIterator[str]:
        """Yield server-sent events, those of one wake-up together, ended by [DONE]."""
        options = self.prepared.request.stream_options or StreamOptions()
        begun: set[int] = set()
        left = len(self.prepared.jobs)
        async for found in self.run.events():
            usage = self._usage() if options.include_usage and options.continuous_usage_stats else None
            events = []
            for index, piece in found:
                events += [self._event([choice], usage) for choice in self.chunks(index, piece, first=index not in begun)]
                begun.add(index)
                # By choices, not by events: the end goes out with the last text, without another wake-up.
                left -= piece.finish is not None
            if not left:
                events += [self._event([], self._usage())] if options.include_usage else []
                events.append("data: [DONE]\n\n")
            yield "".join(events)

    def choice(self, index: int, piece: Piece) -> dict[str, Any]:
        """Return one choice of a whole answer."""
        return self._choice(index, piece, first=True)

    def chunks(self, index: int, piece: Piece, first: bool) -> list[dict[str, Any]]:
        """Return one piece of a choice as the choices of one or several events. Echoed prompts come first."""
        return [self._choice(index, piece, first)]

    def _usage(self) -> dict[str, int]:
        """Count the tokens of prompts (each once, however many choices) and of completions."""
        prompt, made = self.prepared.prompt_tokens, self.run.completion_tokens
        return {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, int] | None) -> str:
        end = "" if usage is None else f', "usage": {self._json(usage)}'
        return f'data: {self._opening}, "choices": {self._json(choices)}{end}}}\n\n'

    def _choice(self, index: int, piece: Piece, first: bool) -> dict[str, Any]:
        request = self.prepared.request
        assert isinstance(request, CompletionRequest)
        text, infos, logprobs = piece.text, list(piece.tokens), None
        if request.echo:
            # Offsets count from the prompt's beginning then.
            by = len(self.prepared.texts[index])
            infos = [TokenInfo(t.token, t.offset + by, t.log_probability, t.top) for t in infos]
            if first:
                text, infos = self.prepared.texts[index] + text, [*self.run.tickets[index].prompt_infos, *infos]
        if request.logprobs is not None:
            logprobs = {
                "tokens": [self.run.text.name(t.token) for t in infos],
                "token_logprobs": [_number(t.log_probability) for t in infos],
                "top_logprobs": [self._top(t) for t in infos],
                "text_offset": [t.offset for t in infos],
            }
        return {"text": text, "index": index, "logprobs": logprobs, "finish_reason": piece.finish}

    def _top(self, token: TokenInfo) -> dict[str, float] | None:
        """Return log-probabilities of the likeliest tokens and of the one that was taken: one more than asked for, like OpenAI's.

        None: nothing came before the token.
        """
        value = _number(token.log_probability)
        if value is None:
            return None
        found: dict[str, float] = {}
        for other, p in [*(token.top or {}).items(), (token.token, value)]:
            # Two tokens may have the same text, such as a letter and its byte: the likelier one's stays.
            name = self.run.text.name(other)
            found[name] = max(p, found.get(name, p))
        return found


class ChatAnswer(Answer):
    """The answer to a conversation."""

    kind, kind_of_event, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def choice(self, index: int, piece: Piece) -> dict[str, Any]:
        """Return one choice of a whole answer."""
        message = {"role": "assistant", "content": piece.text, "refusal": None}
        return {"index": index, "message": message, "logprobs": self._logprobs(piece), "finish_reason": piece.finish}

    def chunks(self, index: int, piece: Piece, first: bool) -> list[dict[str, Any]]:
        """Return a piece as events: the role first, the text next, and the reason for the end in an event of its own."""
        found: list[tuple[dict[str, str], Any, str | None]] = []
        if first:
            found.append(({"role": "assistant", "content": ""}, None, None))
        if piece.text or piece.tokens:
            found.append(({"content": piece.text}, self._logprobs(piece), None))
        if piece.finish:
            found.append(({}, None, piece.finish))
        return [{"index": index, "delta": d, "logprobs": p, "finish_reason": reason} for d, p, reason in found]

    def _logprobs(self, piece: Piece) -> dict[str, Any] | None:
        request = self.prepared.request
        assert isinstance(request, ChatRequest)
        if not request.logprobs:
            return None

        text = self.run.text

        def one(token: int, value: float | None) -> dict[str, Any]:
            # All tokens' bytes together are the content's, also where a character is split over several.
            own = text.piece(token)
            return {"token": text.name(token), "logprob": _number(value), "bytes": None if own is None else list(own)}

        content = [
            one(t.token, t.log_probability) | {"top_logprobs": [one(other, p) for other, p in (t.top or {}).items()]}
            for t in piece.tokens
        ]
        return {"content": content, "refusal": None}


def _number(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value
