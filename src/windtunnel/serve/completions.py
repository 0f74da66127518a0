"""POST /v1/completions: from a parsed request to jobs, and from their pieces to JSON or server-sent events."""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from windtunnel.data import Tokenizer
from windtunnel.recipe import Serve, UserError
from windtunnel.web import APIError

from .engine import Engine, EngineDown, Generation, Job, QueueFull
from .schema import CompletionRequest
from .text import Piece, TokenInfo

Event = tuple[int, Piece | EngineDown]


@dataclass(frozen=True)
class Prepared:
    """A request that has passed every limit: one job for each choice, and the prompts' texts for echo."""

    request: CompletionRequest
    jobs: list[Job]
    texts: list[str]
    prompt_tokens: int


def prepare(request: CompletionRequest, tokenizer: Tokenizer, context: int, limits: Serve) -> Prepared:
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
        ids = _encode(prompt, tokenizer, context, limits)
        total += len(ids)
        # Decoded ids are what the model sees; a text stays as it was written.
        texts += [prompt if isinstance(prompt, str) else tokenizer.decode(ids)] * request.n
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


def _encode(prompt: str | list[int], tokenizer: Tokenizer, context: int, limits: Serve) -> tuple[int, ...]:
    if isinstance(prompt, list):
        wrong = next((i for i in prompt if i >= tokenizer.vocab), None)
        if wrong is not None:
            raise APIError(
                422,
                f"prompt: token id {wrong} is outside the vocabulary of {tokenizer.vocab}",
                param="prompt",
                code="invalid_token",
            )
        ids = tuple(prompt) or (tokenizer.bos,)
    else:
        size = len(prompt.encode("utf-8", "surrogatepass"))
        if size > limits.max_prompt_bytes:
            raise APIError(422, f"prompt: {size:,} bytes, at most {limits.max_prompt_bytes:,}", param="prompt", code="too_large")
        # Documents begin with BOS, so prompts do.
        try:
            ids = tuple(int(i) for i in tokenizer.encode(prompt, bos=True))
        except (UserError, UnicodeError) as error:
            message = error.message if isinstance(error, UserError) else "the text is not valid Unicode"
            raise APIError(422, f"prompt: {message}", param="prompt", code="unknown_character") from None
    if len(ids) > context:
        message = f"prompt: {len(ids):,} tokens, the model's context is {context:,}"
        raise APIError(422, message, param="prompt", code="context_length_exceeded")
    return ids


class Run:
    """One request's generations. `events` yields (choice, piece) until each has finished; leaving it early cancels."""

    def __init__(self, engine: Engine, prepared: Prepared) -> None:
        self._queue: asyncio.Queue[Event] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def callback(index: int) -> Callable[[Piece | EngineDown], None]:
            def deliver(piece: Piece | EngineDown) -> None:
                loop.call_soon_threadsafe(self._queue.put_nowait, (index, piece))

            return deliver

        try:
            self.generations: list[Generation] = engine.submit(prepared.jobs, [callback(i) for i in range(len(prepared.jobs))])
        except QueueFull as full:
            headers = {"Retry-After": str(full.retry_after)}
            raise APIError(429, "the server is busy, try again later", code="queue_full", headers=headers) from None
        except EngineDown:
            raise APIError(503, "the server cannot generate any more; it has to be restarted", code="engine_down") from None

    async def events(self) -> AsyncIterator[tuple[int, Piece]]:
        """Pieces as they come. Raises EngineDown."""
        left = len(self.generations)
        try:
            while left:
                index, piece = await self._queue.get()
                if isinstance(piece, EngineDown):
                    raise piece
                left -= piece.finish is not None
                yield index, piece
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Free the slots. Does nothing to what has finished."""
        for generation in self.generations:
            generation.cancel()

    @property
    def completion_tokens(self) -> int:
        """Tokens generated so far, over all choices."""
        return sum(g.generated for g in self.generations)


class Answer:
    """Builds the response's JSON, whole or in chunks."""

    def __init__(self, prepared: Prepared, run: Run, model: str) -> None:
        self.prepared, self.run = prepared, run
        request = prepared.request
        self._echo, self._logprobs = request.echo, request.logprobs
        self._head = {"id": f"cmpl-{uuid.uuid4().hex}", "object": "text_completion", "created": int(time.time()), "model": model}

    async def whole(self) -> dict[str, Any]:
        """The complete response."""
        count = len(self.prepared.jobs)
        texts: list[list[str]] = [[] for _ in range(count)]
        infos: list[list[TokenInfo]] = [[] for _ in range(count)]
        reasons: list[str | None] = [None] * count
        async for index, piece in self.run.events():
            texts[index].append(piece.text)
            infos[index] += self._shifted(index, piece)
            reasons[index] = piece.finish
        choices = []
        for i in range(count):
            text = (self.prepared.texts[i] if self._echo else "") + "".join(texts[i])
            choices.append(self._choice(i, text, infos[i], reasons[i]))
        return {**self._head, "choices": choices, "usage": self.usage()}

    async def stream(self) -> AsyncIterator[str]:
        """Server-sent events, ended by [DONE]. Echoed prompts come first."""
        started = [not self._echo] * len(self.prepared.jobs)
        async for index, piece in self.run.events():
            text = piece.text
            if not started[index]:
                started[index], text = True, self.prepared.texts[index] + text
            yield self._event([self._choice(index, text, self._shifted(index, piece), piece.finish)])
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

    def _shifted(self, index: int, piece: Piece) -> list[TokenInfo]:
        """Offsets count from the prompt's beginning when it is echoed; the prompt's own pieces carry no text."""
        if not self._echo or not piece.tokens or not (piece.text or piece.finish):
            return list(piece.tokens)
        by = len(self.prepared.texts[index])
        return [TokenInfo(t.text, t.offset + by, t.log_probability, t.top) for t in piece.tokens]

    def _choice(self, index: int, text: str, infos: list[TokenInfo], reason: str | None) -> dict[str, Any]:
        logprobs = None
        if self._logprobs is not None:
            logprobs = {
                "tokens": [t.text for t in infos],
                "token_logprobs": [_number(t.log_probability) for t in infos],
                "top_logprobs": [t.top for t in infos] if self._logprobs else None,
                "text_offset": [t.offset for t in infos],
            }
        return {"text": text, "index": index, "logprobs": logprobs, "finish_reason": reason}


def _number(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value
