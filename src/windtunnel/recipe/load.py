"""From a recipe's name or file and --set overrides to a validated Recipe."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from .errors import UserError
from .schema import Recipe
from .yamlfile import Path_, parse_scalar, read_yaml


def recipe_names() -> list[str]:
    """Names of the recipes that ship with the package."""
    return sorted(p.name.removesuffix(".yaml") for p in _shipped().iterdir() if p.name.endswith(".yaml"))


def load_recipe(source: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a shipped recipe by name, or a file, and apply 'key.path=value' overrides.

    A file may start from another recipe with `extends: NAME-or-file`.

    Raises:
        UserError: names the file, line and key, what was expected and the nearest valid name.
    """
    data, lines, path = _read_extended(str(source), seen=())
    origin = {where: f"{path}:{line}" for where, line in lines.items()}
    for override in overrides:
        where = _apply(data, override)
        origin[where] = f"--set {override}"
    return validate(data, str(path), origin)


def validate(data: dict[str, Any], file: str, origin: dict[Path_, str] | None = None) -> Recipe:
    """Validate a mapping as a Recipe; `origin` tells where each key came from, for messages."""
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        problems = list(dict.fromkeys(_explain(item, origin or {}, file) for item in error.errors()))
        raise UserError("\n".join(problems)) from None


def dump_recipe(recipe: Recipe) -> str:
    """The resolved recipe as YAML; loading it gives the same recipe."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _shipped() -> Any:
    return resources.files(__package__) / "recipes"


def _find(source: str) -> Path:
    if source in recipe_names():
        return Path(str(_shipped() / f"{source}.yaml"))
    path = Path(source)
    if path.suffix in (".yaml", ".yml") or path.exists():
        if path.is_dir():
            raise UserError(f"recipe {source} is a directory", f"name a recipe file or one of: {', '.join(recipe_names())}")
        return path
    nearest = difflib.get_close_matches(source, recipe_names(), n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]}?" if nearest else f"shipped recipes: {', '.join(recipe_names())}; or give a .yaml file"
    raise UserError(f"no recipe named {source!r}", hint)


def _read_extended(source: str, seen: tuple[str, ...]) -> tuple[dict[str, Any], dict[Path_, int], Path]:
    path = _find(source)
    if str(path.resolve()) in seen:
        raise UserError(f"recipe {path}: 'extends' goes round in a circle")
    data, lines = read_yaml(path)
    parent = data.pop("extends", None)
    _anchor_files(data, path)
    if parent is None:
        return data, lines, path
    if not isinstance(parent, str):
        raise UserError(f"{path}:{lines[('extends',)]}: extends: expected a recipe's name or file")
    beside = path.parent / parent
    base, _, _ = _read_extended(str(beside) if beside.is_file() else parent, (*seen, str(path.resolve())))
    return _merge(base, data), lines, path


def _anchor_files(data: dict[str, Any], path: Path) -> None:
    """Text files named in a recipe are found from its folder, or else from the current one."""
    section = data.get("data")
    corpus = section.get("corpus") if isinstance(section, dict) else None
    if not isinstance(corpus, dict) or not isinstance(corpus.get("files"), list):
        return
    corpus["files"] = [
        str(path.parent / f)
        if isinstance(f, str) and not Path(f).is_absolute() and any(path.parent.glob(f))
        else f
        for f in corpus["files"]
    ]


def _merge(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in top.items():
        old = merged.get(key)
        both = isinstance(old, dict) and isinstance(value, dict)
        # Another kind of corpus or tokenizer shares no keys with the one it replaces.
        same_kind = both and value.get("kind", old.get("kind")) == old.get("kind")
        merged[key] = _merge(old, value) if both and same_kind else value
    return merged


def _apply(data: dict[str, Any], override: str) -> Path_:
    key, equals, text = override.partition("=")
    parts = tuple(key.strip().split("."))
    if not equals or not all(parts):
        raise UserError(f"--set {override}: expected key.path=value", "for example --set model.depth=12")
    try:
        value = parse_scalar(text)
    except yaml.YAMLError:
        value = text
    here = data
    for i, part in enumerate(parts[:-1]):
        child = here.get(part)
        if child is not None and not isinstance(child, dict):
            raise UserError(f"--set {override}: {'.'.join(parts[: i + 1])} is a value, not a section")
        here[part] = dict(child or {})
        here = here[part]
    if parts[-1] == "kind" and here.get("kind") != value:
        here.clear()  # the other keys belonged to the kind it was
    here[parts[-1]] = value
    return parts


def _explain(item: Any, origin: dict[Path_, str], file: str) -> str:
    location: Path_ = tuple(str(part) for part in item["loc"])
    parts, model = _readable(location)
    key = ".".join(parts) or "recipe"
    where = next((origin[parts[:n]] for n in range(len(parts), 0, -1) if parts[:n] in origin), file)
    if item["type"] == "extra_forbidden":
        names = list(model.model_fields) if model else []
        nearest = difflib.get_close_matches(parts[-1], names, n=1, cutoff=0.4)
        hint = f"nearest: {nearest[0]}" if nearest else f"valid: {', '.join(names)}"
        return f"{where}: {key}: unknown key; {hint}"
    if item["type"] == "missing":
        return f"{where}: {key}: missing; it must be given"
    message = item["msg"].removeprefix("Value error, ")
    context = item.get("ctx", {})
    nearest = []
    if "expected" in context and isinstance(item["input"], str):
        choices = [c.strip("' ") for c in str(context["expected"]).replace(" or ", ",").split(",")]
        nearest = difflib.get_close_matches(item["input"], choices, n=1, cutoff=0.5)
    value = "" if isinstance(item["input"], dict | BaseModel) else f" (got {item['input']!r})"
    return f"{where}: {key}: {message}{value}" + (f"; nearest: {nearest[0]}" if nearest else "")


def _readable(location: Path_) -> tuple[Path_, type[BaseModel] | None]:
    """Drop pydantic's union tags from a location; also the section that the last key belongs to."""
    parts: list[str] = []
    model: type[BaseModel] | None = Recipe
    rest = list(location)
    owner = model
    while rest:
        part = rest.pop(0)
        parts.append(part)
        owner = model
        field = model.model_fields.get(part) if model else None
        options = list(_models(field.annotation)) if field else []
        if len(options) > 1 and rest:
            tag = rest.pop(0)
            model = next((m for m in options if m.model_fields["kind"].default == tag), None)
        elif options:
            model = options[0]
        else:
            model = None
            break  # what follows a plain field names a branch of its type, not a key
    if rest and rest[0].isdigit():
        parts.append(rest[0])
    return tuple(parts), owner


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        return
    arguments: Iterable[Any] = get_args(annotation)
    for argument in arguments:
        yield from _models(argument)
