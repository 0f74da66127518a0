"""What a preset of recursion brings besides the loss: learning rates, warm-up and clipping, where a recipe leaves them open."""

from __future__ import annotations

import copy
from typing import Any

from .overlay import flatten
from .recursion import PRESETS, Preset, Recursion
from .schema import Recipe
from .stages import kind_of


def rates(preset: Preset) -> dict[str, float | int | None]:
    """Return key of a pretraining stage -> the preset's value; None: the preset leaves it to the usual rules."""
    return {
        "optimizer.matrix_lr": preset.matrix_lr,
        "optimizer.embedding_lr": preset.embedding_lr,
        "optimizer.clip": preset.clip,
        "schedule.warmup_steps": preset.warmup_steps,
    }


def fill_preset(data: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe's content with the rates of the preset in force put into its pretraining stages where they name none.

    A key that is there, even null, stays. What is no recipe comes back as it is: validation says what is wrong with it.
    """
    stages = data.get("stages")
    if not isinstance(data.get("trm"), dict) or not isinstance(stages, dict):
        return data
    return data | {"stages": {name: _filled(data["trm"], name, section) for name, section in stages.items()}}


def _filled(trm: dict[str, Any], name: str, section: Any) -> Any:
    if not isinstance(section, dict) or kind_of(name, section) != "pretrain":
        return section
    own = flatten(section["set"]) if isinstance(section.get("set"), dict) else {}
    given = own.get("trm.preset", trm.get("preset", Recursion.model_fields["preset"].default))
    preset = PRESETS.get(given) if isinstance(given, str) else None
    if preset is None:
        return section
    filled = copy.deepcopy(section)
    for key, value in rates(preset).items():
        part, last = key.split(".")
        here = filled.setdefault(part, {})
        if isinstance(here, dict) and value is not None:
            # setdefault, so that even a null in the recipe wins: it asks for the usual rules by name.
            here.setdefault(last, value)
    return filled


def contradictions(recipe: Recipe) -> list[str]:
    """Return one sentence for each value that a recipe has in place of its preset's, and on use beyond what is trained."""
    if recipe.trm is None:
        return []
    trm, preset = recipe.trm, PRESETS[recipe.trm.preset]
    # Keys that are null unless somebody wrote them; rates are filled in, and so always there.
    loss = ("weight_base", "improvement_reward", "detach_from", "updates")
    own = {f"trm.{name}": (getattr(trm, name), getattr(preset, name)) for name in loss if getattr(trm, name) is not None}
    wanted = {key: value for key, value in rates(preset).items() if value is not None}
    stage = recipe.pretrain
    own |= {f"stages.{stage.name}.{key}": (value_at(stage, key), value) for key, value in wanted.items()}
    beyond = trm.resolved.inference_supervision > trm.supervision
    used = f"trm.inference_supervision={trm.inference_supervision} is beyond the {trm.supervision} steps that are trained"
    return [used] * beyond + [
        f"{key}={_text(given)} wins over preset {trm.preset}, which has {_text(value)}"
        for key, (given, value) in own.items()
        if given != value
    ]


def value_at(section: Any, key: str) -> Any:
    """Return the value of 'key.path' in a recipe or a section; None where a section on the way is not there."""
    for part in key.split("."):
        section = section.get(part) if isinstance(section, dict) else getattr(section, part, None)
    return section


def _text(value: object) -> str:
    return "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
