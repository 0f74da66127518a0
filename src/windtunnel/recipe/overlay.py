"""Keys laid over the content of a recipe file: `extends`, --set, and what a phase sets."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from .errors import UserError
from .yamlfile import Path_, parse_scalar


def merge(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    """`top` over `base`, section by section."""
    merged = dict(base)
    for key, value in top.items():
        old = merged.get(key)
        # Another kind of corpus or tokenizer shares no keys with the one it replaces.
        both = isinstance(old, dict) and isinstance(value, dict) and value.get("kind", old.get("kind")) == old.get("kind")
        merged[key] = merge(old or {}, value) if both else value
    return merged


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
        here[part] = dict(child or {})
        here = here[part]
    if parts[-1] == "kind" and here.get("kind") != value:
        here.clear()  # the other keys belonged to the kind it was
    here[parts[-1]] = value


def lay_over(data: Mapping[str, Any], flat: Mapping[str, Any], said: str) -> dict[str, Any]:
    """A copy of the data with 'key.path' -> value put into it; a change of kind comes before the keys of the new kind."""
    result = copy.deepcopy(dict(data))
    for key in sorted(flat, key=lambda key: not is_kind(key)):
        put(result, tuple(key.split(".")), copy.deepcopy(flat[key]), f"{said}: {key}")
    return result


def is_kind(key: str) -> bool:
    """Whether a key says what kind a section is of."""
    return key == "kind" or key.endswith(".kind")


def apply_overrides(data: dict[str, Any], overrides: Iterable[str]) -> dict[Path_, str]:
    """Put 'key.path=value' texts into the data; returns where each came from, for messages.

    They also win over what the phases of the recipe set: there the key is taken out and noted under `overridden`.
    A single phase's are changed with phases.NAME.set.key.path=value.

    Raises:
        UserError: not key.path=value, a key under a plain value, no phase of that name.
    """
    origin: dict[Path_, str] = {}
    phases = data.get("phases")
    # A change of kind clears the section, so it comes before the keys of the new kind; what is for all phases before one's.
    for override in sorted(overrides, key=lambda o: (_key(o).startswith("phases."), not is_kind(_key(o)))):
        parts, value = _parse(override)
        if parts[0] == "phases" and len(parts) > 1 and isinstance(phases, list):
            parts = _put_into_phase(phases, parts, value, override)
        else:
            put(data, parts, value, f"--set {override}")
            _take_out(phases, ".".join(parts))
        origin[parts] = f"--set {override}"
    return origin


def _key(override: str) -> str:
    return override.partition("=")[0].strip()


def _parse(override: str) -> tuple[Path_, Any]:
    key, equals, text = override.partition("=")
    parts = tuple(key.strip().split("."))
    if not equals or not all(parts):
        raise UserError(f"--set {override}: expected key.path=value", "for example --set model.depth=12")
    try:
        return parts, parse_scalar(text)
    except (yaml.YAMLError, ValueError):
        return parts, text


def _put_into_phase(phases: list[Any], parts: Path_, value: Any, override: str) -> Path_:
    """Change one phase, told by its name or number; returns the key's path as messages have it."""
    named = [str(phase.get("name")) if isinstance(phase, dict) else "" for phase in phases]
    wanted = parts[1]
    number = named.index(wanted) if wanted in named else int(wanted) if wanted.isdigit() else len(phases)
    if number >= len(phases) or not isinstance(phases[number], dict):
        nearest = difflib.get_close_matches(wanted, named, n=1)
        hint = f"did you mean phases.{nearest[0]}?" if nearest else f"phases: {', '.join(named)}"
        raise UserError(f"--set {override}: the recipe has no phase {wanted!r}", hint)
    phase, rest = phases[number], parts[2:]
    if not rest:
        raise UserError(f"--set {override}: a phase is a section", f"--set phases.{wanted}.set.trm.preset=extreme, for example")
    if rest[0] == "set" and len(rest) > 1:
        key = ".".join(rest[1:])
        own = flatten(phase.get("set") or {})
        phase["set"] = {path: item for path, item in own.items() if not _touches(key, path)} | {key: value}
    else:
        put(phase, rest, value, f"--set {override}")
    return ("phases", str(number), *rest)


def _take_out(phases: Any, key: str) -> None:
    for phase in phases if isinstance(phases, list) else []:
        if isinstance(phase, dict) and isinstance(phase.get("set"), dict):
            own = flatten(phase["set"])
            lost = {path: value for path, value in own.items() if _touches(key, path)}
            if lost:
                phase["set"] = {path: value for path, value in own.items() if path not in lost}
                phase["overridden"] = {**(phase.get("overridden") or {}), **lost}


def _touches(key: str, path: str) -> bool:
    """Whether setting `key` decides `path` too: one is the other or stands above it; a kind, the whole section."""
    section = key.removesuffix(".kind")
    return path == key or path.startswith(f"{section}.") or key.startswith(f"{path}.")
