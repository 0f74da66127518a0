"""What the metrics of a recursive model say about its recursion; pure functions that `bands` watches with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from . import names

LATE = 0.8  # share of the run after which refinement must have come
EQUAL = 0.005  # losses closer than this, relative to the loss, are in no order
ABOVE_UNIFORM = 1.01  # times ln(vocab): knowing nothing costs ln(vocab), and a batch's loss has a little noise


@dataclass(frozen=True)
class RecursionLimits:
    """What a recursive run is held to.

    Attributes:
        vocab: tokens a model can choose from: one that knows nothing has a loss of ln(vocab).
        refinement: least percent of refinement that the preset promises; None: it promises none.
        gradient_norm: a norm above it is too large whatever is usual (seed of the recipe: 20).
    """

    vocab: int
    refinement: float | None = None
    gradient_norm: float = 20.0


@dataclass(frozen=True)
class Finding:
    """One judgement of one step: `message` None means that all is well.

    `patience`: this many in a row raise the band, or clear it again.
    """

    band: str
    level: Literal["warn", "bad"]
    message: str | None
    patience: int


def findings(metrics: Mapping[str, float], limits: RecursionLimits) -> list[Finding]:
    """Judge one step's metrics; what is not among them is not judged. Losses must be finite."""
    losses = names.step_values(metrics, names.LOSS)
    found = []
    if len(losses) > 1:
        found.append(Finding("supervision_order", "bad", _inverted(losses), 20))
        found.append(Finding("spoiled_first_step", "warn", _spoiled(losses, limits.vocab), 20))
    late = metrics.get(names.PROGRESS, 0.0) >= LATE
    if limits.refinement is not None and late and names.REFINEMENT in metrics:
        found.append(Finding("refinement", "warn", _low(metrics[names.REFINEMENT], limits.refinement), 20))
    if names.GRADIENT_NORM in metrics:
        found.append(Finding("gradient_norm_limit", "warn", _steep(metrics[names.GRADIENT_NORM], limits.gradient_norm), 5))
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
