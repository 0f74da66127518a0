"""Metrics and bands of supervision steps: what is logged of each, and what their losses say together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from windtunnel.recipe import PRESETS, Recipe
from windtunnel.run import Finding, Judge, step_values

METRICS: dict[str, str] = {
    "objective": "what a recursive model's gradient is of: weighted losses and the reward for improvement; no measure of quality",
    "refinement": "percent by which the training loss after the last supervision step is below that after the first",
    "supervision_order": "1 where each supervision step's training loss is below that of the one before, else 0",
    "halting_loss": "binary cross-entropy of the halting head, nats",
    "halting_accuracy": "share of samples of which the halting head is right, 0 to 1",
    "solved": "share of training samples answered wholly right after the last supervision step, 0 to 1",
}

STEP_METRICS: dict[str, str] = {
    "loss": "training loss after this supervision step, nats per token: true cross-entropy, not weighted",
    "validation_loss": "validation loss after this supervision step, nats per token",
    "bits_per_byte": "validation bits per byte of text after this supervision step",
    "solved": "share of training samples answered wholly right after this supervision step, 0 to 1",
    "gradient_norm": "gradient norm of the update after this supervision step, before clipping",
}
"""Metrics that a recursive model has for each supervision step; their names are `of_step(name, i)`."""

LATE = 0.8  # share of the run after which refinement must have come
EQUAL = 0.005  # losses closer than this, relative to the loss, are in no order
ABOVE_UNIFORM = 1.01  # times ln(vocab): knowing nothing costs ln(vocab), and a batch's loss has a little noise


@dataclass(frozen=True)
class SupervisionLimits:
    """What a run of several supervision steps is held to.

    Attributes:
        vocab: tokens a model can choose from: one that knows nothing has a loss of ln(vocab).
        refinement: least percent of refinement that the preset promises; None: it promises none.
        gradient_norm: a norm above it is too large whatever is usual (seed of the recipe: 20).
    """

    vocab: int
    refinement: float | None = None
    gradient_norm: float = 20.0


def judge(recipe: Recipe, vocab: int) -> Judge | None:
    """Return the judge of the metrics of a recipe with supervision steps; None where it has none."""
    if recipe.trm is None:
        return None
    promised = PRESETS[recipe.trm.preset].refinement
    return partial(findings, limits=SupervisionLimits(vocab, promised[0] if promised else None))


def findings(metrics: Mapping[str, float], limits: SupervisionLimits) -> list[Finding]:
    """Judge one step's metrics; what is not among them is not judged. Losses must be finite."""
    losses = step_values(metrics, "loss")
    found = []
    if len(losses) > 1:
        found.append(Finding("supervision_order", "bad", _inverted(losses), 20))
        found.append(Finding("spoiled_first_step", "warn", _spoiled(losses, limits.vocab), 20))
    # Refinement comes last: early on a low one says nothing.
    late = metrics.get("progress", 0.0) >= LATE
    if limits.refinement is not None and late and "refinement" in metrics:
        found.append(Finding("refinement", "warn", _low(metrics["refinement"], limits.refinement), 20))
    if "gradient_norm" in metrics:
        found.append(
            Finding("gradient_norm_limit", "warn", _steep(metrics["gradient_norm"], limits.gradient_norm), 5, "gradient_norm")
        )
    return found


def _inverted(losses: list[float]) -> str | None:
    for i in range(1, len(losses)):
        if losses[i] > losses[i - 1] * (1 + EQUAL):
            return (
                f"supervision order is inverted: the loss after supervision step {i} is {losses[i]:.4g}, "
                f"above {losses[i - 1]:.4g} after step {i - 1}"
            )
    return None


def _spoiled(losses: list[float], vocab: int) -> str | None:
    uniform = math.log(vocab)
    # Before a model has learned anything all its losses are above that of knowing nothing: then no step is spoiled.
    if losses[0] <= ABOVE_UNIFORM * uniform or losses[-1] >= uniform:
        return None
    percent = 100 * (losses[0] - losses[-1]) / losses[0]
    honest = 100 * (uniform - losses[-1]) / uniform
    return (
        f"refinement of {percent:.0f} % is bought by a spoiled first step: its loss {losses[0]:.4g} is worse than knowing "
        f"nothing, {uniform:.4g} (ln {vocab:,}); below that the last step is {honest:.0f} %"
    )


def _low(refinement: float, least: float) -> str | None:
    return None if refinement >= least else f"refinement is {refinement:.1f} % late in the run; the preset promises {least:g} %"


def _steep(norm: float, limit: float) -> str | None:
    return None if norm <= limit else f"gradient norm {norm:.3g} is above {limit:g}"
