"""Keys laid over the content of a recipe file: `extends`, --set, and what a stage sets."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import yaml

from .errors import UserError
from .reading import Path_, parse_scalar

GONE = ("phases", "phase")
"""Keys of older recipes whose place `stages` has taken."""
BUDGET = "budget"
LIMITS = ("dollars", "hours", "tokens", "epochs", "steps")


def merge(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    """Lay `top` over `base`, section by section; under `stages` a kind's name stands for all stages of that kind."""
    stages = base.get("stages"), top.get("stages")
    if isinstance(stages[0], dict) and isinstance(stages[1], dict):
        from .stages import spread_kinds

        top = {**top, "stages": spread_kinds(stages[0], stages[1])}
    merged = dict(base)
    for key, value in top.items():
        old = merged.get(key)
        # Another kind of corpus or tokenizer shares no keys with the one it replaces.
        if not (isinstance(old, dict) and isinstance(value, dict) and value.get("kind", old.get("kind")) == old.get("kind")):
            merged[key] = value
        else:
            merged[key] = merge(replace_limits(old, set(old), value) if key == BUDGET else old, value)
    return merged


def replace_limits(budget: dict[str, Any], inherited: Iterable[str], named: Mapping[str, Any]) -> dict[str, Any]:
    """Take the inherited limits out of a budget where others are named, and keep them under `replaced`.

    Whoever names dollars means dollars: an hour that the recipe beneath happens to have would end the run long before. Epochs
    stay where money or time is named: how often data can be repeated is not a matter of what may be spent.
    """
    if all(value is None for value in named.values()):
        return budget
    length = any(named.get(key) is not None for key in ("steps", "tokens"))
    stay = {*named} if length else {*named, "epochs"}
    gone = {key: budget[key] for key in inherited if key not in stay and key in LIMITS and budget.get(key) is not None}
    if not gone:
        return budget
    kept = {key: value for key, value in budget.items() if key not in gone}
    return kept | {"replaced": {**(budget.get("replaced") or {}), **gone}}


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Sections and dotted keys alike as {'key.path': value}; of a key given in both ways the later counts."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        found = flatten(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
        for path, item in found.items():
            flat.pop(path, None)
            flat[path] = item
    return flat


def put(data: dict[str, Any], parts: Path_, value: Any, said: str) -> None:
    """Set one key; sections on the way to it are made.

    Raises:
        UserError: a value stands where a section would have to be; `said` is who asked.
    """
    here = data
    for i, part in enumerate(parts[:-1]):
        child = here.get(part)
        if child is not None and not isinstance(child, dict):
            raise UserError(f"{said}: {'.'.join(parts[: i + 1])} is a value, not a section")
        # A copy: the section may be shared with the recipe that this one extends.
        here[part] = dict(child or {})
        here = here[part]
    if parts[-1] == "kind" and here.get("kind") != value:
        here.clear()  # the other keys belonged to the kind it was
    here[parts[-1]] = value


def lay_over(data: Mapping[str, Any], flat: Mapping[str, Any], said: str) -> dict[str, Any]:
    """Return a copy of the data with 'key.path' -> value put into it; a change of kind comes before the keys of the new kind."""
    result = copy.deepcopy(dict(data))
    for key in sorted(flat, key=lambda key: not is_kind(key)):
        put(result, tuple(key.split(".")), copy.deepcopy(flat[key]), f"{said}: {key}")
    return result


def is_kind(key: str) -> bool:
    """Whether a key says what kind a section is of."""
    return key == "kind" or key.endswith(".kind")


def apply_overrides(
    data: dict[str, Any], overrides: Iterable[str], inherited: Callable[[Path_], bool] = lambda path: False
) -> dict[Path_, str]:
    """Put 'key.path=value' texts into the data; return where each came from, for messages.

    A limit of a budget takes the place of those that are `inherited`, rather than the user's own.

    They also win over what the stages set for themselves: there the key is taken out and noted under `overridden`.
    One stage's are changed with stages.NAME.set.key.path=value and stages.NAME.budget.key=value; stages.KIND.key=value
    reaches all stages of that kind where none has its name.

    Raises:
        UserError: not key.path=value, a key under a plain value, no stage of that name.
    """
    origin: dict[Path_, str] = {}
    # A change of kind clears the section, so it comes before the keys of the new kind; what is for all stages before one's.
    for override in sorted(overrides, key=lambda o: (_key(o) != "stages", _of_one_stage(data, _key(o)), not is_kind(_key(o)))):
        parts, value = _parse(override)
        if parts[0] in GONE:
            raise UserError(f"--set {override}: there are no {parts[0]} any more", f"--set {_renamed(parts)}=... (stages)")
        for path in _spread(data, parts):
            _put_override(data, path, value, override)
            origin[path] = f"--set {override}"
        if parts[0] != "stages":
            _take_out(data.get("stages"), ".".join(parts), value)
    _give_way(data, origin, inherited)
    return origin


def _give_way(data: dict[str, Any], origin: Iterable[Path_], inherited: Callable[[Path_], bool]) -> None:
    """In each budget that --set names limits of, let the inherited ones go."""
    named: dict[Path_, list[str]] = {}
    for path in origin:
        if len(path) > 1 and path[-2] == BUDGET:
            named.setdefault(path[:-1], []).append(path[-1])
    for section, keys in named.items():
        owner: Any = data
        for part in section[:-1]:
            owner = owner.get(part) if isinstance(owner, dict) else None
        budget = owner.get(BUDGET) if isinstance(owner, dict) else None
        if isinstance(owner, dict) and isinstance(budget, dict):
            others = [key for key in budget if key not in keys and inherited((*section, key))]
            owner[BUDGET] = replace_limits(budget, others, {key: budget.get(key) for key in keys})


def _renamed(parts: Path_) -> str:
    return ".".join(("stages" if parts[0] == "phases" else "stage", *parts[1:]))


def _of_one_stage(data: dict[str, Any], key: str) -> bool:
    parts = key.split(".")
    return parts[0] == "stages" and len(parts) > 1 and parts[1] in (data.get("stages") or {})


def _spread(data: dict[str, Any], parts: Path_) -> list[Path_]:
    """Return the paths that an override's path stands for: one, or one for each stage of the kind that it names."""
    stages = data.get("stages")
    if parts[0] != "stages" or len(parts) < 3 or not isinstance(stages, dict) or parts[1] in stages:
        return [parts]
    from .stages import names_of_kind

    return [("stages", name, *parts[2:]) for name in names_of_kind(stages, parts[1])] or [parts]


def _put_override(data: dict[str, Any], parts: Path_, value: Any, override: str) -> None:
    """Change one key; what follows stages.NAME.set is the path of a key of the recipe."""
    from .stages import KINDS

    stages: dict[str, Any] = data["stages"] if isinstance(data.get("stages"), dict) else {}
    if parts[0] == "stages" and len(parts) > 2 and parts[1] not in {*stages, *KINDS}:
        nearest = difflib.get_close_matches(parts[1], list(stages), n=1)
        hint = f"did you mean stages.{nearest[0]}?" if nearest else f"stages: {', '.join(stages)}"
        raise UserError(f"--set {override}: the recipe has no stage {parts[1]!r}", hint)
    # Behind `set` keys are dotted in one flat mapping, where put would make sections.
    stage = stages.get(parts[1]) if len(parts) > 3 and parts[2] == "set" else None
    if not isinstance(stage, dict):
        put(data, parts, value, f"--set {override}")
        return
    key, own = ".".join(parts[3:]), flatten(stage.get("set") or {})
    kept = {path: item for path, item in own.items() if not _touches(key, path)}
    stages[parts[1]] = {**stage, "set": kept | {key: value}}


def _key(override: str) -> str:
    return override.partition("=")[0].strip()


def _parse(override: str) -> tuple[Path_, Any]:
    key, equals, text = override.partition("=")
    parts = tuple(key.strip().split("."))
    if not equals or not all(parts):
        raise UserError(f"--set {override}: expected key.path=value", "for example --set model.depth=12")
    try:
        return parts, parse_scalar(text)
    # What is no YAML is meant as text, such as 'a: b' or [x.
    except (yaml.YAMLError, ValueError):
        return parts, text


def _take_out(stages: Any, key: str, value: Any) -> None:
    """Take a key that --set decides out of what each stage sets for itself, and note what it was.

    Where the stage makes the section one of another kind, which begins empty, the value takes its key's place there.
    """
    for name, stage in stages.items() if isinstance(stages, dict) else ():
        if not isinstance(stage, dict):
            continue
        own = flatten(stage["set"]) if isinstance(stage.get("set"), dict) else {}
        limits = {f"budget.{k}": v for k, v in stage["budget"].items()} if isinstance(stage.get("budget"), dict) else {}
        lost = {path: value for path, value in (own | limits).items() if _touches(key, path)}
        if not lost:
            continue
        stage = stages[name] = {**stage, "overridden": {**(stage.get("overridden") or {}), **lost}}
        if own.keys() & lost.keys():
            kept = {path: old for path, old in own.items() if path not in lost}
            anew = any(key.startswith(f"{kind.removesuffix('kind')}") for kind in kept if is_kind(kind) and kind != "kind")
            stage["set"] = {**kept, key: value} if anew else kept
        if limits.keys() & lost.keys():
            stage["budget"] = {path.partition(".")[2]: old for path, old in limits.items() if path not in lost}


def _touches(key: str, path: str) -> bool:
    """Whether setting `key` decides `path` too: one is the other or stands above it; a kind, the whole section."""
    section = key.removesuffix(".kind")
    return path == key or path.startswith(f"{section}.") or key.startswith(f"{path}.")
