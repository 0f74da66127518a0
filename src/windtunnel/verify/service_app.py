"""The HTTP service's application: what a request is, and how a verdict comes back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from windtunnel.recipe import UserError
from windtunnel.web import CLIENT_GONE, Access, APIError, Guard, error_response, http_error, read_body

from .kinds import Verifiers
from .pool import Full, Pool
from .reading import shown, without_doubles
from .sandbox import Layers
from .types import Verdict

RETRY_AFTER = "1"
KEYS = {"kind", "task", "answer"}
EXAMPLE = 'send {"kind": "code", "task": {...}, "answer": "..."}'


def create_app(verifiers: Verifiers, pool: Pool, layers: Layers, *, access: Access, max_body: int) -> ASGIApp:
    """Return the application.

    layers: of the sandbox, told by GET /health.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    # /health without a key: what looks whether a service lives has none.
    app.add_middleware(Guard, access=access, max_body=max_body, public=("/health",))
    app.add_exception_handler(HTTPException, http_error)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {
            "status": "ok",
            "hardened": layers.hardened,
            "workers": verifiers.workers,
            "busy": pool.busy,
            "waiting": pool.waiting,
            "capacity": pool.capacity,
            "restarts": verifiers.restarts,
        }

    @app.post("/verify")
    async def verify(request: Request) -> JSONResponse:
        try:
            body = await read_body(request, max_body)
            verdict = await _unless_gone(request, _judge(verifiers, pool, body))
        except APIError as error:
            return error_response(error)
        except asyncio.CancelledError:  # it was told to stop, and the time for what is under way is over
            return error_response(APIError(503, "the service ends; nothing is known about this answer", code="stopping"))
        # A client that looks at the status alone must not take a machine's fault for a wrong answer.
        return JSONResponse(verdict.as_json(), 503 if verdict.infrastructure else 200)

    return app


async def _unless_gone(request: Request, judging: Coroutine[Any, Any, Verdict]) -> Verdict:
    """Return what judging comes to; where the client goes away meanwhile it is cancelled.

    What waits gives up its place in the queue, what is under way ends for nobody.
    """
    verdict, gone = asyncio.ensure_future(judging), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((verdict, gone), return_when=asyncio.FIRST_COMPLETED)
        if not verdict.done():
            raise APIError(CLIENT_GONE, "the client went away")
        return verdict.result()
    finally:
        verdict.cancel()
        gone.cancel()


async def _gone(request: Request) -> None:
    """Wait until the client has closed its connection. For a request whose body was read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _judge(verifiers: Verifiers, pool: Pool, body: bytes) -> Verdict:
    kind, task, answer = _parsed(body)
    try:
        # Reading a task may start a thread's work (a kernel task is built), so not on the loop.
        verifier = await asyncio.to_thread(verifiers.make, kind, task)
        return await asyncio.wrap_future(pool.submit(verifier, answer))
    except UserError as error:
        raise APIError(422, "; ".join(filter(None, (error.message, error.fix))), param="task", code="invalid_task") from None
    except Full as error:
        headers = {"Retry-After": RETRY_AFTER}
        raise APIError(429, f"the queue is full: {error}; try again later", code="queue_full", headers=headers) from None


def _parsed(body: bytes) -> tuple[str, Any, str]:
    try:
        value = json.loads(body, object_pairs_hook=without_doubles)
    except (ValueError, RecursionError) as error:
        raise APIError(400, f"the body is not JSON: {error}; {EXAMPLE}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise APIError(400, f"the body is not an object; {EXAMPLE}", code="invalid_value")
    if odd := sorted(KEYS.symmetric_difference(value)):
        word = "lacks" if odd[0] in KEYS else "has the unknown key"
        raise APIError(400, f"the body {word} {shown(odd[0])}; {EXAMPLE}", code="invalid_value")
    if not isinstance(value["kind"], str) or not isinstance(value["answer"], str):
        key = "kind" if not isinstance(value["kind"], str) else "answer"
        raise APIError(400, f"{key} is not a string", param=key, code="invalid_value")
    return value["kind"], value["task"], value["answer"]
