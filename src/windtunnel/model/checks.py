"""The model before it is trained: size as planned, first loss ln V, gradients everywhere, no future seen, bf16 like fp32."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from windtunnel.check import Check, CheckFailed, Context, Evidence, Say, judge_first_steps, one_thread, reached
from windtunnel.recipe import Recursion, UserError

if TYPE_CHECKING:
    from torch import Tensor

    from windtunnel.model import GPT

LOSS_TOLERANCE = 0.05
"""Nats: logits start near zero, so the first loss is ln V but for that."""
STEPS, FALL = 8, 0.05
"""Steps on one batch, and by how much of it they must lower the loss."""
LEARNING_RATE = 3e-3
ROWS = 4
PRECISION_NATS, PRECISION_COSINE = 0.02, 0.98
FUTURE = 1e-4


def is_gpt_with_data(context: Context) -> bool:
    """Return whether there is a scale model of a GPT, and text for it."""
    return context.is_gpt and context.has_data


def add_gradients(gpt: GPT, recursion: Recursion | None, x: Tensor, y: Tensor) -> float:
    """Add the gradients of one batch, as training takes them, to those that are there.

    Args:
        gpt: the model.
        recursion: the recipe's, where the model recurses.
        x: tokens (rows, sequence).
        y: targets (rows, sequence).

    Returns:
        The model's loss, nats a target.
    """
    from windtunnel.model import RecursiveGPT, objective_of, train_supervised

    if not isinstance(gpt, RecursiveGPT):
        loss = gpt(x, y, reduction="sum") / y.numel()
        loss.backward()
        return float(loss.detach())
    assert recursion is not None
    objective = objective_of(recursion.resolved, gpt.recursion.supervision)
    sums = train_supervised(gpt, [(x, y)], objective, scale=1.0 / y.numel())
    return float(sums.losses[-1] / sums.targets)


@one_thread()
def model(context: Context, say: Say) -> Evidence:
    """Count the parameters of the whole model and of its scale model, and take a few steps on one batch."""
    import torch

    say("counting the whole model's parameters")
    whole, vocab = whole_parameters(context)
    say("building the scale model")
    gpt = context.network("bfloat16" if context.device == "cuda" else "float32", context.device)
    counted = sum(p.numel() for p in gpt.parameters())
    if counted != gpt.shape.parameters:
        raise CheckFailed(f"the scale model has {counted:,} parameters, the plan counts {gpt.shape.parameters:,}")
    x, y = context.batch(ROWS, context.device)
    # PyTorch's own, so that a fault of the package's optimizer is not taken for one of the model.
    optimizer = torch.optim.AdamW(gpt.parameters(), lr=LEARNING_RATE)
    losses: list[float] = []
    touched: set[str] = set()
    for step in range(STEPS):
        say(f"step {step + 1} of {STEPS} on one batch")
        optimizer.zero_grad(set_to_none=True)
        losses.append(add_gradients(gpt, context.scale.trm, x, y))
        touched |= reached(gpt, step + 1)
        optimizer.step()
    start = math.log(gpt.shape.vocab)
    untouched = sorted({name for name, _ in gpt.named_parameters()} - touched)
    judge_first_steps(losses, start, untouched, LOSS_TOLERANCE, FALL)
    text = (
        f"{whole:,} parameters with {vocab:,} tokens, as planned; scale model of {counted:,}: first loss {losses[0]:.4f}, "
        f"ln {gpt.shape.vocab} = {start:.4f}; gradients reach all {len(touched)} tensors; {STEPS} steps on one batch: "
        f"{losses[-1]:.3f}"
    )
    facts: dict[str, Any] = {"parameters": whole, "vocabulary": vocab, "scale_parameters": counted, "first_loss": losses[0]}
    facts |= {"ln_vocabulary": start, "losses": losses}
    return Evidence(text, facts)


def whole_parameters(context: Context) -> tuple[int, int]:
    """Count the parameters of the model as the target trains it, built without memory; return them and the plan's vocabulary.

    Raises:
        CheckFailed: the plan counts others.
    """
    import torch

    from windtunnel.model import new_model, recipe_shape

    try:
        vocab = context.plan().vocab
    except UserError:  # the check of the plan will say it
        vocab = context.prepared.tokenizer.vocab
    shape = recipe_shape(context.resolved, vocab)
    with torch.device("meta"):
        whole = new_model(shape, torch.bfloat16)
    counted = sum(p.numel() for p in whole.parameters())
    if counted != shape.parameters:
        raise CheckFailed(f"the model has {counted:,} parameters, the plan counts {shape.parameters:,}")
    return counted, vocab


@one_thread()
def causality(context: Context, say: Say) -> Evidence:
    """Change the last token, which no earlier logit may feel unless each sees all; and the first, which later ones must."""
    import torch

    gpt = context.network()
    x, _ = context.batch(1)
    length = x.shape[1]
    vocab = gpt.shape.vocab
    with torch.inference_mode():
        say("another last token")
        before = gpt(x)
        later = x.clone()
        later[:, -1] = (later[:, -1] + 1) % vocab
        earlier = x.clone()
        earlier[:, 0] = (earlier[:, 0] + 1) % vocab
        # Where weights start at zero, such as output projections, attention passes nothing on yet.
        seen = float((gpt(later) - before)[:, :-1].abs().max())
        # In place: from here on the model itself is noisy.
        noisy = stirred(gpt)
        back = (noisy(later) - noisy(x))[:, :-1].abs()
        leaked = float(back.max())
        felt = float((noisy(earlier) - noisy(x))[:, 1].abs().max())
    if not gpt.shape.causal:
        # Each position must feel the last one, which comes after all of them.
        blind = int((back[0].amax(-1) == 0).sum())
        if blind or felt == 0.0:
            raise CheckFailed(f"model.causal is false, and {blind} of {length - 1} positions do not see the last one")
        return Evidence(f"each of the {length} positions sees all others", {"positions": length - 1, "blind": blind})
    if max(seen, leaked) > FUTURE:
        raise CheckFailed(f"the last token changes earlier logits by up to {max(seen, leaked):.2e}: the model sees the future")
    if felt == 0.0:
        raise CheckFailed("the first token changes no later logit: attention passes nothing on")
    text = f"another last token changes the {length - 1} logits before it by {leaked:.0e} at most; the first changes the next"
    return Evidence(text, {"largest_change": leaked, "positions": length - 1})


def stirred(gpt: GPT) -> GPT:
    """Return the model with noise in its weights, so that none of its parts is silent."""
    import torch

    generator = torch.Generator(device=gpt.head.weight.device).manual_seed(0)
    for parameter in gpt.parameters():
        noise = torch.randn(parameter.shape, generator=generator, device=parameter.device)
        parameter.add_(0.02 * noise)
    return gpt


@one_thread()
def precision(context: Context, say: Say) -> Evidence:
    """Compare loss and gradients of the same weights in fp32 and bf16."""
    import torch

    wanted = context.recipe.pretrain.precision
    results = {}
    for name in ("float32", "bfloat16"):
        say(name)
        gpt = context.network(name)
        with torch.no_grad():
            stirred(gpt)
        x, y = context.batch(2)
        loss = gpt(x, y)
        loss.backward()
        grads = [p.grad.float().flatten() for p in gpt.parameters() if p.grad is not None]
        results[name] = float(loss.detach()), torch.cat(grads)
    (exact, first), (rounded, second) = results["float32"], results["bfloat16"]
    cosine = float(torch.nn.functional.cosine_similarity(first, second, dim=0))
    if not math.isfinite(rounded) or abs(rounded - exact) > PRECISION_NATS * max(1.0, exact):
        raise CheckFailed(f"the loss is {exact:.4f} in fp32 and {rounded:.4f} in bf16")
    if cosine < PRECISION_COSINE:
        raise CheckFailed(
            f"gradients in bf16 point elsewhere than in fp32: cosine {cosine:.3f}", "--set stages.pretrain.precision=fp32"
        )
    text = f"loss {exact:.4f} in fp32, {rounded:.4f} in bf16; cosine of the gradients {cosine:.4f}"
    if wanted == "fp8":
        text += "; fp8 is proven on the GPU"
    return Evidence(text, {"fp32": exact, "bf16": rounded, "gradient_cosine": cosine})


CHECKS = (
    Check(
        "model", "it has the planned size, starts at ln V, and every tensor learns",
        "look at the recipe's model; a package that was changed: make test", model,
        shows="first steps", needs=("recipe", "torch", "data"), applies=is_gpt_with_data, limit=120.0,
    ),
    Check(
        "causality", "no token sees the future, every token sees the past (of puzzles: each cell all others)",
        "a package that was changed: make test", causality,
        shows="end", needs=("model",), applies=is_gpt_with_data,
    ),
    Check(
        "precision", "bf16 gives the loss and the gradients of fp32", "--set stages.pretrain.precision=fp32", precision,
        shows="first steps", needs=("model",), applies=is_gpt_with_data,
    ),
)  # fmt: skip
