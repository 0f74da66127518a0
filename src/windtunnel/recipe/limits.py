"""What the gates of a stage ask for, in words: the same in a plan, in a check and in the verdict on a run."""

from __future__ import annotations

from .recursion import PRESETS
from .schema import Recipe
from .stage_base import Gates

RISE = 2.0
"""Percent by which the loss of a tenth of a run may be above the lowest before it: noise; more is no smooth fall."""
SMALL_RISE = 0.01
"""Nats by which it may be in any case: percents of a loss near 0 say nothing."""

# 'surely': the lower end of the 95 % interval.
_WORDS = {"bits_per_byte": "at most", "gain": "surely above", "above_majority": "surely above"}


def gate_limits(gates: Gates, recipe: Recipe, *, gpus: bool) -> dict[str, str]:
    """Return the limit of each gate that is asked for, by name.

    Args:
        gates: of a stage that trains.
        recipe: the stage's own, for its preset, supervision steps and kind.
        gpus: whether there are GPUs; without, their utilisation is not asked for.
    """
    found: dict[str, str] = {}
    trm = recipe.trm
    if trm is not None and trm.supervision > 1:
        found |= {"order": "each below the one before"} if gates.order else {}
        # Where a step is alone there is nothing to refine, whatever the preset promises.
        least = least_refinement(gates, recipe)
        found |= {} if least is None else {"refinement": f"at least {least:g} %"}
    band = norm_band(gates, recipe)
    found |= {} if band is None else {"gradient_norm": f"{band[0]:g} to {band[1]:g}"}
    if gates.validation_loss is not None:
        found["validation_loss"] = f"at most {gates.validation_loss:g}"
    if gates.answers is not None:
        found["answers"] = f"at least {gates.answers:.1%}"
    if gates.decreasing and recipe.rl is None:  # the loss of reinforcement learning lies around 0, however well it learns
        found["decreasing"] = f"falls, no tenth over {RISE:g} % and {SMALL_RISE:g} up"
    if gates.utilisation is not None and gpus:
        found["utilisation"] = f"at least {gates.utilisation:g} %"
    return found


def least_refinement(gates: Gates, recipe: Recipe) -> float | None:
    """Return the least percent of refinement: given, or the preset's; None where nothing is promised."""
    if gates.refinement != "preset":
        return gates.refinement
    promised = PRESETS[recipe.trm.preset].refinement if recipe.trm is not None else None
    return promised[0] if promised else None


def norm_band(gates: Gates, recipe: Recipe) -> tuple[float, float] | None:
    """Return the band of the gradient norm: given, or the preset's; None where nothing is promised."""
    if gates.gradient_norm != "preset":
        return gates.gradient_norm
    return PRESETS[recipe.trm.preset].gradient_norm if recipe.trm is not None else None


def stage_gates(recipe: Recipe, *, gpus: bool) -> dict[str, dict[str, str]]:
    """Return the limits of every stage's gates, and of the evaluation's under its name; stages without gates are left out."""
    from .staged import stage_recipe

    found: dict[str, dict[str, str]] = {}
    for stage in recipe.training:
        if stage.gates is not None:
            found[stage.name] = gate_limits(stage.gates, stage_recipe(recipe, stage.name), gpus=gpus)
    asked = recipe.evaluation.gates
    if asked is not None:
        found[recipe.evaluation.name or "evaluate"] = {
            name: f"{_WORDS.get(name, 'at least')} {value:g}" for name, value in asked.model_dump().items() if value is not None
        }
    return found
