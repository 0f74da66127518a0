"""JSON that others wrote, nested no deeper than anybody means it to be."""

from __future__ import annotations

import json
from typing import Any

DEEPEST = 200
"""Lists and objects in one another. Python's own limit depends on who calls, and what it reads it may not be able to write."""


def parse_json(text: str | bytes) -> Any:
    """Return the value of JSON text.

    Raises:
        ValueError: it is no JSON, or nested more than `DEEPEST` deep.
    """
    too_deep = f"nested more than {DEEPEST} deep"
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(too_deep) from None
    opened = text.count(b"[") + text.count(b"{") if isinstance(text, bytes) else text.count("[") + text.count("{")
    if opened > DEEPEST and _deeper_than(value, DEEPEST):
        raise ValueError(too_deep)
    return value


def _deeper_than(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit + 1):
        level = [each for each in level if isinstance(each, dict | list)]
        if not level:
            return False
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
    return True
