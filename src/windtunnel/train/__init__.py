"""The training loop, its optimizer and its precision. torch is imported on use."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .optimizer import MuonAdamW, Scalars
    from .session import STARTED, train

_LAZY = {"train": "session", "STARTED": "session", "MuonAdamW": "optimizer", "Scalars": "optimizer"}

__all__ = ["STARTED", "MuonAdamW", "Scalars", "train"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(name)
