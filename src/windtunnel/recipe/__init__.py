"""Recipes: what to train. Strict YAML, pydantic, importable without torch."""

from .errors import GateFailed, UserError
from .load import dump_recipe, load_recipe, recipe_names, validate
from .scale import scale_model
from .schema import (
    ARITHMETIC_ALPHABET,
    ArithmeticCorpus,
    Bands,
    BPETokenizer,
    Budget,
    CharacterTokenizer,
    Checkpoints,
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
    "ArithmeticCorpus",
    "BPETokenizer",
    "Bands",
    "Budget",
    "CharacterTokenizer",
    "Checkpoints",
    "Data",
    "Evaluate",
    "Every",
    "GPTModel",
    "GateFailed",
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
    "validate",
]
