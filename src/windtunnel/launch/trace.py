"""A trace of a plan: the real model and step on tensors without data, in a process of its own, beside the plan."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windtunnel.plan import Opinion, Plan, second_opinion
from windtunnel.recipe import HuggingFaceModel, Recipe, UserError

from .processes import run_child

TIMEOUT = 600.0
TRAINED_WEIGHTS = ("bf16", "fp8")


def trace_plan(recipe: Recipe, plan: Plan, *, say: Callable[[str], None] = lambda _: None) -> Opinion:
    """Trace one optimizer step of a plan and compare, on any machine; takes seconds to a minute.

    Args:
        recipe: what was planned; its depth a number.
        plan: also one that does not fit.
        say: told each stage.

    Raises:
        UserError: this engine does not run such a plan, or PyTorch is missing or could not trace the model.
    """
    _check(recipe, plan)
    config, blocks = _model(recipe)
    request = {
        "recipe": recipe.model_dump(mode="json"), "layout": plan.layout.as_dict(), "vocab": plan.vocab, "config": config,
        "blocks": blocks,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="windtunnel-trace-") as name:
        folder = Path(name)
        (folder / "request.json").write_text(json.dumps(request))
        outcome = _run(folder, say)
    if "refused" in outcome:
        raise UserError(*outcome["refused"])
    if "failure" in outcome:
        raise UserError(
            f"{plan.model} could not be traced: {outcome['failure']}", "plan without --trace; measure with --calibrate on a GPU"
        )
    return second_opinion(plan, outcome)


def _check(recipe: Recipe, plan: Plan) -> None:
    layout = plan.layout
    if recipe.rl is not None:
        raise UserError("--trace follows training steps, and this recipe does reinforcement learning", "plan without --trace")
    if layout.offload != "none":
        raise UserError("--trace cannot follow optimizer states kept in CPU memory", "--set layout.offload=none")
    if layout.engine != "windtunnel":
        split = ", ".join(
            f"{name} {getattr(layout, name)}" for name in ("tensor", "expert", "pipeline") if getattr(layout, name) > 1
        )
        raise UserError(
            f"--trace runs the package's own engine, and this plan ({split}) is for {layout.engine}",
            "plan without --trace, or --set layout.tensor=1 --set layout.expert=1 --set layout.pipeline=1",
        )
    if recipe.model.kind == "gpt" and layout.shard == "full" and layout.ranks > 1:
        raise UserError(
            "--trace does not follow a GPT whose weights are sharded (layout.shard: full)",
            "plan without --trace; measure with --calibrate on GPUs",
        )
    if isinstance(recipe.model, HuggingFaceModel) and recipe.model.weights not in TRAINED_WEIGHTS:
        raise UserError(
            f"--trace runs the package's own engine, which does not hold weights in {recipe.model.weights}",
            "plan without --trace, or --set model.weights=fp8",
        )


def _model(recipe: Recipe) -> tuple[dict[str, Any] | None, list[int]]:
    """Return a Hugging Face model's config.json, and a number for each block, equal for those that are alike."""
    if not isinstance(recipe.model, HuggingFaceModel):
        return None, []
    from windtunnel.model import hf_shape

    shape = hf_shape(recipe.model.config)
    # Numbers, since blocks themselves do not fit into JSON.
    kinds: dict[Any, int] = {}
    return shape.raw, [kinds.setdefault(block, len(kinds)) for block in shape.blocks]


def _run(folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    # No GPU is looked for: a trace is the same on every machine.
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}
    module = ["-m", "windtunnel.launch.trace_worker", str(folder)]
    code, stopped = run_child(module, environment, folder / "log", folder / "stage", TIMEOUT, say)
    if stopped is not None:
        raise UserError(f"the trace was {stopped}", "plan without --trace")
    try:
        return dict(json.loads((folder / "trace.json").read_text()))
    except OSError:
        # A process that was killed has written nothing: its last line is the best that there is to tell.
        last = (folder / "log").read_text(errors="replace").strip().splitlines()[-1:] or ["nothing was printed"]
        return {"failure": f"the process ended with {code}: {last[0]}"}
