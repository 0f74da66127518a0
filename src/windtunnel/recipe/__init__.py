"""Recipes: what to train. Strict YAML, pydantic, importable without torch.

Errors come at once; the schema is imported on use, so that `windtunnel --help` does not wait for pydantic.
"""

from typing import TYPE_CHECKING, Any

from .errors import GateFailed, UserError

if TYPE_CHECKING:
    from .data import (
        ARITHMETIC_ALPHABET,
        ArithmeticCorpus,
        BPETokenizer,
        CharacterTokenizer,
        ConversationCorpus,
        CountedCorpus,
        Data,
        FolderTokenizer,
        MixtureCorpus,
        PromptCorpus,
        Source,
        StdlibCorpus,
        SudokuCorpus,
        TextCorpus,
        UserCorpus,
        corpus_class,
    )
    from .layout import MEGATRON, OWN_ENGINE, Layout
    from .load import dump_recipe, load_recipe, recipe_names, template_names
    from .models import GPTModel, HuggingFaceModel, LoRA
    from .recursion import MOST_SUPERVISION, PRESETS, Preset, Recursion, ResolvedRecursion
    from .registry import Plugin, find_plugin, plugins
    from .scale import scale_model, scale_stages
    from .schema import (
        Bands,
        Checkpoints,
        LayoutChoice,
        Recipe,
        Serve,
    )
    from .staged import recipe_notes, stage_recipe, validate
    from .stages import (
        GRPO,
        Budget,
        Evaluate,
        EvaluationGates,
        FineTune,
        Gates,
        Optimizer,
        Prepare,
        Pretrain,
        Schedule,
        Stage,
        TrainingStage,
    )
    from .units import Every, parse_count, parse_dollars, parse_every, parse_hours

__all__ = [
    "ARITHMETIC_ALPHABET",
    "GRPO",
    "MEGATRON",
    "MOST_SUPERVISION",
    "OWN_ENGINE",
    "PRESETS",
    "ArithmeticCorpus",
    "BPETokenizer",
    "Bands",
    "Budget",
    "CharacterTokenizer",
    "Checkpoints",
    "ConversationCorpus",
    "CountedCorpus",
    "Data",
    "Evaluate",
    "EvaluationGates",
    "Every",
    "FineTune",
    "FolderTokenizer",
    "GPTModel",
    "GateFailed",
    "Gates",
    "HuggingFaceModel",
    "Layout",
    "LayoutChoice",
    "LoRA",
    "MixtureCorpus",
    "Optimizer",
    "Plugin",
    "Prepare",
    "Preset",
    "Pretrain",
    "PromptCorpus",
    "Recipe",
    "Recursion",
    "ResolvedRecursion",
    "Schedule",
    "Serve",
    "Source",
    "Stage",
    "StdlibCorpus",
    "SudokuCorpus",
    "TextCorpus",
    "TrainingStage",
    "UserCorpus",
    "UserError",
    "corpus_class",
    "dump_recipe",
    "find_plugin",
    "load_recipe",
    "parse_count",
    "parse_dollars",
    "parse_every",
    "parse_hours",
    "plugins",
    "recipe_names",
    "recipe_notes",
    "scale_model",
    "scale_stages",
    "stage_recipe",
    "template_names",
    "validate",
]

_MODULES = {
    "data": (
        "ConversationCorpus",
        "FolderTokenizer",
        "MixtureCorpus",
        "PromptCorpus",
        "Source",
        "ARITHMETIC_ALPHABET",
        "ArithmeticCorpus",
        "BPETokenizer",
        "CharacterTokenizer",
        "CountedCorpus",
        "Data",
        "StdlibCorpus",
        "SudokuCorpus",
        "TextCorpus",
        "UserCorpus",
        "corpus_class",
    ),
    "layout": ("MEGATRON", "OWN_ENGINE", "Layout"),
    "registry": ("Plugin", "find_plugin", "plugins"),
    "load": ("dump_recipe", "load_recipe", "recipe_names", "template_names"),
    "models": ("GPTModel", "HuggingFaceModel", "LoRA"),
    "recursion": ("MOST_SUPERVISION", "PRESETS", "Preset", "Recursion", "ResolvedRecursion"),
    "scale": ("scale_model", "scale_stages"),
    "schema": (
        "Bands",
        "Checkpoints",
        "LayoutChoice",
        "Recipe",
        "Serve",
    ),
    "staged": ("recipe_notes", "stage_recipe", "validate"),
    "stages": (
        "GRPO",
        "Budget",
        "Evaluate",
        "EvaluationGates",
        "FineTune",
        "Gates",
        "Optimizer",
        "Prepare",
        "Pretrain",
        "Schedule",
        "Stage",
        "TrainingStage",
    ),
    "units": ("Every", "parse_count", "parse_dollars", "parse_every", "parse_hours"),
}
_LAZY = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
