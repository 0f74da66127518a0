"""Requests field by field, and the jobs that they ask for."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator, model_validator

from windtunnel.generate import GenerationJob, Generator
from windtunnel.recipe import Serve, UserError
from windtunnel.web import APIError

from .words import in_words

TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=1_000_000)]
Stop = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Zero = Annotated[float, Field(ge=0, le=0)]


# Strict: what is misspelt or of another type would otherwise be left out, and the client never know.
class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(_Strict):
    """Options of a streamed answer."""

    include_usage: bool = False
    continuous_usage_stats: bool = Field(False, description="usage in every event (vLLM's)")
    include_obfuscation: bool = False


class Sampled(_Strict):
    """What both kinds of request have. What this server has no use for is accepted at its neutral value only."""

    model: str = Field(max_length=256)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0, le=1_000_000, description="0: off (not in OpenAI's API)")
    ignore_eos: bool = Field(False, description="say max_tokens tokens, whatever they are (vLLM's; load generators ask for it)")
    n: int = Field(1, ge=1, le=128)
    stream: bool = False
    stream_options: StreamOptions | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=4)] | None = None
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    # Who asks, which no answer depends on: some clients always say it.
    user: str | None = Field(None, max_length=512)
    safety_identifier: str | None = Field(None, max_length=512)
    prompt_cache_key: str | None = Field(None, max_length=512)
    presence_penalty: Zero | None = None
    frequency_penalty: Zero | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = None

    @model_validator(mode="after")
    def _options_of_a_stream(self) -> Sampled:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options are for stream: true")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """Return the stop strings as a tuple."""
        return () if self.stop is None else (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class CompletionRequest(Sampled):
    """OpenAI's completion request."""

    prompt: str | list[str] | TokenIds | list[TokenIds] = ""
    max_tokens: int = Field(16, ge=0)
    logprobs: int | None = Field(None, ge=0, le=5)
    echo: bool = False
    best_of: Literal[1] | None = None
    suffix: None = None


class TextPart(_Strict):
    """One part of a message's content; there is only text."""

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """One message. Its role is one of OpenAI's or of the model's template; what else a client sends along must be null."""

    model_config = ConfigDict(extra="allow", strict=True)
    role: str = Field(max_length=64)
    content: str | list[TextPart] | None = None
    name: str | None = Field(None, max_length=256)

    @field_validator("content", mode="before")
    @classmethod
    def _only_text(cls, content: Any) -> Any:
        parts = content if isinstance(content, list) else []
        other = next((p["type"] for p in parts if isinstance(p, dict) and p.get("type", "text") != "text"), None)
        if other is not None:
            raise ValueError(f"content of type {str(other)[:100]!r} is not supported, only 'text'")
        return content

    @model_validator(mode="after")
    def _nothing_else(self) -> ChatMessage:
        other = next((key for key, value in (self.model_extra or {}).items() if value not in (None, [], {})), None)
        if other is not None:
            raise ValueError(f"{other!r} in a message is not supported")
        return self

    def plain(self) -> dict[str, str]:
        """Return the message as templates take it: the content is one text."""
        content = self.content or ""
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        return {"role": self.role, "content": text, **({} if self.name is None else {"name": self.name})}


class TextFormat(_Strict):
    """The only format of answers."""

    type: Literal["text"]


class ChatRequest(Sampled):
    """OpenAI's chat completion request."""

    messages: list[ChatMessage] = Field(min_length=1, max_length=10_000)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    response_format: TextFormat | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    parallel_tool_calls: bool | None = None
    store: Literal[False] | None = None
    metadata: dict[str, str] | None = None
    service_tier: Literal["auto", "default"] | None = None

    @model_validator(mode="after")
    def _alternatives_of_log_probabilities(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs is for logprobs: true")
        return self


Request = TypeVar("Request", bound=Sampled)


def parse_request(kind: type[Request], raw: bytes) -> Request:
    """Parse a body. Raises APIError: 400, with the name of the field that is wrong."""
    try:
        return kind.model_validate_json(raw)
    except ValidationError as error:
        problems = error.errors(include_url=False)
    if problems[0]["type"] == "json_invalid":
        raise APIError(400, "the request body is not valid JSON", code="invalid_json")
    # A null where a default exists means the default, as in OpenAI's API.
    null = {str(p["loc"][0]) for p in problems if p["loc"] and str(p["loc"][0]) in _NULLABLE}
    if null:
        data = json.loads(raw)
        # Parsed again without them: pydantic has no word for a null that means the default.
        kept = {key: value for key, value in data.items() if not (key in null and value is None)}
        if len(kept) < len(data):
            return parse_request(kind, json.dumps(kept).encode())
    first = problems[0]
    if not first["loc"]:
        of_all = first["type"] == "value_error"
        words = first["msg"].removeprefix("Value error, ") if of_all else "the request body must be a JSON object"
        raise APIError(400, words, param=words.split()[0] if of_all else None, code="invalid_value")
    name = str(first["loc"][0])
    # Known and not supported is another error than a slip of the pen.
    if first["type"] == "extra_forbidden" and name in _OF_OTHERS:
        raise APIError(400, f"{name!r} is not supported by this server", param=name, code="unsupported_parameter")
    if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
        raise APIError(400, f"unknown parameter {name[:100]!r}", param=name[:100], code="unknown_parameter")
    if name in _NEUTRAL:
        words = f"{name}: this value is not supported by this server, only {_NEUTRAL[name]}"
        raise APIError(400, words, param=name, code="unsupported_value")
    words, code = in_words(name, [p for p in problems if p["loc"] and str(p["loc"][0]) == name])
    raise APIError(400, words, param=name, code=code)


_NEUTRAL = {
    "presence_penalty": "0", "frequency_penalty": "0", "logit_bias": "{}", "best_of": "1", "suffix": "null",
    "response_format": '{"type": "text"}', "tools": "[]", "tool_choice": '"none" or "auto"', "store": "false",
    "service_tier": '"auto" or "default"',
}  # fmt: skip
"""Accepted where they ask for nothing -> how that is written."""
_OF_OTHERS = (
    "audio", "function_call", "functions", "modalities", "prediction", "reasoning_effort", "verbosity", "web_search_options",
)  # fmt: skip
"""Parameters of OpenAI's API that nothing here could follow."""

_NULLABLE = {
    name
    for kind in (CompletionRequest, ChatRequest)
    for name, field in kind.model_fields.items()
    if not field.is_required() and field.default is not None
}


@dataclass(frozen=True)
class Prepared:
    """A request that has passed every limit.

    Attributes:
        jobs: one for each choice.
        texts: the prompts' texts, for echo.
        prompt_tokens: of all prompts, each counted once.
    """

    request: CompletionRequest | ChatRequest
    jobs: list[GenerationJob]
    texts: list[str]
    prompt_tokens: int


def prepare(request: CompletionRequest | ChatRequest, generator: Generator, limits: Serve) -> Prepared:
    """Tokenize the prompts and check the limits. May take a while for long prompts: not for the event loop.

    Raises:
        APIError: 400, naming the parameter.
    """
    if isinstance(request, ChatRequest):
        return _prepare_chat(request, generator, limits)
    _check_size("max_tokens", request.max_tokens, limits)
    prompts = _prompts(request)
    _check_choices(len(prompts) * request.n, "prompt", limits)
    wanted = {"logprobs": request.logprobs, "score_prompt": request.echo and request.logprobs is not None}
    jobs: list[GenerationJob] = []
    texts: list[str] = []
    # One seed for a request: its choices count on from there, and differ.
    total, seed = 0, _seed(request)
    for prompt in prompts:
        ids = _encode(prompt, generator, limits)
        total += len(ids)
        # Decoded ids are what the model sees; a text stays as it was written.
        texts += [prompt if isinstance(prompt, str) else generator.text.decode(ids)] * request.n
        jobs += _jobs(request, ids, request.max_tokens, seed + len(jobs), **wanted)
    return Prepared(request, jobs, texts, total)


def _prepare_chat(request: ChatRequest, generator: Generator, limits: Serve) -> Prepared:
    asked = request.max_completion_tokens or request.max_tokens
    if asked is not None:
        _check_size("max_completion_tokens" if request.max_completion_tokens else "max_tokens", asked, limits)
    _check_choices(request.n, "n", limits)
    messages = [message.plain() for message in request.messages]
    # In bytes, and before the template runs: its time grows with what it is given.
    _check_bytes(sum(len(m["content"].encode("utf-8", "surrogatepass")) for m in messages), "messages", limits)
    try:
        ids = tuple(generator.text.chat(messages))
    except UserError as error:
        advice = f"; {error.fix}" if error.fix else ""
        raise APIError(400, f"messages: {error.message}{advice}", param="messages", code="invalid_value") from None
    _check_ids(ids, "messages", generator)
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    jobs = _jobs(request, ids, asked or limits.max_tokens, _seed(request), logprobs=logprobs)
    return Prepared(request, jobs, [""] * request.n, len(ids))


def _jobs(request: Sampled, ids: tuple[int, ...], max_tokens: int, seed: int, **wanted: Any) -> list[GenerationJob]:
    """Return a job for each choice of one prompt, each with a seed of its own."""
    drawn = request.temperature, request.top_p, request.top_k
    return [
        GenerationJob(ids, max_tokens, *drawn, seed + i, request.stops, ignore_ends=request.ignore_eos, **wanted)
        for i in range(request.n)
    ]


def _seed(request: Sampled) -> int:
    return secrets.randbits(48) if request.seed is None else request.seed


def _prompts(request: CompletionRequest) -> Sequence[str | list[int]]:
    prompt: Any = request.prompt
    if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
        return [prompt]
    if not prompt:
        raise APIError(400, "prompt: the list is empty", param="prompt", code="invalid_value")
    return list(prompt)


def _encode(prompt: str | list[int], generator: Generator, limits: Serve) -> tuple[int, ...]:
    if isinstance(prompt, list):
        # An empty list is an empty text, which the tokenizer begins in its own way.
        ids = tuple(prompt) or tuple(generator.text.encode(""))
    else:
        _check_bytes(len(prompt.encode("utf-8", "surrogatepass")), "prompt", limits)
        try:
            ids = tuple(generator.text.encode(prompt))
        except (UserError, UnicodeError) as error:
            message = error.message if isinstance(error, UserError) else "the text is not valid Unicode"
            raise APIError(400, f"prompt: {message}", param="prompt", code="unknown_character") from None
    _check_ids(ids, "prompt", generator)
    return ids


def _check_size(name: str, asked: int, limits: Serve) -> None:
    if asked > limits.max_tokens:
        raise APIError(400, f"{name}: at most {limits.max_tokens} (got {asked})", param=name, code="too_large")


def _check_choices(choices: int, name: str, limits: Serve) -> None:
    most = limits.slots + limits.queue
    if choices > most:
        raise APIError(400, f"{name}: {choices} choices asked for, at most {most}", param=name, code="too_many")


def _check_bytes(size: int, name: str, limits: Serve) -> None:
    if size > limits.max_prompt_bytes:
        raise APIError(400, f"{name}: {size:,} bytes, at most {limits.max_prompt_bytes:,}", param=name, code="too_large")


def _check_ids(ids: tuple[int, ...], name: str, generator: Generator) -> None:
    """Refuse a prompt that the model has no rows for, as of another model's tokenizer, or no room."""
    # Ids that clients send themselves: an index beyond the table would end the step of all sequences.
    wrong = next((i for i in ids if i >= generator.vocab), None)
    if wrong is not None:
        message = f"{name}: token id {wrong} is outside the model's vocabulary of {generator.vocab}"
        raise APIError(400, message, param=name, code="invalid_token")
    if len(ids) > generator.context:
        message = f"{name}: {len(ids):,} tokens, the model's context is {generator.context:,}"
        raise APIError(400, message, param=name, code="context_length_exceeded")
