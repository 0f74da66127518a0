"""A request's body, and what a failure looks like to the client."""

from __future__ import annotations

import asyncio

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse

from .errors import APIError

# Nobody is there to read this status; it is for the metrics (nginx's number).
CLIENT_GONE = 499
# For all of a body: whoever sends one without end would hold a connection for good.
BODY_SECONDS = 120.0
CODES = {404: "not_found", 405: "method_not_allowed"}


async def read_body(request: Request, most: int) -> bytes:
    """The body, of which at most so many bytes are ever held, whatever its announced length.

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
    """An error as an answer."""
    return JSONResponse(error.body(), error.status, error.headers)


async def http_error(request: Request, error: Exception) -> JSONResponse:
    """Handler of Starlette's HTTPException: unknown paths and methods, in the same form as every other error."""
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path[:200]}: {error.detail}"
    headers = dict(error.headers or {})
    return error_response(APIError(error.status_code, what, code=CODES.get(error.status_code, "http_error"), headers=headers))
