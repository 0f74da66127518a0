"""The request of POST /v1/completions, field by field."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from windtunnel.web import APIError

TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=1_000_000)]
Stop = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class StreamOptions(BaseModel):
    """Options of a streamed answer."""

    model_config = ConfigDict(extra="forbid", strict=True)
    include_usage: bool = False
    include_obfuscation: bool = False


class CompletionRequest(BaseModel):
    """OpenAI's completion request. What this server has no use for is accepted at its neutral value only."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    model: str = Field(max_length=256)
    prompt: str | list[str] | TokenIds | list[TokenIds] = ""
    max_tokens: int = Field(16, ge=0)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0, le=1_000_000, description="0: off (not in OpenAI's API)")
    n: int = Field(1, ge=1, le=128)
    stream: bool = False
    stream_options: StreamOptions | None = None
    logprobs: int | None = Field(None, ge=0, le=5)
    echo: bool = False
    stop: Stop | Annotated[list[Stop], Field(max_length=4)] | None = None
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    user: str | None = Field(None, max_length=512)
    best_of: Literal[1] | None = None
    suffix: None = None
    presence_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    frequency_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings as a tuple."""
        return () if self.stop is None else (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


NULLABLE = ("max_tokens", "temperature", "top_p", "top_k", "n", "stream", "echo", "prompt")


def parse_request(raw: bytes) -> CompletionRequest:
    """Parse a body. Raises APIError: 400 when it is not JSON, 422 when a field is wrong, with the field's name."""
    try:
        return CompletionRequest.model_validate_json(raw)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False, include_context=False)
    if problems[0]["type"] == "json_invalid":
        raise APIError(400, "the request body is not valid JSON", code="invalid_json")
    # A null where a default exists means the default, as in OpenAI's API.
    null = {str(p["loc"][0]) for p in problems if p["loc"] and p["loc"][0] in NULLABLE}
    if null:
        import json

        data = json.loads(raw)
        kept = {key: value for key, value in data.items() if not (key in null and value is None)}
        if len(kept) < len(data):
            return parse_request(json.dumps(kept).encode())
    first = problems[0]
    if not first["loc"]:
        raise APIError(422, "the request body must be a JSON object", code="invalid_value")
    name = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        raise APIError(422, f"unknown parameter {name[:100]!r}", param=name[:100], code="unknown_parameter")
    messages = list(dict.fromkeys(p["msg"] for p in problems if p["loc"] and str(p["loc"][0]) == name))
    raise APIError(422, f"{name}: {' or: '.join(messages[:4])}", param=name, code="invalid_value")
