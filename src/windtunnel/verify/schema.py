"""What a value has that a JSON schema does not allow, for the keywords that formats of answers need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .schema_check import KINDS, is_number

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
        if fault := violation(inner, rule, f"{where}.{name[:40]}"):
            return fault
    return ""


def _is(value: Any, kind: str) -> bool:
    if kind in ("number", "integer"):
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
