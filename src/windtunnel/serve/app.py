"""The HTTP server: OpenAI-compatible completions and chat completions, models, health, metrics and one page."""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from windtunnel.generate import GenerationFailed, Generator
from windtunnel.recipe import Serve
from windtunnel.web import CLIENT_GONE, Access, APIError, Guard, error_response, http_error, internal_error, read_body

from .answers import Answer, ChatAnswer, Hub, Run
from .metrics import Record, ServerMetrics
from .schema import ChatRequest, CompletionRequest, parse_request, prepare

STATIC = Path(__file__).parent / "static"
# JSON may write one byte of a prompt as six (\u001f); the rest is for the other fields.
ESCAPE, OTHER_FIELDS = 6, 65_536
# What needs no token: the page asks for one.
PUBLIC = ("/", "/health", "/favicon.ico", "/static/*")


def create_app(generator: Generator, *, model: str, limits: Serve, access: Access, created: int | None = None) -> FastAPI:
    """Return the application around a generator, which it closes when it shuts down.

    Args:
        generator: answers the requests.
        model: the id that requests name and /v1/models lists.
        limits: most tokens, prompt bytes and choices of a request.
        access: who may ask.
        created: the model's time, seconds since the epoch; None: now.
    """
    card = {
        "id": model,
        "object": "model",
        "created": created or int(time.time()),
        "owned_by": "windtunnel",
        "context_length": generator.context,
        "max_tokens": limits.max_tokens,
    }
    max_body = ESCAPE * limits.max_prompt_bytes + OTHER_FIELDS

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(generator.close)

    # No pages that describe the API: they load scripts from elsewhere, and need no token.
    app = FastAPI(title="windtunnel", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    metrics = ServerMetrics(generator)
    hub = functools.cache(Hub)  # of the event loop that the first request runs in
    app.add_middleware(Guard, access=access, max_body=max_body, public=PUBLIC)
    app.add_exception_handler(HTTPException, http_error)
    _add_models(app, card)
    _add_pages(app, generator, metrics, access.token is not None)

    async def answered(request: Request, kind: type[CompletionRequest] | type[ChatRequest]) -> Response:
        record = Record(metrics)
        try:
            parsed = parse_request(kind, await read_body(request, max_body))
            if parsed.model != model:
                raise _no_such_model(parsed.model, model)
            # Long prompts take a while to become tokens; the loop has other streams to send.
            prepared = await asyncio.to_thread(prepare, parsed, generator, limits)
            run = Run(generator, hub(), prepared.jobs, parsed.stream)
            answer = (ChatAnswer if kind is ChatRequest else Answer)(prepared, run, model)
            if parsed.stream:
                return EventStream(answer, request.state.request_id, record)
            body = await _unless_gone(request, answer)
        except APIError as error:
            # Refusals are counted too: a server that answers 429 all day is busy, and shows it.
            record.end(error.status)
            return error_response(error)
        except BaseException:
            record.end(500)
            raise
        record.end(200)
        return JSONResponse(body)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await answered(request, CompletionRequest)

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return await answered(request, ChatRequest)

    return app


class EventStream(StreamingResponse):
    """The streamed answer. However it ends, the slots are freed."""

    def __init__(self, answer: Answer, request_id: str, record: Record) -> None:
        self._answer, self._request_id, self._record = answer, request_id, record
        super().__init__(self._events(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until they end or the client goes away."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answer.run.cancel()
            self._record.end(CLIENT_GONE)  # unless it ended before

    async def _events(self) -> AsyncIterator[str]:
        try:
            async for event in self._answer.stream():
                self._record.first_text()
                yield event
            self._record.end(200)
        except GenerationFailed:
            self._record.end(500)
            yield f"data: {json.dumps(internal_error(self._request_id).body())}\n\n"


async def _unless_gone(request: Request, answer: Answer) -> dict[str, Any]:
    """Return the whole answer, or end it as soon as the client has closed the connection."""
    whole = asyncio.create_task(answer.whole())
    # Whoever hangs up would otherwise hold a slot until its answer is whole.
    gone = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({whole, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not whole.done():
            raise APIError(CLIENT_GONE, "the client went away")
        return whole.result()
    except GenerationFailed:
        raise internal_error(request.state.request_id) from None
    finally:
        whole.cancel()
        gone.cancel()
        answer.run.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _no_such_model(asked: str, there: str) -> APIError:
    words = f"the model {asked!r} does not exist; this server has {there!r}"
    return APIError(404, words, param="model", code="model_not_found")


def _add_models(app: FastAPI, card: dict[str, Any]) -> None:
    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [card]}

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str) -> Response:
        if name == card["id"]:
            return JSONResponse(card)
        return error_response(_no_such_model(name[:200], card["id"]))


def _add_pages(app: FastAPI, generator: Generator, metrics: ServerMetrics, needs_token: bool) -> None:
    # From this package alone: the page works where there is no internet.
    app.mount("/static", StaticFiles(directory=STATIC), name="static")

    @app.get("/")
    async def page() -> Response:
        return FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-cache"})

    @app.get("/health")
    async def health() -> Response:
        alive = generator.alive
        return JSONResponse({"status": "ok" if alive else "down", "authentication": needs_token}, 200 if alive else 503)

    @app.get("/metrics")
    async def prometheus() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
