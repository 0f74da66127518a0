"""How many engines a stage has, how many GPUs each, and whether they share a learner's: as the recipe says, or the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from windtunnel.recipe import GRPO, UserError


@dataclass(frozen=True)
class EngineShare:
    """The engines of all learners together.

    Attributes:
        count: of engines.
        tensor: GPUs, on a CPU processes, of each.
        memory: share of its learner's GPU that an engine takes; None: it has GPUs of its own.
    """

    count: int
    tensor: int
    memory: float | None = None


def engines_of(stage: GRPO, plan: Mapping[str, Any], learners: int) -> EngineShare:
    """Return the engines of all learners together.

    `stage.engines` counts GPUs, on a CPU processes, wherever it is read; a remainder that makes no engine for each learner is
    left over.

    Args:
        stage: with engines of its own.
        plan: of the stage, as JSON.
        learners: that share the engines out, as many to each.

    Raises:
        UserError: learners cannot share them.
    """
    # On CPUs there is no plan of engines: each learner has one process.
    role = (plan.get("roles") or {}).get("engine") if plan["layout"]["device"] == "cuda" else None
    memory = (role or {}).get("facts", {}).get("memory_share")
    if memory is not None:
        return EngineShare(learners, 1, memory)
    tensor = stage.engine_tensor or (role["layout"]["tensor"] if role else 1)
    given = stage.engines or (role["gpus"] if role else learners * tensor)
    count = given // tensor
    # Each learner asks engines of its own, as many as the others: a round ends when the slowest learner has its answers.
    shared = count // learners * learners
    # A remainder is left over where the plan chose the number, and refused where the user did.
    if not shared or (stage.engines and shared * tensor != given):
        least = learners * tensor
        raise UserError(
            f"stages.{stage.name}.engines: {given} GPU(s) or processes of {tensor} for each engine cannot be shared by "
            f"{learners} learner(s), of which each has its own",
            f"--set stages.{stage.name}.engines={max(least, given // least * least)}, or "
            f"--set stages.{stage.name}.learners={max(1, min(learners, count))}",
        )
    return EngineShare(shared, tensor)
