"""What pydantic found wrong with a recipe, in one plain sentence a key."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from .data import corpus_class
from .reading import Path_
from .registry import plugins
from .schema import Recipe
from .section import either
from .synonyms import same_key, same_value

# More is a list to read, not a hint.
_MOST_PATHS = 2
_LONGEST_VALUE = 80
CORPUS = ("data", "corpus")
"""Where a kind may be one that an installed package offers."""
# pydantic's names of what is wrong (docs.pydantic.dev/latest/errors/validation_errors) -> what a recipe's writer is told.
_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list, such as [a, b]",
    "tuple_type": "a list",
    "model_type": "a section of keys",
    "model_attributes_type": "a section of keys",
    "dict_type": "a section of keys",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "multiple_of": "a multiple of {multiple_of}",
    "too_short": "at least {min_length} of them",
    "string_too_short": "at least {min_length} character",
    "string_pattern_mismatch": "text that matches {pattern}",
    "literal_error": "{expected}",
}


def explain(errors: Sequence[Any], origin: dict[Path_, str], file: str, stages: Mapping[str, str]) -> list[str]:
    """Return one line a wrong key: where it stands, the key, what was expected and the nearest valid name.

    Args:
        errors: as pydantic lists them.
        origin: where each key came from.
        file: what is named for keys that came from nowhere.
        stages: names of the stages that train, and their kinds.
    """
    groups: dict[Path_, list[Any]] = {}
    models: dict[Path_, type[BaseModel] | None] = {}
    for item in errors:
        parts, model = _readable(tuple(str(part) for part in item["loc"]))
        groups.setdefault(parts, []).append(item)
        models[parts] = model
    return [
        _line(
            f"{_where(parts, items[0]['type'], origin, file)}: {'.'.join(parts) or 'recipe'}", parts, items, models[parts], stages
        )
        for parts, items in groups.items()
    ]


def _line(start: str, parts: Path_, items: list[Any], model: type[BaseModel] | None, stages: Mapping[str, str]) -> str:
    first = items[0]
    match first["type"]:
        case "extra_forbidden":
            names = [name for name, field in model.model_fields.items() if not field.exclude] if model else []
            if parts[0] == "stages" and len(parts) > 2 and parts[1] in stages:
                stages = {parts[1]: stages[parts[1]]}
            same = same_key(".".join(parts), first["input"], stages) or _of_recipe(parts) or _of_stage(parts, stages)
            same = same or _elsewhere(parts[-1], stages)
            return f"{start}: unknown key; {same or _nearest(parts[-1], names, 0.6) or 'valid: ' + ', '.join(names)}"
        case "missing":
            return f"{start}: missing; it must be given, with what `windtunnel recipe --keys {parts[0]}` lists"
        case "union_tag_not_found":
            return f"{start}.kind: missing; expected {either(_kinds(parts))}"
        case "union_tag_invalid":
            given, kinds = str(first["ctx"]["tag"]), _kinds(parts)
            kinds += [plugin.name for plugin in plugins("corpora")] if parts == CORPUS else []
            same = same_value("kind", given, nullable=False)
            nearest = f"; nearest: {same}" if same in kinds else _hint(given, kinds)
            return f"{start}.kind: expected {either(kinds)} (got {given!r}){nearest}"
    wanted = list(dict.fromkeys(expected(item) for item in items))
    # Several errors of one key are the branches of a union, each of which refused the value.
    message = wanted[0] if len(wanted) == 1 else "expected " + " or ".join(each.removeprefix("expected ") for each in wanted)
    choices = [c for item in items if item["type"] == "literal_error" for c in _choices(item)]
    key = parts[-1] if parts else ""
    same = same_value(key, first["input"], nullable=_nullable(parts, model))
    if choices and same not in (*choices, "null"):
        same = same_value(key, same, nullable=False)  # another key of the name has that value, this one does not
    nearest = f"; nearest: {same}" if same else _hint(first["input"], choices) or _quoted(first)
    return start + f": {message}{_got(first['input'])}{nearest}"


def _of_recipe(parts: Path_) -> str:
    """Say that a key of a stage is one of the recipe itself; nothing where it is none."""
    if len(parts) != 3 or parts[0] != "stages" or parts[2] not in Recipe.model_fields:
        return ""
    _, stage, name = parts
    return f"{name} is a key of the recipe itself, not of a stage; for this stage alone: stages.{stage}.set={{{name}...: ...}}"


def _of_stage(parts: Path_, stages: Mapping[str, str]) -> str:
    """Say that a key belongs to data of another kind, which some stage may have; nothing where there is no such key at all."""
    from .keys import recipe_keys

    path = ".".join(parts)
    if parts[0] != "data" or not stages or path not in {key.path for group in recipe_keys() for key in group.keys}:
        return ""
    where = " or ".join(f"stages.{name}.set.{path}" for name in stages)
    return f"data of this kind has none; where a stage has data of its own: {where}"


def _elsewhere(name: str, stages: Mapping[str, str]) -> str:
    """Say where a key of this very name stands, the shortest paths first, and of several stages the recipe's own."""
    from .keys import recipe_keys  # which reads this module

    paths = {key.path for group in recipe_keys() for key in group.keys if key.path.rpartition(".")[2] == name}
    own = {
        path.replace(f"stages.{kind}.", f"stages.{stage}.", 1)
        for stage, kind in stages.items()
        for path in paths
        if path.startswith(f"stages.{kind}.")
    }
    if own:
        paths = own | {path for path in paths if not path.startswith("stages.")}
    return f"nearest: {', '.join(sorted(paths, key=lambda path: (len(path), path))[:_MOST_PATHS])}" if paths else ""


def _nullable(parts: Path_, model: type[BaseModel] | None) -> bool:
    field = model.model_fields.get(parts[-1]) if model is not None and parts else None
    return field is not None and type(None) in get_args(field.annotation)


def _where(parts: Path_, error: str, origin: dict[Path_, str], file: str) -> str:
    """Where the key stands; for a key that is missing, the kind that asks for it or else its section."""
    if error == "union_tag_invalid":
        parts = (*parts, "kind")
    elif error == "missing" and (*parts[:-1], "kind") in origin:
        return origin[(*parts[:-1], "kind")]
    elif error == "extra_forbidden" and parts not in origin:  # who gave a part of a section made the section
        parts = next((known for known in origin if known[: len(parts)] == parts), parts)
    return next((origin[parts[:n]] for n in range(len(parts), 0, -1) if parts[:n] in origin), file)


def expected(item: Any) -> str:
    """Return what was expected in place of a value, of an error that pydantic lists."""
    known = _EXPECTED.get(item["type"])
    if known is None:
        return str(item["msg"]).removeprefix("Value error, ")
    return "expected " + known.format(**item.get("ctx", {}))


def _got(value: Any) -> str:
    if isinstance(value, dict | BaseModel):
        return ""
    # As YAML writes them.
    text = json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
    return f" (got {text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + '...'})"


def _choices(item: Any) -> list[str]:
    return [c.strip("' ") for c in str(item["ctx"]["expected"]).replace(" or ", ",").split(",")]


def _nearest(name: str, names: Iterable[str], cutoff: float = 0.4) -> str:
    # Values are short, so that one wrong letter is a large share of them; of keys, another's word is like none of ours.
    found = difflib.get_close_matches(name, list(names), n=1, cutoff=cutoff)
    return f"nearest: {found[0]}" if found else ""


def _hint(value: Any, choices: Iterable[str]) -> str:
    nearest = _nearest(value, choices) if isinstance(value, str) else ""
    return f"; {nearest}" if nearest else ""


def _quoted(item: Any) -> str:
    """Say how a word of YAML's own, or a number, is written where a text is meant."""
    value = item["input"]
    if item["type"] != "string_type" or not isinstance(value, bool | int | float):
        return ""
    # YAML reads no, on, 1e3 and 2024 as something else than text; the shell takes one pair of quotes away.
    return f"; as a text: '\"{str(value).lower() if isinstance(value, bool) else value}\"'"


def _kinds(parts: Path_) -> list[str]:
    model: type[BaseModel] = Recipe
    *sections, last = parts[:1] if parts[0] == "stages" else parts
    for part in sections:
        model = next(sections_of(model.model_fields[part].annotation))
    return [str(m.model_fields["kind"].default) for m in sections_of(model.model_fields[last].annotation)]


def _readable(location: Path_) -> tuple[Path_, type[BaseModel] | None]:
    """Drop pydantic's union tags from a location; also the section that the last key belongs to."""
    parts: list[str] = []
    model: type[BaseModel] | None = Recipe
    rest = list(location)
    owner: type[BaseModel] | None = model
    while rest:
        part = rest.pop(0)
        parts.append(part)
        if part.isdigit():
            continue  # an item of a list of sections
        owner = model
        field = model.model_fields.get(part) if model else None
        options = list(sections_of(field.annotation)) if field else []
        if field is not None and get_origin(field.annotation) is dict and options and rest:
            parts.append(rest.pop(0))  # a section's own name
        if len(options) > 1 and rest:
            tag = rest.pop(0)
            model = next((m for m in options if m.model_fields["kind"].default == tag), None)
            if model is None and tuple(parts) == CORPUS:
                model = corpus_class(tag)
        elif options:
            model = options[0]
        else:
            model = None
            break  # what follows a plain field names a branch of its type, not a key
    if rest and rest[0].isdigit():
        parts.append(rest[0])
    return tuple(parts), owner


def sections_of(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the sections that may stand where a key has this type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        return
    for argument in get_args(annotation):
        yield from sections_of(argument)
