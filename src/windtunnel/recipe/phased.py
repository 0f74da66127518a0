"""The recipe of each phase: checked when a recipe is loaded, made when the phase is planned or run."""

from __future__ import annotations

import difflib
from typing import Any

from pydantic import ValidationError

from .errors import UserError
from .explain import explain
from .overlay import flatten, lay_over
from .phases import Phase
from .presets import contradictions, fill_preset, rates, value_at
from .recursion import PRESETS
from .schema import Recipe
from .yamlfile import Path_

FIX = "; fix: "
NOT_IN_A_PHASE = ("name", "phases", "phase", "extends")


def validate(data: dict[str, Any], file: str, origin: dict[Path_, str] | None = None) -> Recipe:
    """Validate a mapping as a Recipe, presets filled in and phases too; `origin` tells where each key came from.

    Raises:
        UserError: names the file, line and key, what was expected and the nearest valid name.
    """
    origin = origin or {}
    recipe = _valid(fill_preset(data), origin, file)
    if not recipe.phases:
        return recipe
    phases = tuple(_checked(data, number, phase, recipe, origin, file) for number, phase in enumerate(recipe.phases))
    return recipe.model_copy(update={"phases": phases})


def phase_recipe(recipe: Recipe, name: str) -> Recipe:
    """The recipe of one phase: what the phase sets is laid over the recipe; no phases are left in it.

    Raises:
        UserError: the recipe has no such phase; names the nearest.
    """
    if recipe.phase == name and not recipe.phases:
        return recipe
    phase = next((phase for phase in recipe.phases if phase.name == name), None)
    if phase is None:
        raise _no_phase(recipe, name)
    data = recipe.model_dump(mode="json") | {"phases": (), "phase": name}
    return Recipe.model_validate(lay_over(data, phase.set, f"phase {name}"))


def recipe_notes(recipe: Recipe) -> list[str]:
    """What --set and the recipe replaced: values of presets, and of phases. Which of the two wins is in each sentence."""
    if not recipe.phases:
        return contradictions(recipe)
    notes: dict[str, list[str]] = {}
    for phase in recipe.phases:
        own = phase_recipe(recipe, phase.name)
        lost = [_lost(key, value, value_at(own, key)) for key, value in phase.overridden.items() if value != value_at(own, key)]
        for note in (*lost, *contradictions(own)):
            notes.setdefault(note, []).append(phase.name)
    return [f"phase {', '.join(names)}: {note}" for note, names in notes.items()]


def _lost(key: str, own: Any, value: Any) -> str:
    return f"--set {key}={value} wins over the phase's own {own}" if value is not None else f"--set takes away its {key}={own}"


def _checked(data: dict[str, Any], number: int, phase: Phase, base: Recipe, origin: dict[Path_, str], file: str) -> Phase:
    """The phase with dotted keys and with its preset's rates written out, so that laying it over is all there is to do."""
    own = flatten(phase.set)
    lines = _lines(number, phase, origin)
    for key in own:
        if key.split(".")[0] in NOT_IN_A_PHASE:
            where = lines.get(tuple(key.split(".")), file)
            raise UserError(f"{where}: phases.{phase.name}.set.{key}: a phase cannot change {key}", "take it out of the phase")
    plain = {key: value for key, value in data.items() if key != "phases"}
    said = f"{lines.get((), file)}: phases.{phase.name}.set"
    here = fill_preset(lay_over(plain | {"phase": phase.name}, own, said))
    recipe = _valid(here, {**origin, **lines}, file, f" (in phase {phase.name})")
    if recipe.trm is not None:
        found = {key: value_at(recipe, key) for key in rates(PRESETS[recipe.trm.preset])}
        own |= {key: value for key, value in found.items() if value != value_at(base, key)}
    return phase.model_copy(update={"set": own})


def _lines(number: int, phase: Phase, origin: dict[Path_, str]) -> dict[Path_, str]:
    """Where the keys of a phase's `set` stand, by the keys of the recipe that they change; () is the phase itself."""
    start = ("phases", str(number), "set")
    lines: dict[Path_, str] = {(): origin[start[:2]]} if start[:2] in origin else {}
    for where, line in origin.items():
        if where[:3] == start and len(where) > 3:
            key = tuple(".".join(where[3:]).split("."))
            lines[key] = line
            for length in range(1, len(key)):
                lines.setdefault(key[:length], line)
    return lines


def _valid(data: dict[str, Any], origin: dict[Path_, str], file: str, suffix: str = "") -> Recipe:
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        message = "\n".join(f"{line}{suffix}" for line in explain(error.errors(), origin, file))
    what, fixed, fix = message.partition(FIX)
    raise UserError(f"{what}{suffix}", fix.removesuffix(suffix)) if fixed and "\n" not in message else UserError(message)


def _no_phase(recipe: Recipe, name: str) -> UserError:
    names = [phase.name for phase in recipe.phases]
    if not names:
        return UserError(f"recipe {recipe.name} has no phases", "leave --phase out")
    nearest = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean --phase {nearest[0]}?" if nearest else f"its phases: {', '.join(names)}"
    return UserError(f"recipe {recipe.name} has no phase {name!r}", hint)
