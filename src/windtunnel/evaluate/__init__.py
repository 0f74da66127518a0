"""What a model is worth: bits per byte, exact match on held-out problems, samples. torch is imported on use."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .loss import Measure, Validation, bits_per_byte, validation_loss
    from .match import ExactMatch, exact_match, wilson
    from .report import EvaluationReport, Sample, evaluate_run, export_run, load_run, samples
    from .text import Sampling, generate

_LAZY = {
    "EvaluationReport": "report",
    "ExactMatch": "match",
    "Measure": "loss",
    "Sample": "report",
    "Sampling": "text",
    "Validation": "loss",
    "bits_per_byte": "loss",
    "evaluate_run": "report",
    "exact_match": "match",
    "export_run": "report",
    "generate": "text",
    "load_run": "report",
    "samples": "report",
    "validation_loss": "loss",
    "wilson": "match",
}

__all__ = [
    "EvaluationReport",
    "ExactMatch",
    "Measure",
    "Sample",
    "Sampling",
    "Validation",
    "bits_per_byte",
    "evaluate_run",
    "exact_match",
    "export_run",
    "generate",
    "load_run",
    "samples",
    "validation_loss",
    "wilson",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(name)
