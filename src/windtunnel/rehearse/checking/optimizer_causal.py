"""A step of fine-tuning on the scale model: every trained weight changes by it, no frozen one."""

from __future__ import annotations

from typing import Any

from windtunnel.recipe import HuggingFaceModel

from . import model_causal
from .context import Context
from .optimizer_rates import judge_rate
from .types import Evidence, Findings, Say

FULL_RATE, ADAPTER_RATE, RL_RATE = 1e-5, 2e-4, 1e-6
"""What is usual, and what stages.sft.learning_rate stands for where it is null."""
UNMOVED, HARDLY_MOVED = 0.01, 0.5
"""Shares of trained numbers that a step changes."""


def causal(context: Context, say: Say) -> Evidence:
    import torch

    from windtunnel.model import causal_shape

    found, recipe = Findings(), context.recipe
    stage = recipe.sft or recipe.rl
    assert stage is not None
    assert isinstance(recipe.model, HuggingFaceModel)
    usual = RL_RATE if recipe.rl else FULL_RATE if recipe.model.adapter is None else ADAPTER_RATE
    rate = stage.learning_rate if stage.learning_rate is not None else usual
    name = "stages.sft" if recipe.sft else "stages.rl"
    judge_rate(f"{name}.learning_rate", rate, usual, found)
    small = causal_shape(str(model_causal.write_scale_config(context)))
    compute = torch.float32 if stage.master or recipe.model.adapter is not None else torch.bfloat16
    job = model_causal.build_job(context, small.raw, torch.bfloat16 if recipe.model.weights == "fp8" else compute)
    before = {name: p.detach().clone() for name, p in job.network.named_parameters()}
    x, y = model_causal.random_batch(small.vocab, context.seed)
    say("a step")
    for _ in range(2):  # a fresh adapter's first matrix moves only once the second is no longer zero
        job.step([(x, y)], y.numel(), rate)
    moved, trained = _moved(before, dict(job.network.named_parameters()), found)
    job.close()
    if moved < UNMOVED:
        what = f"at a learning rate of {rate:g} a step changes {moved:.1%} of the trained numbers, the rest round back"
        found.problem(what, f"keep fp32 weights: --set {name}.master=true", shows="end")
    elif moved < HARDLY_MOVED:
        found.warn(
            f"a step changes only {moved:.0%} of the trained numbers, the rest round back: keep fp32 weights (master: true)"
        )
    text = f"learning rate {rate:g}; a step changes {moved:.0%} of {trained:,} trained numbers, no frozen one"
    return found.evidence(text, {"learning_rate": rate, "moved": moved, "trained": trained})


def _moved(before: dict[str, Any], after: dict[str, Any], found: Findings) -> tuple[float, int]:
    """(share of trained numbers that changed, how many are trained); a frozen one that changed is a problem."""
    changed = trained = 0
    for name, parameter in after.items():
        now, then = _local(parameter), _local(before[name])
        if parameter.requires_grad:
            trained += now.numel()
            changed += int((now != then).sum())
        elif not bool((now == then).all()):
            found.problem(f"{name} is frozen, and a step changed it", "report this: the package is at fault")
    return changed / max(1, trained), trained


def _local(tensor: Any) -> Any:
    """This rank's part of a sharded tensor; fp8 as bytes."""
    import torch

    own = tensor.detach().to_local() if hasattr(tensor, "to_local") else tensor.detach()
    return own.view(torch.uint8) if own.dtype.is_floating_point and own.element_size() == 1 else own
