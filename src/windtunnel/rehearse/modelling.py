"""The scale model before it is trained: size as planned, first loss, gradients everywhere, and that it can learn at all."""

from __future__ import annotations

import math

from .checks import CheckFailed, Evidence, Say
from .state import Rehearsal

LOSS_TOLERANCE = 0.05
"""Nats: logits start near zero, so the first loss is ln V but for that."""
STEPS = 8
LEARNING_RATE = 3e-3
ROWS = 4


def model(rehearsal: Rehearsal, say: Say) -> Evidence:
    """Build the scale model, and take a few steps on one batch."""
    import torch

    from windtunnel.data import BatchLoader
    from windtunnel.model import build_gpt, gpt_shape

    assert rehearsal.data is not None
    vocab = rehearsal.data.tokenizer.vocab
    shape = gpt_shape(rehearsal.scale.gpt, vocab)
    say("building it")
    device = torch.device(rehearsal.device)
    compute = torch.bfloat16 if device.type == "cuda" else torch.float32
    gpt = build_gpt(shape, device=device, compute=compute, seed=rehearsal.scale.seed)
    counted = sum(p.numel() for p in gpt.parameters())
    if counted != shape.parameters:
        raise CheckFailed(f"the model has {counted:,} parameters, the plan counts {shape.parameters:,}")
    loader = BatchLoader(
        rehearsal.data.train, sequence=shape.sequence, micro_batch=ROWS, accumulation=1, rank=0, world=1,
        seed=rehearsal.scale.seed, device=device,
    )  # fmt: skip
    try:
        x, y = loader.next_batch()
    finally:
        loader.close()
    optimizer = torch.optim.AdamW(gpt.parameters(), lr=LEARNING_RATE)
    losses: list[float] = []
    touched: set[str] = set()
    for step in range(STEPS):
        say(f"step {step + 1} of {STEPS} on one batch")
        optimizer.zero_grad(set_to_none=True)
        loss = gpt(x, y)
        loss.backward()
        losses.append(float(loss.detach()))
        for name, parameter in gpt.named_parameters():
            grad = parameter.grad
            if grad is not None and not bool(torch.isfinite(grad).all()):
                raise CheckFailed(f"step {step + 1}: the gradient of {name} is not finite")
            if grad is not None and bool(grad.any()):
                touched.add(name)
        optimizer.step()
    _judge(losses, math.log(vocab), sorted({name for name, _ in gpt.named_parameters()} - touched))
    text = (
        f"{counted:,} parameters, as planned; first loss {losses[0]:.4f}, ln {vocab} = {math.log(vocab):.4f}; "
        f"gradients reach all {len(touched)} tensors; {STEPS} steps on one batch: {losses[-1]:.3f}"
    )
    return Evidence(text, {"parameters": counted, "first_loss": losses[0], "ln_vocabulary": math.log(vocab), "losses": losses})


def _judge(losses: list[float], expected: float, untouched: list[str]) -> None:
    if abs(losses[0] - expected) > LOSS_TOLERANCE:
        raise CheckFailed(f"the first loss is {losses[0]:.4f}; of a model that knows nothing {expected:.4f} is expected")
    if untouched:
        raise CheckFailed(f"no gradient reaches {', '.join(untouched[:4])}" + (", ..." if len(untouched) > 4 else ""))
    if not all(map(math.isfinite, losses)):
        raise CheckFailed("the loss became NaN on one batch")
    if losses[-1] >= losses[0]:
        raise CheckFailed(f"{STEPS} steps on one batch do not lower its loss: {losses[0]:.4f} to {losses[-1]:.4f}")
