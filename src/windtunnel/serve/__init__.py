"""The server: OpenAI-compatible completions from whatever generates. torch and FastAPI are imported on use."""

from typing import TYPE_CHECKING

from windtunnel import lazy

from .server import serve

if TYPE_CHECKING:
    from .app import create_app

__all__ = ["create_app", "serve"]

__getattr__ = lazy(__name__)
