"""What every HTTP service of this package has in common: who may reach it, its socket, its guard, its errors and its end.

Starlette and uvicorn are imported on use.
"""

from typing import TYPE_CHECKING

from windtunnel import lazy

from .listen import Access, listening, url_of

if TYPE_CHECKING:
    from .guard import CLIENT_GONE, APIError, Guard, error_response, http_error, internal_error, read_body
    from .server import Server, serve_app

__all__ = [
    "CLIENT_GONE",
    "APIError",
    "Access",
    "Guard",
    "Server",
    "error_response",
    "http_error",
    "internal_error",
    "listening",
    "read_body",
    "serve_app",
    "url_of",
]

__getattr__ = lazy(__name__)
