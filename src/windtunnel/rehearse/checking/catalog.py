"""Every check of `windtunnel check`, in the order of its report."""

from __future__ import annotations

from importlib import import_module

from .types import Check

MODULES: tuple[str, ...] = (
    "sources",
    "interpreter",
    "gpu",
    "machine",
    "disk",
    "network",
    "variables",
    "credentials",
    "data",
    "tokenizer",
    "planning",  # with the corpus as the check of the data found it
    "gates",
    "model",
    "recursion",
    "optimizer",
    "layout",
    "checkpoint",
    "checkpoint_causal",
    "evaluation",
    "engine",
    "weight_sync",
    "reward",
    "launcher",
    "resume",
)


def all_checks() -> list[Check]:
    """The checks of all modules, each of which has them in its constant CHECKS."""
    return [check for name in MODULES for check in import_module(f".{name}", __package__).CHECKS]
