"""Models: shapes and rules as arithmetic (no torch), and the modules themselves, imported on use."""

from typing import TYPE_CHECKING, Any

from .rules import Derived, HyperParameters, derive
from .shape import GPTShape, gpt_shape

if TYPE_CHECKING:
    from .cache import KVCache, extend
    from .gpt import GPT, build_gpt
    from .weights import export_weights, load_weights, model_from_weights

__all__ = [
    "GPT",
    "Derived",
    "GPTShape",
    "HyperParameters",
    "KVCache",
    "build_gpt",
    "derive",
    "export_weights",
    "extend",
    "gpt_shape",
    "load_weights",
    "model_from_weights",
]

_LAZY = {"GPT": "gpt", "build_gpt": "gpt", "KVCache": "cache", "extend": "cache", "export_weights": "weights", "load_weights": "weights", "model_from_weights": "weights"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(name)
