"""The HTTP service's application: who may ask, what a request is, and how a verdict comes back."""

from __future__ import annotations

import asyncio
import hmac
import json
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from windtunnel.recipe import UserError

from .kinds import Verifiers
from .pool import Full, Pool
from .sandbox import Layers

RETRY_AFTER = "1"
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
KEYS = {"kind", "task", "answer"}


class TooLong(Exception):
    """The body is longer than allowed."""


def create_app(
    verifiers: Verifiers, pool: Pool, layers: Layers, *, token: str | None, local_only: bool, max_body: int
) -> ASGIApp:
    """The application. token: None lets everybody in who can reach it. local_only: only requests that call this machine by a
    loopback name, so that no web page can reach it by pointing its own name here. max_body: bytes."""
    app = FastAPI(openapi_url=None)

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
            kind, task, answer = _parsed(await _body(request, max_body))
            # Reading a task may start a thread's work (a kernel task is built), so not on the loop.
            verifier = await asyncio.to_thread(verifiers.make, kind, task)
            verdict = await asyncio.wrap_future(pool.submit(verifier, answer))
        except TooLong:
            return _error(413, f"the body is longer than {max_body:,} bytes")
        except UserError as error:
            return _error(422 if error.fix else 400, error.message, error.fix)
        except Full as error:
            return _error(429, f"the queue is full: {error}", "try again later", {"Retry-After": RETRY_AFTER})
        return JSONResponse(verdict.as_json(), 503 if verdict.infrastructure else 200)

    return Guard(app, token, local_only)


async def _body(request: Request, most: int) -> bytes:
    """The body, not read further than allowed whatever its announced length."""
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > most:
        raise TooLong
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise TooLong
        parts.append(part)
    return b"".join(parts)


def _parsed(body: bytes) -> tuple[str, Any, str]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UserError(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict) or set(value) != KEYS:
        raise UserError("the body is not an object with kind, task and answer")
    if not isinstance(value["kind"], str) or not isinstance(value["answer"], str):
        raise UserError("kind and answer must be strings")
    return value["kind"], value["task"], value["answer"]


def _error(status: int, message: str, fix: str | None = None, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": message, "fix": fix}, status, headers)


class Guard:
    """Middleware: bearer token, host and origin."""

    def __init__(self, app: ASGIApp, token: str | None, local_only: bool) -> None:
        self.app, self.token, self.local_only = app, token, local_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        name = host[: host.index("]") + 1] if host.startswith("[") and "]" in host else host.partition(":")[0]
        if self.local_only and name not in LOCAL_NAMES:
            return _error(403, "this server answers only on localhost")
        if "origin" in headers:
            return _error(403, "requests from web pages are not answered")
        if self.token is None or scope["path"] == "/health":
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self.token.encode()):
            return None
        return _error(401, "a valid bearer token is needed", None, {"WWW-Authenticate": "Bearer"})
