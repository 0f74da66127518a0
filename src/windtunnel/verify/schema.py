"""The part of JSON Schema that formats of answers need, so that any other keyword is refused and none is ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windtunnel.recipe import UserError

KINDS: dict[str, tuple[type, ...]] = {
    "object": (dict,), "array": (list,), "string": (str,), "number": (int, float), "integer": (int,), "boolean": (bool,),
    "null": (type(None),),
}  # fmt: skip
KEYWORDS = {
    "type", "properties", "required", "additionalProperties", "items", "enum", "const", "minimum", "maximum", "minLength",
    "maxLength", "minItems", "maxItems", "anyOf", "title", "description", "$schema",
}  # fmt: skip
LIMITS = {
    "minimum": lambda value, most: not _is_number(value) or value >= most,
    "maximum": lambda value, most: not _is_number(value) or value <= most,
    "minLength": lambda value, most: not isinstance(value, str) or len(value) >= most,
    "maxLength": lambda value, most: not isinstance(value, str) or len(value) <= most,
    "minItems": lambda value, most: not isinstance(value, list) or len(value) >= most,
    "maxItems": lambda value, most: not isinstance(value, list) or len(value) <= most,
}


def check_schema(schema: Any, where: str = "schema") -> None:
    """Refuse what violation would not understand.

    Raises:
        UserError: not an object, an unknown keyword or type; says where.
    """
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise UserError(f"format task: {where} is not an object", "a JSON schema is an object")
    if unknown := sorted(set(schema) - KEYWORDS):
        raise UserError(f"format task: {where}.{unknown[0]} is not supported", f"supported: {', '.join(sorted(KEYWORDS))}")
    kinds = schema.get("type", [])
    for kind in [kinds] if isinstance(kinds, str) else kinds:
        if kind not in KINDS:
            raise UserError(f"format task: {where}.type is {kind!r}", f"one of {', '.join(KINDS)}")
    for name, inner in dict(schema.get("properties", {})).items():
        check_schema(inner, f"{where}.properties.{name}")
    for key in ("items", "additionalProperties"):
        check_schema(schema.get(key, True), f"{where}.{key}")
    for at, inner in enumerate(schema.get("anyOf", [])):
        check_schema(inner, f"{where}.anyOf[{at}]")
    for key in LIMITS:
        if key in schema and not _is_number(schema[key]):
            raise UserError(f"format task: {where}.{key} is {schema[key]!r}", "give a number")


def violation(value: Any, schema: Mapping[str, Any] | bool, where: str = "the answer") -> str:
    """What a value has that its schema does not allow, or ''."""
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
        return _is_number(value) and (kind == "number" or isinstance(value, int) or value.is_integer())
    return isinstance(value, KINDS[kind])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same(value: Any, other: Any) -> bool:
    return (type(value) is type(other) and value == other) or (_is_number(value) and _is_number(other) and value == other)
