"""Which planner a recipe with a Hugging Face model goes to."""

from __future__ import annotations

from windtunnel.recipe import Recipe
from windtunnel.rig import Rig

from ..types import Plan
from .constants import HFConstants
from .finetune import plan_fine_tuning
from .grpo import plan_grpo


def plan_hf(
    recipe: Recipe, rig: Rig, constants: HFConstants | None = None, corpus_tokens: float | None = None, suggest: bool = True
) -> Plan:
    """Plan `stages.sft` or `stages.rl`; see `plan_fine_tuning` and `plan_grpo`."""
    if recipe.rl is not None:
        return plan_grpo(recipe, rig, constants, corpus_tokens, suggest)
    return plan_fine_tuning(recipe, rig, constants, corpus_tokens, suggest)
