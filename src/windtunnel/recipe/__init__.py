"""Recipes: what to train. Strict YAML, pydantic, importable without torch.

Errors come at once; the schema is imported on use, so that `windtunnel --help` does not wait for pydantic.
"""

from typing import TYPE_CHECKING

from windtunnel import lazy

from .errors import GateFailed, MissingModel, UserError

if TYPE_CHECKING:
    from .corpora import (
        ARITHMETIC_ALPHABET,
        ArithmeticCorpus,
        Conversational,
        ConversationCorpus,
        CountedCorpus,
        Exercises,
        KernelTasks,
        PromptCorpus,
        StdlibCorpus,
        SudokuCorpus,
        TextCorpus,
        UserCorpus,
    )
    from .data import (
        BPETokenizer,
        CharacterTokenizer,
        Data,
        FolderTokenizer,
        MixtureCorpus,
        Source,
        corpus_class,
    )
    from .evaluation import ANSWERS_AT_END, Answers, Backtest, EvaluationGates
    from .expect import Expect
    from .explain import expected
    from .keys import Group, Key, find_keys, keys_page, recipe_keys
    from .layout import MEGATRON, OWN_ENGINE, Layout
    from .limits import RISE, SMALL_RISE, gate_limits, least_refinement, norm_band, stage_gates
    from .load import FILE_LISTS, dump_recipe, load_recipe, recipe_names, template_names
    from .models import FETCHED, GPTModel, HuggingFaceModel, LoRA, find_model, is_folder_name, model_folder, near_folders
    from .overlay import LIMITS
    from .reading import parse_json
    from .recursion import MOST_SUPERVISION, PRESETS, Preset, Recursion, ResolvedRecursion
    from .registry import Plugin, find_plugin, plugins
    from .rl import GRPO, Curriculum, HeldOut, RewardSource
    from .scale import scale_model, scale_stages, smoke_recipe
    from .schema import (
        PLACES,
        Bands,
        Checkpoints,
        LayoutChoice,
        Notify,
        Recipe,
        Serve,
    )
    from .section import Every, parse_count, parse_dollars, parse_every, parse_hours
    from .stage_base import Budget, Gates, Schedule, Stage, TrainingStage
    from .staged import recipe_notes, stage_recipe, validate
    from .stages import Evaluate, FineTune, Optimizer, Prepare, Pretrain
    from .theses import ACTIONS, GeneratedTheses, Period, Periods, ThesisCorpus, TimeSplit

__all__ = [
    "ACTIONS",
    "ANSWERS_AT_END",
    "ARITHMETIC_ALPHABET",
    "FETCHED",
    "FILE_LISTS",
    "GRPO",
    "LIMITS",
    "MEGATRON",
    "MOST_SUPERVISION",
    "OWN_ENGINE",
    "PLACES",
    "PRESETS",
    "RISE",
    "SMALL_RISE",
    "Answers",
    "ArithmeticCorpus",
    "BPETokenizer",
    "Backtest",
    "Bands",
    "Budget",
    "CharacterTokenizer",
    "Checkpoints",
    "ConversationCorpus",
    "Conversational",
    "CountedCorpus",
    "Curriculum",
    "Data",
    "Evaluate",
    "EvaluationGates",
    "Every",
    "Exercises",
    "Expect",
    "FineTune",
    "FolderTokenizer",
    "GPTModel",
    "GateFailed",
    "Gates",
    "GeneratedTheses",
    "Group",
    "HeldOut",
    "HuggingFaceModel",
    "KernelTasks",
    "Key",
    "Layout",
    "LayoutChoice",
    "LoRA",
    "MissingModel",
    "MixtureCorpus",
    "Notify",
    "Optimizer",
    "Period",
    "Periods",
    "Plugin",
    "Prepare",
    "Preset",
    "Pretrain",
    "PromptCorpus",
    "Recipe",
    "Recursion",
    "ResolvedRecursion",
    "RewardSource",
    "Schedule",
    "Serve",
    "Source",
    "Stage",
    "StdlibCorpus",
    "SudokuCorpus",
    "TextCorpus",
    "ThesisCorpus",
    "TimeSplit",
    "TrainingStage",
    "UserCorpus",
    "UserError",
    "corpus_class",
    "dump_recipe",
    "expected",
    "find_keys",
    "find_model",
    "find_plugin",
    "gate_limits",
    "is_folder_name",
    "keys_page",
    "least_refinement",
    "load_recipe",
    "model_folder",
    "near_folders",
    "norm_band",
    "parse_count",
    "parse_dollars",
    "parse_every",
    "parse_hours",
    "parse_json",
    "plugins",
    "recipe_keys",
    "recipe_names",
    "recipe_notes",
    "scale_model",
    "scale_stages",
    "smoke_recipe",
    "stage_gates",
    "stage_recipe",
    "template_names",
    "validate",
]

__getattr__ = lazy(__name__)
