"""Models: shapes and rules as arithmetic (no torch), and the modules themselves, imported on use."""

from typing import TYPE_CHECKING, Any

from .rules import Derived, HyperParameters, derive
from .shape import GPTShape, gpt_shape

if TYPE_CHECKING:
    from .attention import deterministic
    from .cache import KVCache, extend
    from .fp8 import disable_fp8, enable_fp8
    from .gpt import GPT, build_gpt
    from .sampling import choose, top_log_probabilities
    from .weights import export_weights, load_weights, model_from_weights

__all__ = [
    "GPT",
    "Derived",
    "GPTShape",
    "HyperParameters",
    "KVCache",
    "build_gpt",
    "choose",
    "derive",
    "deterministic",
    "disable_fp8",
    "enable_fp8",
    "export_weights",
    "extend",
    "gpt_shape",
    "load_weights",
    "model_from_weights",
    "top_log_probabilities",
]

_LAZY = {
    "GPT": "gpt",
    "KVCache": "cache",
    "build_gpt": "gpt",
    "deterministic": "attention",
    "disable_fp8": "fp8",
    "enable_fp8": "fp8",
    "choose": "sampling",
    "export_weights": "weights",
    "extend": "cache",
    "load_weights": "weights",
    "model_from_weights": "weights",
    "top_log_probabilities": "sampling",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(name)
