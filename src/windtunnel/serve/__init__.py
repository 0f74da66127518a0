"""The server: OpenAI-compatible completions from whatever generates. torch and FastAPI are imported on use."""

from typing import TYPE_CHECKING, Any

from .server import serve

if TYPE_CHECKING:
    from .app import create_app

__all__ = ["create_app", "serve"]


def __getattr__(name: str) -> Any:
    if name == "create_app":
        from .app import create_app

        return create_app
    raise AttributeError(name)
