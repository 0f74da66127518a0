"""The way through evaluation, on three samples."""

from __future__ import annotations

from .checkpoint import evaluation
from .model import is_gpt_with_data
from .types import Check

CHECKS = (
    Check(
        "evaluation", "a checkpoint can be measured: bits per byte, three problems, three samples", "look at stages.evaluate",
        evaluation, shows="end", needs=("checkpoint",), applies=is_gpt_with_data, stage="evaluate",
    ),
)  # fmt: skip
