"""JSON schemas of answers: what a value has that its schema does not allow, for the keywords that formats need.

Any other keyword is refused when a task is read, and none is ignored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from windtunnel.recipe import UserError

from .reading import shown

KINDS: dict[str, tuple[type, ...]] = {
    "object": (dict,), "array": (list,), "string": (str,), "number": (int, float), "integer": (int,), "boolean": (bool,),
    "null": (type(None),),
}  # fmt: skip
# Of a schema: both walks recurse.
DEEPEST = 60
MOST_NAME = 60


def is_number(value: Any) -> bool:
    """Return whether it is one of JSON's numbers: truth values are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_schema(schema: Any, where: str = "schema", depth: int = 0) -> None:
    """Refuse what violation would not understand.

    Raises:
        UserError: not an object, an unknown keyword, or a value of another type than its keyword takes; says where.
    """
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise UserError(f"format task: {where} is {shown(schema)}", "a JSON schema is an object, true or false")
    if depth > DEEPEST:
        raise UserError(f"format task: {where[:80]}... is nested more than {DEEPEST} deep", "give a flatter schema")
    if unknown := sorted(set(schema) - set(KEYWORDS)):
        raise UserError(f"format task: {where}.{_cut(unknown[0])} is not supported", f"supported: {', '.join(sorted(KEYWORDS))}")
    for key, value in schema.items():
        right, expected = KEYWORDS[key]
        if not right(value):
            raise UserError(f"format task: {where}.{key} is {shown(value)}", f"give {expected}")
    for name, inner in schema.get("properties", {}).items():
        check_schema(inner, f"{where}.properties.{_cut(name)}", depth + 1)
    for key in ("items", "additionalProperties"):
        check_schema(schema.get(key, True), f"{where}.{key}", depth + 1)
    for at, inner in enumerate(schema.get("anyOf", ())):
        check_schema(inner, f"{where}.anyOf[{at}]", depth + 1)


def _cut(name: str) -> str:
    """Return a key in a message."""
    return name if len(name) <= MOST_NAME else f"{name[: MOST_NAME - 3]}..."


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_finite(value: Any) -> bool:
    # Python reads 1e999 as infinity, and cannot ask a whole number of 400 digits whether it is finite.
    return is_number(value) and (isinstance(value, int) or math.isfinite(value))


def _is_count(value: Any) -> bool:
    return _is_finite(value) and value >= 0 and value == int(value)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value)) and len({*value}) == len(value)


def _are_kinds(value: Any) -> bool:
    kinds = [value] if isinstance(value, str) else value
    return bool(kinds) and _are_names(kinds) and {*kinds} <= {*KINDS}


def _are_some(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


def _is_object(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_schema(value: Any) -> bool:
    return isinstance(value, Mapping | bool)


def _is_anything(value: Any) -> bool:
    return True


TEXT, COUNT, BOUND = (_is_text, "a text"), (_is_count, "a whole number of at least 0"), (_is_finite, "a number")
SCHEMA = (_is_schema, "a schema: an object, true or false")
# Keyword → whether a value fits it, and what does.
KEYWORDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "type": (_are_kinds, f"one of {', '.join(KINDS)}, or a list of some of them"),
    "properties": (_is_object, "an object of schemas by name"),
    "required": (_are_names, "a list of different names"),
    "additionalProperties": SCHEMA,
    "items": SCHEMA,
    "enum": (_are_some, "a list of at least one value"),
    "const": (_is_anything, "any value"),
    "minimum": BOUND,
    "maximum": BOUND,
    "minLength": COUNT,
    "maxLength": COUNT,
    "minItems": COUNT,
    "maxItems": COUNT,
    "anyOf": (_are_some, "a list of at least one schema"),
    "title": TEXT,
    "description": TEXT,
    "$schema": TEXT,
}
# Each looks at values of its own type alone, as JSON Schema has it: "minimum" says nothing of a text.
LIMITS = {
    "minimum": lambda value, most: not is_number(value) or value >= most,
    "maximum": lambda value, most: not is_number(value) or value <= most,
    "minLength": lambda value, most: not isinstance(value, str) or len(value) >= most,
    "maxLength": lambda value, most: not isinstance(value, str) or len(value) <= most,
    "minItems": lambda value, most: not isinstance(value, list) or len(value) >= most,
    "maxItems": lambda value, most: not isinstance(value, list) or len(value) <= most,
}


def violation(value: Any, schema: Mapping[str, Any] | bool, where: str = "the answer") -> str:
    """Return what a value has that its schema does not allow, or ''."""
    if isinstance(schema, bool):
        return "" if schema else f"{where} may not be there"
    kinds = schema.get("type")
    if kinds is not None and not any(_is(value, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)):
        return f"{where} is not of type {kinds if isinstance(kinds, str) else ' or '.join(kinds)}"
    if "enum" in schema and not any(_same(value, allowed) for allowed in schema["enum"]):
        return f"{where} is none of the allowed values"
    if "const" in schema and not _same(value, schema["const"]):
        return f"{where} is not the value asked for"
    for key, holds in LIMITS.items():
        if key in schema and not holds(value, schema[key]):
            return f"{where} breaks {key} {schema[key]}"
    if "anyOf" in schema and all(violation(value, inner, where) for inner in schema["anyOf"]):
        return f"{where} fits none of the forms allowed"
    if isinstance(value, list):
        return next((v for at, x in enumerate(value) if (v := violation(x, schema.get("items", True), f"{where}[{at}]"))), "")
    return _object(value, schema, where) if isinstance(value, dict) else ""


def _object(value: dict[str, Any], schema: Mapping[str, Any], where: str) -> str:
    for name in schema.get("required", []):
        if name not in value:
            return f"{where} lacks {name}"
    known = schema.get("properties", {})
    for name, inner in value.items():
        rule = known.get(name, schema.get("additionalProperties", True))
        # The name is the answer's own, and of any length.
        if fault := violation(inner, rule, f"{where}.{name[:40]}"):
            return fault
    return ""


def _is(value: Any, kind: str) -> bool:
    if kind in ("number", "integer"):
        # 2.0 is an integer in JSON Schema.
        return is_number(value) and (kind == "number" or isinstance(value, int) or value.is_integer())
    return isinstance(value, KINDS[kind])


def _same(value: Any, other: Any) -> bool:
    """Return whether two values are equal as JSON has it: 1 is 1.0 and not true, in lists and objects too."""
    if is_number(value) and is_number(other):
        return bool(value == other)
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(_same, value, other))
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(_same(inner, other[key]) for key, inner in value.items())
    return type(value) is type(other) and bool(value == other)
