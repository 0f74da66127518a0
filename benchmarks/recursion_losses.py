"""The part `losses` of recursion.py: the same weights and the same batch in the public fork and here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from recursion_peer import DETACH_FROM, PRESETS, as_ours, fill, fork_model
from recursion_size import Keep, Size, batch_of

from windtunnel.model import GPT, RecursiveGPT, build_model, objective_of, recipe_shape, train_supervised


def losses(size: Size, rows: int, presets: list[str], keep: Keep) -> None:
    """Part `losses`."""
    for preset in presets:
        for exact_tables in (True, False):
            shape = recipe_shape(comparable(size, preset), size.vocab)
            theirs = fork_model(Path(os.environ["PEER"]), shape, preset, size.device, exact_tables).train()
            fill(theirs.parameters(), 7)
            ours, mine = our_losses(size, rows, preset, dict(theirs.state_dict()))
            total, each = theirs(*losses_batch(size, rows))
            total.backward()
            wanted = as_ours({n: p.grad for n, p in theirs.named_parameters()}, shape)
            worst = max(
                float((p.grad - wanted[n]).norm() / wanted[n].norm()) for n, p in ours.named_parameters() if p.grad is not None
            )
            fork_says = {"objective": total.item(), "step_0": float(each["step_0"]), "final": float(each["final"])}
            entry = {
                "preset": preset, "depth": size.depth, "dim": shape.dim, "sequence": size.sequence, "rows": rows,
                "fork_rotary_tables": "fp32" if exact_tables else "bf16, as it has them",
                "ours": mine, "fork": fork_says,
                "relative_difference": max(abs(mine[n] / fork_says[n] - 1) for n in mine),
                "worst_gradient_difference": worst,
                "fork_weights": {n: list(p.shape) for n, p in theirs.named_parameters()},
                "fork_gradient_norms": {n: float(gradient.norm()) for n, gradient in wanted.items()},
            }  # fmt: skip
            keep(entry)


def comparable(size: Size, preset: str) -> Any:
    """A recipe of ours with the fork's preset."""
    base, reward = PRESETS[preset]
    changes = [f"trm.weight_base={base}", f"trm.improvement_reward={reward}", f"trm.detach_from={DETACH_FROM}"]
    return size.recipe(*changes, "trm.updates=once")


def losses_batch(size: Size, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same for both; a quarter of the first sequence has no targets."""
    torch.manual_seed(3)
    x, y = batch_of(size, rows)
    y[0, : size.sequence // 4] = -1
    return x, y


def our_losses(size: Size, rows: int, preset: str, weights: dict[str, torch.Tensor]) -> tuple[GPT, dict[str, float]]:
    """Our model with the fork's weights, after a backward pass, and its losses."""
    recipe = comparable(size, preset)
    shape = recipe_shape(recipe, size.vocab)
    model = build_model(shape, device=size.device, compute=torch.float32)
    assert isinstance(model, RecursiveGPT)
    model.load_state_dict(as_ours(weights, shape))
    x, y = losses_batch(size, rows)
    targets = int((y >= 0).sum())
    sums = train_supervised(model, [(x, y)], objective_of(recipe.trm.resolved), scale=1 / targets)
    found = {"objective": sums.objective, "step_0": sums.losses[0], "final": sums.losses[-1]}
    return model, {name: float(value) / targets for name, value in found.items()}
