"""POST /v1/completions: from a parsed request to jobs, and from their pieces to JSON or server-sent events."""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from windtunnel.generate import GenerationFailed, Generator, Job, Piece, QueueFull, Ticket, TokenInfo
from windtunnel.recipe import Serve, UserError
from windtunnel.web import APIError

from .schema import CompletionRequest

# Streams are told at most so often: what has come in between goes out together. Every event costs the event loop about as much
# as a small model's step costs the engine, and both are in one process.
GAP_SECONDS = 0.02


@dataclass(frozen=True)
class Prepared:
    """A request that has passed every limit: one job for each choice, and the prompts' texts for echo."""

    request: CompletionRequest
    jobs: list[Job]
    texts: list[str]
    prompt_tokens: int


def prepare(request: CompletionRequest, generator: Generator, limits: Serve) -> Prepared:
    """Tokenize the prompts and check the limits. May take a while for long prompts: not for the event loop.

    Raises:
        APIError: 422, naming the parameter.
    """
    if request.max_tokens > limits.max_tokens:
        raise APIError(
            422, f"max_tokens: at most {limits.max_tokens} (got {request.max_tokens})", param="max_tokens", code="too_large"
        )
    prompts = _prompts(request)
    choices, most = len(prompts) * request.n, limits.slots + limits.queue
    if choices > most:
        raise APIError(422, f"prompt: {choices} choices asked for, at most {most}", param="prompt", code="too_many")
    jobs: list[Job] = []
    texts: list[str] = []
    total = 0
    base = secrets.randbits(48) if request.seed is None else request.seed
    for prompt in prompts:
        ids = _encode(prompt, generator, limits)
        total += len(ids)
        # Decoded ids are what the model sees; a text stays as it was written.
        texts += [prompt if isinstance(prompt, str) else generator.text.decode(ids)] * request.n
        for _ in range(request.n):
            jobs.append(_job(request, ids, base + len(jobs)))
    return Prepared(request, jobs, texts, total)


def _job(request: CompletionRequest, ids: tuple[int, ...], seed: int) -> Job:
    return Job(
        prompt=ids,
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        seed=seed,
        stop=request.stops,
        logprobs=request.logprobs,
        score_prompt=request.echo and request.logprobs is not None,
    )


def _prompts(request: CompletionRequest) -> list[str | list[int]]:
    prompt: Any = request.prompt
    if isinstance(prompt, str):
        return [prompt]
    if prompt and isinstance(prompt[0], int):
        return [prompt]
    if not prompt:
        raise APIError(422, "prompt: the list is empty", param="prompt", code="invalid_value")
    return list(prompt)


def _encode(prompt: str | list[int], generator: Generator, limits: Serve) -> tuple[int, ...]:
    if isinstance(prompt, list):
        wrong = next((i for i in prompt if i >= generator.vocab), None)
        if wrong is not None:
            message = f"prompt: token id {wrong} is outside the vocabulary of {generator.vocab}"
            raise APIError(422, message, param="prompt", code="invalid_token")
        ids = tuple(prompt) or tuple(generator.text.encode(""))
    else:
        size = len(prompt.encode("utf-8", "surrogatepass"))
        if size > limits.max_prompt_bytes:
            raise APIError(422, f"prompt: {size:,} bytes, at most {limits.max_prompt_bytes:,}", param="prompt", code="too_large")
        try:
            ids = tuple(generator.text.encode(prompt))
        except (UserError, UnicodeError) as error:
            message = error.message if isinstance(error, UserError) else "the text is not valid Unicode"
            raise APIError(422, f"prompt: {message}", param="prompt", code="unknown_character") from None
    if len(ids) > generator.context:
        message = f"prompt: {len(ids):,} tokens, the model's context is {generator.context:,}"
        raise APIError(422, message, param="prompt", code="context_length_exceeded")
    return ids


class Hub:
    """Brings news from the generator's thread to the requests in the event loop, with one wake-up for all of them."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._news: deque[asyncio.Event] = deque()
        self._told = 0.0
        self._pending = False

    def notify(self, news: asyncio.Event) -> None:
        """From the generator's thread: set an event in the loop, soon."""
        self._news.append(news)
        if not self._pending:
            self._pending = True
            self._loop.call_soon_threadsafe(self._schedule)

    def _schedule(self) -> None:
        wait = self._told + GAP_SECONDS - self._loop.time()
        if wait > 0:
            self._loop.call_later(wait, self._deliver)
        else:
            self._deliver()

    def _deliver(self) -> None:
        self._told, self._pending = self._loop.time(), False
        while self._news:
            self._news.popleft().set()


class Run:
    """One request's tickets. `events` yields (choice, piece) until each has finished; leaving it early cancels."""

    def __init__(self, generator: Generator, hub: Hub, jobs: list[Job], stream: bool) -> None:
        self._news = asyncio.Event()
        try:
            self.tickets = generator.submit(jobs, lambda _: hub.notify(self._news), stream=stream)
        except QueueFull as full:
            headers = {"Retry-After": str(full.retry_after)}
            raise APIError(429, "the server is busy, try again later", code="queue_full", headers=headers) from None
        except GenerationFailed:
            raise APIError(503, "the server is ending", code="engine_down") from None

    async def events(self) -> AsyncIterator[tuple[int, Piece]]:
        """Pieces as they come. Raises GenerationFailed."""
        left: dict[int, Ticket] = dict(enumerate(self.tickets))
        try:
            while left:
                await self._news.wait()
                self._news.clear()
                for index, ticket in list(left.items()):
                    if not (ticket.stream or ticket.over):
                        continue
                    piece = ticket.take()
                    if piece.finish:
                        del left[index]
                    if piece.text or piece.tokens or piece.finish:
                        yield index, piece
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Free the slots. Does nothing to what has finished."""
        for ticket in self.tickets:
            ticket.cancel()

    @property
    def completion_tokens(self) -> int:
        """Tokens generated so far, over all choices."""
        return sum(len(ticket.tokens) for ticket in self.tickets)


class Answer:
    """Builds the response's JSON, whole or in chunks."""

    def __init__(self, prepared: Prepared, run: Run, model: str) -> None:
        self.prepared, self.run = prepared, run
        request = prepared.request
        self._echo, self._logprobs = request.echo, request.logprobs
        self._head = {"id": f"cmpl-{uuid.uuid4().hex}", "object": "text_completion", "created": int(time.time()), "model": model}

    async def whole(self) -> dict[str, Any]:
        """The complete response."""
        pieces: list[Piece] = [Piece("")] * len(self.prepared.jobs)
        async for index, piece in self.run.events():
            pieces[index] = piece  # of a job that is not streamed there is one
        choices = [self._choice(i, piece, first=True) for i, piece in enumerate(pieces)]
        return {**self._head, "choices": choices, "usage": self.usage()}

    async def stream(self) -> AsyncIterator[str]:
        """Server-sent events, ended by [DONE]. Echoed prompts come first."""
        begun: set[int] = set()
        async for index, piece in self.run.events():
            yield self._event([self._choice(index, piece, first=index not in begun)])
            begun.add(index)
        options = self.prepared.request.stream_options
        if options is not None and options.include_usage:
            yield self._event([], self.usage())
        yield "data: [DONE]\n\n"

    def usage(self) -> dict[str, int]:
        """Tokens of prompts (each once, however many choices) and of completions."""
        prompt, made = self.prepared.prompt_tokens, self.run.completion_tokens
        return {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> str:
        data = {**self._head, "choices": choices, **({"usage": usage} if usage is not None else {})}
        return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"

    def _choice(self, index: int, piece: Piece, first: bool) -> dict[str, Any]:
        text, infos, logprobs = piece.text, list(piece.tokens), None
        if self._echo:
            # Offsets count from the prompt's beginning then.
            by = len(self.prepared.texts[index])
            infos = [TokenInfo(t.text, t.offset + by, t.log_probability, t.top) for t in infos]
            if first:
                text, infos = self.prepared.texts[index] + text, [*self.run.tickets[index].prompt_infos, *infos]
        if self._logprobs is not None:
            logprobs = {
                "tokens": [t.text for t in infos],
                "token_logprobs": [_number(t.log_probability) for t in infos],
                "top_logprobs": [t.top for t in infos] if self._logprobs else None,
                "text_offset": [t.offset for t in infos],
            }
        return {"text": text, "index": index, "logprobs": logprobs, "finish_reason": piece.finish}


def _number(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value
