"""The recipe of each stage: checked when a recipe is loaded, made when the stage is planned or run."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import Any

from pydantic import ValidationError

from .corpora import ConversationCorpus, PromptCorpus
from .errors import UserError
from .explain import explain
from .overlay import GONE, flatten, lay_over
from .presets import contradictions, fill_preset, value_at
from .reading import Path_
from .schema import Recipe
from .stage_base import Budget, TrainingStage
from .stages import TRAINING, complete, kind_of

FIX = "; fix: "
NOT_IN_A_STAGE = ("name", "stages", "stage", "extends", "budget")


def validate(data: dict[str, Any], file: str, origin: dict[Path_, str] | None = None) -> Recipe:
    """Validate a mapping as a Recipe, presets filled in, and the recipe of each of its stages.

    Args:
        data: what was read, presets not filled in yet.
        file: what it is from, for messages about keys without an origin.
        origin: where each key came from, for messages.

    Raises:
        UserError: names the file, line and key, what was expected and the nearest valid name.
    """
    origin = origin or {}
    for gone in GONE:
        if data.get(gone):
            raise UserError(
                f"{origin.get((gone,), file)}: {gone}: runs that follow one another are stages now",
                "write each under `stages`, by its name, with kind: pretrain and its own keys, budget and gates",
            )
    model = data.get("model")
    kind = model.get("kind", "gpt") if isinstance(model, dict) else "gpt"
    try:
        data = data | {"stages": complete(data.get("stages") or {}, gpt=kind == "gpt")}
    except ValueError as error:
        raise UserError(f"{origin.get(('stages',), file)}: {error}") from None
    filled = fill_preset(data)
    recipe = _valid(filled, origin, file)
    for stage in recipe.training:
        if stage.set:
            _check_stage(filled, stage, [one.name for one in recipe.training], origin, file)
    # Dotted from here on, so that whoever lays it over a recipe need not know in which of two ways it was written.
    dotted = {stage.name: stage.model_copy(update={"set": flatten(stage.set)}) for stage in recipe.training if stage.set}
    return recipe.model_copy(update={"stages": {**recipe.stages, **dotted}}) if dotted else recipe


def stage_recipe(recipe: Recipe, name: str, *, hours: float = 0.0, dollars: float = 0.0) -> Recipe:
    """Return the recipe of one stage that trains: what the stage sets is laid over the recipe, its budget is the stage's.

    Args:
        recipe: of all stages, or that stage's own, which is returned as it is.
        name: the stage's key under `stages`.
        hours: what the stages before it took of the recipe's budget.
        dollars: likewise.

    Raises:
        UserError: the recipe has no such stage; names the nearest.
    """
    if recipe.stage == name:
        return recipe
    stage = recipe.stages.get(name)
    if not isinstance(stage, TrainingStage):
        raise _no_stage(recipe, name)
    data = recipe.model_dump(mode="json")
    # What prepares and measures is everybody's; the other stages that train would make this a job of several again.
    others = {key: section for key, section in data["stages"].items() if section["kind"] in ("prepare", "evaluate")}
    own = data["stages"][name] | {"set": {}, "overridden": {}, "share": None, "budget": {}}
    order = [key for key in data["stages"] if key == name or key in others]
    data["stages"] = {key: own if key == name else others[key] for key in order}
    data["stage"] = name
    # Validated again, not copied: what a stage sets may not fit the rest, and pydantic's copy asks nobody.
    resolved = Recipe.model_validate(lay_over(data, stage.set, f"stage {name}"))
    resolved = _asked_as_tuned(recipe, resolved, name)
    return resolved.model_copy(update={"budget": _budget(recipe.budget, stage, hours, dollars)})


def _asked_as_tuned(recipe: Recipe, own: Recipe, name: str) -> Recipe:
    """Put a stage's prompts in the form of the conversations that the model learned from in a stage before it."""
    corpus = own.data.corpus
    if not isinstance(corpus, PromptCorpus) or corpus.template != "auto":
        return own
    for stage in recipe.training:
        if stage.name == name:
            break
        before = stage_recipe(recipe, stage.name).data.corpus
        if isinstance(before, ConversationCorpus):
            template = "chat" if before.template == "auto" else before.template
            corpus = corpus.model_copy(update={"template": template})
    return own.model_copy(update={"data": own.data.model_copy(update={"corpus": corpus})})


def recipe_notes(recipe: Recipe) -> list[str]:
    """Return what --set and the recipe replaced: values of presets, and of stages. Each sentence says which of two wins."""
    limits = [*replaced_limits(recipe.budget, "budget")]
    for stage in recipe.training:
        limits += replaced_limits(stage.budget, f"stages.{stage.name}.budget")
    if not recipe.staged:
        return limits + contradictions(recipe)
    notes: dict[str, list[str]] = {}
    for stage in recipe.training:
        own = stage_recipe(recipe, stage.name)
        lost = [_lost(key, value, value_at(own, key)) for key, value in stage.overridden.items() if value != value_at(own, key)]
        for note in (*lost, *contradictions(own)):
            # The same note of five stages is one note: without the stage's name they are equal.
            notes.setdefault(note.replace(f"stages.{stage.name}.", "stages.NAME."), []).append(stage.name)
    return limits + [f"stage {', '.join(names)}: {note}" for note, names in notes.items()]


def replaced_limits(budget: Budget, key: str) -> list[str]:
    """Say which inherited limits of a budget gave way to which; those that were given anew as well did not."""
    gone = [f"{key}.{name}={value}" for name, value in budget.replaced.items() if getattr(budget, name) is None]
    named = [f"{key}.{name}" for name, value in budget.model_dump().items() if value is not None]
    if not gone or not named:
        return []
    stand = "stand" if len(named) > 1 else "stands"
    return [f"{', '.join(named)} {stand} in place of {', '.join(gone)} of the recipe beneath; give both to keep both"]


def _budget(whole: Budget, stage: TrainingStage, hours: float, dollars: float) -> Budget:
    """Return a stage's limits: its own, and of the recipe's hours and dollars what is left or the stage's share.

    Nothing is validated: what is left may be 0, which no recipe may ask for.
    """
    limits = {key: value for key, value in stage.budget.model_dump().items() if value is not None}
    for key, spent in (("hours", hours), ("dollars", dollars)):
        total = getattr(whole, key)
        if total is None:
            continue
        most = max(0.0, total - spent)
        if stage.share is not None:
            most = min(most, stage.share * total)
        own = getattr(stage.budget, key)
        limits[key] = most if own is None else min(own, most)
    return whole.model_copy(update=limits)


def _lost(key: str, own: Any, value: Any) -> str:
    return f"--set {key}={value} wins over the stage's own {own}" if value is not None else f"--set takes away its {key}={own}"


def _check_stage(
    data: dict[str, Any], stage: TrainingStage, training: Collection[str], origin: dict[Path_, str], file: str
) -> None:
    """Validate the recipe of a stage: what it sets laid over the recipe, without the other stages that train."""
    own = flatten(stage.set)
    lines = _lines(stage, origin)
    for key in own:
        section = key.split(".")[0]
        if section in NOT_IN_A_STAGE:
            where = lines.get(tuple(key.split(".")), file)
            instead = f"write it as stages.{stage.name}.{key}" if section == "budget" else "take it out of the stage"
            raise UserError(f"{where}: stages.{stage.name}.set.{key}: a stage cannot change {key} here", instead)
    said = f"{lines.get((), file)}: stages.{stage.name}.set"
    # As `stage_recipe` has it: what other stages ask for is of their data.
    kept = {name: value for name, value in data["stages"].items() if name == stage.name or name not in training}
    data = data | {"stages": kept, "stage": stage.name}
    _valid(lay_over(data, own, said), {**origin, **lines}, file, f" (in stage {stage.name})")


def _lines(stage: TrainingStage, origin: dict[Path_, str]) -> dict[Path_, str]:
    """Return where the keys of a stage's `set` stand, by the keys of the recipe that they change; () is the stage itself."""
    start = ("stages", stage.name, "set")
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
        stages = data.get("stages")
        kinds = {name: kind_of(name, section) for name, section in stages.items()} if isinstance(stages, dict) else {}
        trains = {name: kind for name, kind in kinds.items() if kind in TRAINING}
        message = "\n".join(f"{line}{suffix}" for line in explain(error.errors(), origin, file, trains))
    # One sentence of a validator holds both, as pydantic has one text; the command line prints them apart.
    what, fixed, fix = message.partition(FIX)
    raise UserError(f"{what}{suffix}", fix.removesuffix(suffix)) if fixed and "\n" not in message else UserError(message)


def _no_stage(recipe: Recipe, name: str) -> UserError:
    names = [stage.name for stage in recipe.training]
    nearest = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean --stage {nearest[0]}?" if nearest else f"its stages that train: {', '.join(names)}"
    return UserError(f"recipe {recipe.name} has no stage {name!r} that trains", hint)
