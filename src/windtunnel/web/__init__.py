"""What every HTTP service of this package has in common: who may reach it, its socket, its guard, its errors and its end.

Starlette and uvicorn are imported on use.
"""

from typing import TYPE_CHECKING, Any

from .errors import APIError, internal_error
from .listen import Access, listening, url_of
from .server import serve_app

if TYPE_CHECKING:
    from .body import CLIENT_GONE, error_response, http_error, read_body
    from .guard import Guard

__all__ = [
    "CLIENT_GONE",
    "APIError",
    "Access",
    "Guard",
    "error_response",
    "http_error",
    "internal_error",
    "listening",
    "read_body",
    "serve_app",
    "url_of",
]

_LAZY = {"CLIENT_GONE": "body", "Guard": "guard", "error_response": "body", "http_error": "body", "read_body": "body"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(name)
