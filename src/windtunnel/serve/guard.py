"""What stands before every request, as plain ASGI: who may ask, and how the answer's headers look."""

from __future__ import annotations

import hmac
import json
import logging
import uuid
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .schema import APIError

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
OPEN = ("/", "/health", "/favicon.ico")
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Guard:
    """Middleware: bearer token, host and origin checks, body size, request ids, security headers, and no traceback ever.

    token: None lets everybody in. local_only: answer only requests addressed to this machine by its
    loopback names, so that no web page can reach the server by pointing its own name here (DNS rebinding).
    max_body: bytes; a longer announced body is refused before it is read.
    """

    app: ASGIApp
    token: str | None
    local_only: bool
    max_body: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id, started = uuid.uuid4().hex[:16], False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                headers.update({**SECURITY_HEADERS, "X-Request-Id": request_id})
            await send(message)

        scope.setdefault("state", {})["request_id"] = request_id
        try:
            self._check(scope)
            await self.app(scope, receive, send_with_headers)
        except APIError as error:
            await _refuse(error, send_with_headers)
        except Exception:
            log.exception("request %s failed", request_id)
            if started:
                raise  # the client sees a broken answer, which it is
            await _refuse(internal_error(request_id), send_with_headers)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self.local_only and _name(host) not in LOCAL_NAMES:
            raise APIError(403, "this server answers only on localhost", code="forbidden_host")
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            raise APIError(403, "requests from other web pages are not answered", code="forbidden_origin")
        path = scope["path"]
        if self.token is not None and path not in OPEN and not path.startswith("/static/"):
            scheme, _, given = headers.get("authorization", "").partition(" ")
            right = hmac.compare_digest(given.strip().encode(), self.token.encode())
            if scheme.lower() != "bearer" or not right:
                challenge = {"WWW-Authenticate": "Bearer"}
                raise APIError(401, "a valid bearer token is needed", code="invalid_api_key", headers=challenge)
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self.max_body:
            raise APIError(413, f"the request body has {int(length):,} bytes, at most {self.max_body:,}", code="too_large")


def internal_error(request_id: str) -> APIError:
    """What a client is told when something broke: an id to find it in the log, no more."""
    return APIError(500, f"internal error; the log names request {request_id}", code="internal_error")


def _name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


async def _refuse(error: APIError, send: Send) -> None:
    body = json.dumps(error.body()).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
    raw = [(k.lower().encode(), v.encode()) for k, v in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
