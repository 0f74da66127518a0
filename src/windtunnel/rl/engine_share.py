"""How many engines a stage has, and how many GPUs each: what the recipe asks for, otherwise the plan's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windtunnel.recipe import GRPO, UserError


def engines_of(stage: GRPO, plan: Mapping[str, Any], learners: int) -> tuple[int, int]:
    """Return how many engines all learners have together, and how many GPUs, on a CPU processes, each of them takes.

    `stage.engines` counts GPUs, on a CPU processes, wherever it is read; a remainder that makes no engine for each learner is
    left over.

    Args:
        stage: with engines of its own.
        plan: of the stage, as JSON.
        learners: that share the engines out, as many to each.

    Raises:
        UserError: learners cannot share them.
    """
    role = (plan.get("roles") or {}).get("engine") if plan["layout"]["device"] == "cuda" else None
    tensor = stage.engine_tensor or (role["layout"]["tensor"] if role else 1)
    given = stage.engines or (role["gpus"] if role else learners * tensor)
    count = given // tensor
    shared = count // learners * learners
    if not shared or (stage.engines and shared * tensor != given):
        least = learners * tensor
        raise UserError(
            f"stages.{stage.name}.engines: {given} GPU(s) or processes of {tensor} for each engine cannot be shared by "
            f"{learners} learner(s), of which each has its own",
            f"--set stages.{stage.name}.engines={max(least, given // least * least)}, or "
            f"--set stages.{stage.name}.learners={max(1, min(learners, count))}",
        )
    return shared, tensor
