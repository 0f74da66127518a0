"""Recipes: what to train. Strict YAML, pydantic, importable without torch.

Errors come at once; the schema is imported on use, so that `windtunnel --help` does not wait for pydantic.
"""

from typing import TYPE_CHECKING, Any

from .errors import GateFailed, UserError

if TYPE_CHECKING:
    from .finetuning import GRPO, FineTune, HuggingFaceModel, LayoutChoice, LoRA
    from .load import dump_recipe, load_recipe, recipe_names, template_names, validate
    from .scale import scale_model
    from .schema import (
        ARITHMETIC_ALPHABET,
        ArithmeticCorpus,
        Bands,
        BPETokenizer,
        Budget,
        CharacterTokenizer,
        Checkpoints,
        CountedCorpus,
        Data,
        Evaluate,
        GPTModel,
        Optimizer,
        Pretrain,
        Recipe,
        Schedule,
        Serve,
        StdlibCorpus,
        TextCorpus,
    )
    from .units import Every, parse_count, parse_dollars, parse_every, parse_hours

__all__ = [
    "ARITHMETIC_ALPHABET",
    "GRPO",
    "ArithmeticCorpus",
    "BPETokenizer",
    "Bands",
    "Budget",
    "CharacterTokenizer",
    "Checkpoints",
    "CountedCorpus",
    "Data",
    "Evaluate",
    "Every",
    "FineTune",
    "GPTModel",
    "GateFailed",
    "HuggingFaceModel",
    "LayoutChoice",
    "LoRA",
    "Optimizer",
    "Pretrain",
    "Recipe",
    "Schedule",
    "Serve",
    "StdlibCorpus",
    "TextCorpus",
    "UserError",
    "dump_recipe",
    "load_recipe",
    "parse_count",
    "parse_dollars",
    "parse_every",
    "parse_hours",
    "recipe_names",
    "scale_model",
    "template_names",
    "validate",
]

_MODULES = {
    "finetuning": ("GRPO", "FineTune", "HuggingFaceModel", "LayoutChoice", "LoRA"),
    "load": ("dump_recipe", "load_recipe", "recipe_names", "template_names", "validate"),
    "scale": ("scale_model",),
    "schema": (
        "ARITHMETIC_ALPHABET",
        "ArithmeticCorpus",
        "Bands",
        "BPETokenizer",
        "Budget",
        "CharacterTokenizer",
        "Checkpoints",
        "CountedCorpus",
        "Data",
        "Evaluate",
        "GPTModel",
        "Optimizer",
        "Pretrain",
        "Recipe",
        "Schedule",
        "Serve",
        "StdlibCorpus",
        "TextCorpus",
    ),
    "units": ("Every", "parse_count", "parse_dollars", "parse_every", "parse_hours"),
}
_LAZY = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
