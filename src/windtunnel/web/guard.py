"""What stands between HTTP and an application: who may ask, how errors and headers look, how a body is read. Plain ASGI."""

from __future__ import annotations

import asyncio
import hmac
import logging
import uuid
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .listen import Access

log = logging.getLogger(__name__)

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
# For pages of other addresses that may ask.
FOREIGN_HEADERS = {
    "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
    "Access-Control-Allow-Headers": "Authorization, Content-Type",
    "Access-Control-Expose-Headers": "X-Request-Id, Retry-After",
    "Access-Control-Max-Age": "600",
    "Cross-Origin-Resource-Policy": "cross-origin",
}
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
# Nobody is there to read this status; it is for the metrics (nginx's number).
CLIENT_GONE = 499
# For all of a body: whoever sends one without end would hold a connection for good.
BODY_SECONDS = 120.0
CODES = {404: "not_found", 405: "method_not_allowed"}


class APIError(Exception):
    """An answer that is an error, in OpenAI's form. The message may name what the client sent, never internals."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.headers = status, message, param, code, headers or {}

    def body(self) -> dict[str, Any]:
        """Return {"error": {message, type, param, code}}."""
        kinds = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
        kind = kinds.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def internal_error(request_id: str) -> APIError:
    """Return what a client is told when something broke: an id to find it in the log, no more."""
    return APIError(500, f"internal error; the log names request {request_id}", code="internal_error")


@dataclass(frozen=True)
class Guard:
    """Middleware: bearer token, host and origin checks, body size, request ids, security headers, and no traceback ever.

    access: the token, if any; local_only answers only requests addressed to this machine by its loopback names, so that
    no web page can reach the server by pointing its own name here (DNS rebinding).
    max_body: bytes; a longer announced body is refused before it is read.
    public: patterns of paths that need no token ("/static/*").
    """

    app: ASGIApp
    access: Access
    max_body: int
    public: tuple[str, ...]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, as ASGI asks an application to."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        # Ours alone: one that a client sends could be made to look like another's in the log.
        request_id, started = uuid.uuid4().hex[:16], False
        origin = Headers(scope=scope).get("origin")
        foreign = origin if origin is not None and self.access.admits(origin) else None

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():  # an answer may have stricter or other ones of its own
                    headers.setdefault(name, value)
                headers["X-Request-Id"] = request_id
                if foreign is not None:
                    headers.update({"Access-Control-Allow-Origin": foreign, "Vary": "Origin", **FOREIGN_HEADERS})
            await send(message)

        scope.setdefault("state", {})["request_id"] = request_id
        try:
            self._check(scope)
            if foreign is not None and scope["method"] == "OPTIONS":  # asked before the request itself, without a token
                await Response(status_code=204)(scope, receive, send_with_headers)
                return
            await self.app(scope, receive, send_with_headers)
        except APIError as error:
            await error_response(error)(scope, receive, send_with_headers)
        except asyncio.CancelledError:  # the server is ending and its patience with this request too
            if not started:
                ending = APIError(503, "the server is ending", code="ending", headers={"Connection": "close"})
                await error_response(ending)(scope, receive, send_with_headers)
        except Exception:  # whatever went wrong is for the log, not for the client
            log.exception("request %s failed", request_id)
            if started:
                raise  # the client sees a broken answer, which it is
            await error_response(internal_error(request_id))(scope, receive, send_with_headers)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self.access.local_only and _name(host) not in LOCAL_NAMES:
            raise APIError(403, "this server answers only on localhost", code="forbidden_host")
        origin = headers.get("origin")
        admitted = origin is not None and self.access.admits(origin)
        # Browsers send Origin with what a foreign page asks: without this any page could use a server on localhost.
        if origin is not None and urlsplit(origin).netloc != host and not admitted:
            raise APIError(403, "requests from other web pages are not answered", code="forbidden_origin")
        asking_before = admitted and scope["method"] == "OPTIONS"
        if self.access.token is not None and not self._is_public(scope["path"]) and not asking_before:
            _check_token(headers.get("authorization", ""), self.access.token)
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self.max_body:
            raise APIError(413, f"the request body has {int(length):,} bytes, at most {self.max_body:,}", code="too_large")

    def _is_public(self, path: str) -> bool:
        return any(fnmatchcase(path, one) for one in self.public)


def _check_token(authorization: str, token: str) -> None:
    scheme, _, given = authorization.partition(" ")
    # Equally long for every wrong token: else its letters could be guessed by the time each takes.
    right = hmac.compare_digest(given.strip().encode(), token.encode())
    if scheme.lower() != "bearer" or not right:
        challenge = {"WWW-Authenticate": "Bearer"}
        raise APIError(401, "a valid bearer token is needed", code="invalid_api_key", headers=challenge)


def _name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


async def read_body(request: Request, most: int) -> bytes:
    """Return the body, of which at most so many bytes are ever held, whatever its announced length.

    Raises:
        APIError: 408 when it takes too long; 413 when it is longer; 499 when the client went away.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise APIError(413, f"the request body is longer than {most:,} bytes", code="too_large")
    except TimeoutError:
        what = f"the request body did not arrive within {BODY_SECONDS:g} s: {len(body):,} bytes of it did"
        raise APIError(408, what, code="too_slow", headers={"Connection": "close"}) from None
    except ClientDisconnect:
        raise APIError(CLIENT_GONE, "the client went away") from None
    return bytes(body)


def error_response(error: APIError) -> JSONResponse:
    """Return an error as an answer."""
    return JSONResponse(error.body(), error.status, error.headers)


async def http_error(request: Request, error: Exception) -> JSONResponse:
    """Handle Starlette's HTTPException: unknown paths and methods, in the same form as every other error."""
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path[:200]}: {error.detail}"
    headers = dict(error.headers or {})
    return error_response(APIError(error.status_code, what, code=CODES.get(error.status_code, "http_error"), headers=headers))
