"""Texts with fields that are filled in."""

from __future__ import annotations

import ast
import string


def plain_format(node: ast.expr) -> bool:
    """Whether this is a text whose fields are numbers or names: '{0.name}' and '{0[key]}' read attributes and items."""
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return False
    return not any(mark in field for field in _fields(node.value) for mark in ".[")


def _fields(text: str) -> list[str]:
    try:
        parts = list(string.Formatter().parse(text))
    except ValueError:
        return ["."]
    found = [name for _, name, _, _ in parts if name is not None]
    return found + [inner for _, _, spec, _ in parts if spec for inner in _fields(spec)]
