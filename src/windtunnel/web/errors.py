"""An answer that is an error, in the form OpenAI's clients know."""

from __future__ import annotations

from typing import Any


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
        """{"error": {message, type, param, code}}."""
        kinds = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
        kind = kinds.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def internal_error(request_id: str) -> APIError:
    """What a client is told when something broke: an id to find it in the log, no more."""
    return APIError(500, f"internal error; the log names request {request_id}", code="internal_error")
