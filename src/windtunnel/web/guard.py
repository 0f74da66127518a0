"""What stands before every request, as plain ASGI: who may ask, and how the answer's headers look."""

from __future__ import annotations

import hmac
import logging
import uuid
from dataclasses import dataclass
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .body import error_response
from .errors import APIError, internal_error
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
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


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
            await error_response(error)(scope, receive, send_with_headers)
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
        if origin is not None and urlsplit(origin).netloc != host:
            raise APIError(403, "requests from other web pages are not answered", code="forbidden_origin")
        if self.access.token is not None and not self._is_public(scope["path"]):
            _check_token(headers.get("authorization", ""), self.access.token)
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self.max_body:
            raise APIError(413, f"the request body has {int(length):,} bytes, at most {self.max_body:,}", code="too_large")

    def _is_public(self, path: str) -> bool:
        return any(fnmatchcase(path, one) for one in self.public)


def _check_token(authorization: str, token: str) -> None:
    scheme, _, given = authorization.partition(" ")
    right = hmac.compare_digest(given.strip().encode(), token.encode())
    if scheme.lower() != "bearer" or not right:
        challenge = {"WWW-Authenticate": "Bearer"}
        raise APIError(401, "a valid bearer token is needed", code="invalid_api_key", headers=challenge)


def _name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
