"""A recursive model before it is trained: its counts, its loss, where gradients end, and its cache."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from windtunnel.check import Check, CheckFailed, Context, Evidence, Say, one_thread

from .checks import LOSS_TOLERANCE, stirred

if TYPE_CHECKING:
    from torch import Tensor

    from windtunnel.model import RecursiveGPT

ROWS = 2
WEIGHTS = 1e-9
"""By how much the weights' sum may be off 1."""
SAME, DIFFERENT = 1e-5, 1e-3
"""Relative differences of gradients that should be one, and that must not be."""
CACHE = 2e-4
"""Logits computed token by token against all at once, fp32."""
PROMPT = 7
REPORT = "a package that was changed: make test"


def _recurses(context: Context) -> bool:
    return context.is_gpt and context.has_data and context.recipe.trm is not None


def _recurses_in_time(context: Context) -> bool:
    return _recurses(context) and context.recipe.gpt.causal


def _joins(context: Context) -> bool:
    return _recurses(context) and context.scale.trm is not None and context.scale.trm.supervision > 1


@one_thread()
def recursion(context: Context, say: Say) -> Evidence:
    """Judge the weights of supervision steps, the loss after each, and the objective put together from these."""
    import torch

    from windtunnel.model import objective_of

    gpt, (x, y) = _small(context)
    assert context.recipe.trm is not None
    steps = gpt.recursion.supervision
    for name, recipe in (("the recipe", context.recipe), ("its scale model", context.scale)):
        assert recipe.trm is not None
        weights = objective_of(recipe.trm.resolved, recipe.trm.supervision).weights
        if len(weights) != recipe.trm.supervision or abs(sum(weights) - 1) > WEIGHTS or min(weights) < 0:
            raise CheckFailed(f"the weights of {name}'s supervision steps do not sum to 1: {_numbers(weights)}")
    say("the loss after each supervision step")
    with torch.no_grad():
        losses = gpt.step_losses(x, y).flatten(1).mean(1).tolist()
        plain = float(gpt(x, y))
    start = math.log(gpt.shape.vocab)
    off = [i for i, loss in enumerate(losses) if not abs(loss - start) <= LOSS_TOLERANCE]
    if len(losses) != steps or off:
        what = f"losses after {len(losses)} supervision steps: {_numbers(losses)}"
        raise CheckFailed(f"{what}; of {steps} steps of a model that knows nothing each should be {start:.4f}")
    if abs(losses[-1] - plain) > LOSS_TOLERANCE / 100:
        raise CheckFailed(f"the loss of the last supervision step is {losses[-1]:.5f}, the model's own {plain:.5f}")
    say("the objective")
    composite, expected = _objective(gpt, context, x, y)
    if abs(composite - expected) > SAME * max(1.0, abs(expected)):
        raise CheckFailed(f"the objective is {composite:.6f}; put together from the losses of the steps it is {expected:.6f}")
    given = context.recipe.trm.resolved
    weights = objective_of(given, given.supervision).weights
    listed = _numbers(weights) if len(set(weights)) > 1 else f"of {weights[0]:.4g} each"
    depth = context.recipe.gpt.depth
    counts = f"{depth} blocks, {given.loops} loops, {given.cycles} cycles, {given.supervision} supervision steps"
    text = (
        f"{counts}; their weights {listed} sum to 1; scale model: {_numbers(losses)} after its {steps} steps, "
        f"ln {gpt.shape.vocab} = {start:.4f}; the objective is as defined"
    )
    return Evidence(text, {"losses": losses, "weights": list(weights)})


def _objective(gpt: RecursiveGPT, context: Context, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Return (what training takes the gradient of, the same from the losses of a model with noise in its weights)."""
    import torch

    from windtunnel.model import objective_of, train_supervised

    assert context.scale.trm is not None
    with torch.no_grad():
        stirred(gpt)
        losses = gpt.step_losses(x, y).double().flatten(1).mean(1).tolist()
    objective = objective_of(context.scale.trm.resolved, len(losses))
    sums = train_supervised(gpt, [(x, y)], objective, scale=1.0 / y.numel())
    reward = sum((before - after) / (before + 1e-8) for before, after in itertools.pairwise(losses))
    weighted = sum(weight * loss for weight, loss in zip(objective.weights, losses, strict=True))
    if gpt.recursion.halting:
        halting = (sums.halting / sums.sequences).tolist()
        weighted += objective.halting_weight * sum(w * loss for w, loss in zip(objective.weights, halting, strict=True))
    expected = (weighted - objective.improvement_reward * reward) / len(losses)
    return float(sums.objective / sums.targets), expected


@one_thread()
def detach(context: Context, say: Say) -> Evidence:
    """Return the gradient of the last supervision step's loss alone, with and without boundaries before it."""
    import torch

    from windtunnel.model import objective_of

    gpt, (x, y) = _small(context)
    with torch.no_grad():
        stirred(gpt)
    assert context.scale.trm is not None
    steps = gpt.recursion.supervision
    rule = objective_of(context.scale.trm.resolved, steps).detach_from
    say("gradients that pass through all supervision steps")
    through = _last_gradient(gpt, x, y, steps, steps)
    say("gradients that end before the last one")
    cut = _last_gradient(gpt, x, y, steps, steps - 2)
    share = _difference(through, cut)
    # Where the first cycles of a step over the whole stack have no gradient, none passes to the step before.
    closed = gpt.recursion.scheme != "layerwise" and gpt.recursion.gradient_passes < gpt.recursion.passes
    if not closed and share < DIFFERENT:
        raise CheckFailed("detaching the states before the last supervision step changes no gradient: it is not done")
    if closed and share > SAME:
        raise CheckFailed(f"gradients pass through cycles that have none: they change the last step's by {share:.0%}")
    say("gradients of the recipe's rule")
    for start in sorted({0, min(rule, steps)}):
        expected, where = (cut, "end") if start <= steps - 2 else (through, "pass through")
        off = _difference(_last_gradient(gpt, x, y, steps, start), expected)
        if off > SAME:
            what = f"detached from supervision step {start} on, gradients of the last of {steps} steps should {where} before it"
            raise CheckFailed(f"{what}, and are off by {off:.1e}")
    how = f"from step {rule} on" if rule <= steps - 2 else "nowhere"
    text = f"states are detached {how}; a boundary before the last of {steps} steps changes its gradient by {share:.0%}"
    if closed:
        text = f"the first cycles of a supervision step have no gradient: none passes to the step before, detached {how}"
    return Evidence(text, {"detach_from": rule, "share": share})


def _last_gradient(gpt: RecursiveGPT, x: Tensor, y: Tensor, steps: int, detach_from: int) -> Tensor:
    """Return all gradients in one vector, of the loss after the last supervision step."""
    import torch

    from windtunnel.model import Objective, train_supervised

    gpt.zero_grad(set_to_none=True)
    # Only the last step is scored: whatever gradient reaches earlier ones has passed the boundary.
    weights = tuple(float(i + 1 == steps) for i in range(steps))
    train_supervised(gpt, [(x, y)], Objective(weights, 0.0, detach_from, "once"), scale=1.0 / y.numel())
    grads = [p.grad.flatten() for p in gpt.parameters() if p.grad is not None]
    vector = torch.cat(grads)
    gpt.zero_grad(set_to_none=True)
    return vector


def _difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm().clamp(min=1e-30))


@one_thread()
def cache(context: Context, say: Say) -> Evidence:
    """Compare logits after every token, from the cache and from a whole forward pass."""
    import torch

    from windtunnel.model import KVCache, extend

    gpt, (x, _) = _small(context)
    gpt.eval()
    with torch.inference_mode():
        stirred(gpt)
        x = x[:, : min(x.shape[1], 4 * PROMPT)]
        whole = gpt(x)
        kv = KVCache(gpt, ROWS)
        slots = range(ROWS)
        say("a prompt, then token by token")
        worst = float((extend(gpt, x[:, :PROMPT], slots, kv) - whole[:, PROMPT - 1]).abs().max())
        for at in range(PROMPT, x.shape[1]):
            worst = max(worst, float((extend(gpt, x[:, at : at + 1], slots, kv) - whole[:, at]).abs().max()))
    if not worst <= CACHE:
        raise CheckFailed(f"logits from the cache differ from those of a whole forward pass by up to {worst:.1e}")
    held = sum(t.numel() * t.element_size() for t in (kv.keys, kv.values))
    # By the arithmetic that memory for sequences is reserved by.
    planned = gpt.shape.kv_bytes_per_token(4) * ROWS * kv.capacity
    if held != planned:
        raise CheckFailed(f"the cache takes {held:,} bytes, {planned:,} are planned")
    size = gpt.shape.kv_bytes_per_token(4)
    same = f"{x.shape[1]} tokens one by one give the logits of a whole pass (largest difference {worst:.0e})"
    text = f"{same}; {size:,} bytes a token"
    return Evidence(text, {"largest_difference": worst, "bytes_per_token": size})


def _small(context: Context) -> tuple[RecursiveGPT, tuple[Tensor, Tensor]]:
    """Return the scale model in fp32, and a small batch of its data."""
    from windtunnel.model import RecursiveGPT

    gpt = context.network()
    assert isinstance(gpt, RecursiveGPT)
    return gpt, context.batch(ROWS)


def _numbers(values: object) -> str:
    return ", ".join(f"{value:.4g}" for value in values)  # type: ignore[attr-defined]


CHECKS = (
    Check(
        "recursion", "every supervision step starts at ln V, their weights sum to 1, the objective is as defined", REPORT,
        recursion, shows="first steps", needs=("model",), applies=_recurses,
    ),
    Check(
        "detach", "gradients end where states are detached, and nowhere else", REPORT, detach,
        shows="end", needs=("model",), applies=_joins,
    ),
    Check(
        "cache", "the cache of keys and values gives the logits of a whole forward pass", REPORT, cache,
        shows="end", needs=("model",), applies=_recurses_in_time,
    ),
)  # fmt: skip
