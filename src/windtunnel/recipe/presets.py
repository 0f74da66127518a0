"""What a preset of recursion brings besides the loss: learning rates, warm-up and clipping, where a recipe leaves them open."""

from __future__ import annotations

import copy
from typing import Any

from .recursion import PRESETS, Preset, Recursion
from .schema import Recipe

OPTIMIZER, SCHEDULE = "stages.pretrain.optimizer", "stages.pretrain.schedule"


def rates(preset: Preset) -> dict[str, float | int | None]:
    """Key of the recipe -> the preset's value; None: the preset leaves it to the usual rules."""
    return {
        f"{OPTIMIZER}.matrix_lr": preset.matrix_lr,
        f"{OPTIMIZER}.embedding_lr": preset.embedding_lr,
        f"{OPTIMIZER}.clip": preset.clip,
        f"{SCHEDULE}.warmup_steps": preset.warmup_steps,
    }


def fill_preset(data: dict[str, Any]) -> dict[str, Any]:
    """The content of a recipe with its preset's rates where it names none; a key that is there, even null, stays.

    What is no recipe comes back as it is: validation says what is wrong with it.
    """
    trm = data.get("trm")
    if not isinstance(trm, dict):
        return data
    name = trm.get("preset", Recursion.model_fields["preset"].default)
    preset = PRESETS.get(name) if isinstance(name, str) else None
    if preset is None:
        return data
    filled = copy.deepcopy(data)
    for key, value in rates(preset).items():
        *sections, last = key.split(".")
        here: Any = filled
        for section in sections:
            here = here.setdefault(section, {}) if isinstance(here, dict) else None
        if isinstance(here, dict) and value is not None:
            here.setdefault(last, value)
    return filled


def contradictions(recipe: Recipe) -> list[str]:
    """One sentence for each value that a recipe has in place of its preset's, and on use beyond what is trained."""
    if recipe.trm is None:
        return []
    trm, preset = recipe.trm, PRESETS[recipe.trm.preset]
    loss = ("weight_base", "improvement_reward", "detach_from", "updates")
    own = {f"trm.{name}": (getattr(trm, name), getattr(preset, name)) for name in loss if getattr(trm, name) is not None}
    wanted = {key: value for key, value in rates(preset).items() if value is not None}
    own |= {key: (value_at(recipe, key), value) for key, value in wanted.items()}
    beyond = trm.resolved.inference_supervision > trm.supervision
    used = f"trm.inference_supervision={trm.inference_supervision} is beyond the {trm.supervision} steps that are trained"
    return [used] * beyond + [
        f"{key}={_text(given)} wins over preset {trm.preset}, which has {_text(value)}"
        for key, (given, value) in own.items()
        if given != value
    ]


def value_at(recipe: Recipe, key: str) -> Any:
    """The value of 'key.path'; None where a section on the way is not there."""
    here: Any = recipe
    for part in key.split("."):
        here = getattr(here, part, None)
    return here


def _text(value: object) -> str:
    return "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
