"""What a model is worth: bits per byte, exact match on held-out problems, samples. torch is imported on use."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .loss import Measure, Validation, bits_per_byte, validation_loss

_LAZY = {"Measure": "loss", "Validation": "loss", "bits_per_byte": "loss", "validation_loss": "loss"}

__all__ = ["Measure", "Validation", "bits_per_byte", "validation_loss"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(name)
