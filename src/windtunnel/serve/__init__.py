"""The server: OpenAI-compatible completions from a run's best checkpoint. torch and FastAPI are imported on use."""

from typing import TYPE_CHECKING, Any

from .server import serve

if TYPE_CHECKING:
    from .app import create_app
    from .engine import Engine, EngineDown, Job, QueueFull
    from .source import load_source

__all__ = ["Engine", "EngineDown", "Job", "QueueFull", "create_app", "load_source", "serve"]

_LAZY = {
    "Engine": "engine",
    "EngineDown": "engine",
    "Job": "engine",
    "QueueFull": "engine",
    "create_app": "app",
    "load_source": "source",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(name)
