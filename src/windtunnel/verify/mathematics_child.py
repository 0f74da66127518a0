"""Runs in a sandbox's child: parses two expressions and compares them. Time is limited from outside, not by signals in here."""

from __future__ import annotations

import math
import re
from typing import Any

from .mathematics_sides import sides_differ

SHOWN_DIGITS = 3
COMMAND = re.compile(r"\\[A-Za-z]+")
WARM = (
    ("\\frac{1}{2}", "0.5"),
    ("x^2-1", "(x-1)(x+1)"),
    ("\\{1,2\\}", "\\{2,1\\}"),
    ("(1, 2)", "[1, 2)"),
    ("\\sqrt{2}", "1.41 \\text{ cm}"),
    ("x=3", "\\sin(\\pi) + \\log 2"),
)


def compare(message: dict[str, Any], buffers: list[memoryview]) -> tuple[dict[str, Any], list[bytes]]:
    """Say whether an expression equals the right one.

    message: gold, found (texts) and digits.

    Returns:
        gold, parsed, equal, and whether found equates numbers that differ (truth values); no buffers.
    """
    from math_verify import verify

    gold, found = parse_whole(message["gold"]), parse_whole(message["found"])
    if not gold or not found:
        return {"gold": bool(gold), "parsed": bool(found), "equal": False}, []
    if not (_is_read(gold) and _is_read(found)) and _signs(message["gold"]) != _signs(message["found"]):
        return {"gold": True, "parsed": True, "equal": False}, []  # what cannot be read is compared by a part of its text
    digits = max(message["digits"], places(gold))
    more = {"allow_set_relation_comp": True, "timeout_seconds": None, "raise_on_error": True}
    equal = verify(gold, found, float_rounding=digits, **more)
    differ = bool(equal) and sides_differ(message["found"], _number, message["digits"])
    return {"gold": True, "parsed": True, "equal": bool(equal), "differ": differ}, []


def readable(message: dict[str, Any], buffers: list[memoryview]) -> tuple[dict[str, Any], list[bytes]]:
    """Say whether a task's own answer is an expression, or a text that an answer may repeat. message: gold. Reply: gold."""
    return {"gold": bool(parse_whole(message["gold"]))}, []


def warm_up() -> None:
    """Pay for the grammar's tables and for what is imported late once, in the worker, before any candidate."""
    for gold, found in WARM:
        compare({"gold": gold, "found": found, "digits": 6}, [])


def _is_read(parsed: list[Any]) -> bool:
    """Return whether there is more than the text that could not be read."""
    return any(not isinstance(value, str) for value in parsed)


def _signs(text: str) -> str:
    """Return the letters and digits of a text, without commands."""
    return "".join(filter(str.isalnum, COMMAND.sub(" ", text)))


def _number(text: str) -> Any:
    """Return the number that a side of an equation is, or None."""
    value = next(iter(parse_whole(text)), None)
    return value if getattr(value, "is_number", False) is True else None


def places(gold: list[Any]) -> int:
    """Return the decimals that show three digits of a small number."""
    value: Any = next(iter(gold), None)
    if getattr(value, "is_number", False) is not True or not value.is_real:
        return 0
    size = abs(float(value))
    return SHOWN_DIGITS - 1 - math.floor(math.log10(size)) if 1e-12 < size < 1 else 0


def parse_whole(text: str) -> list[Any]:
    """Return the expression that the whole text is. Without the box only what an anchor announces would be read."""
    import logging

    from math_verify import parse

    logging.disable(logging.CRITICAL)  # it logs every text that it cannot read
    found: list[Any] = parse(f"$\\boxed{{{text}}}$", parsing_timeout=None, extraction_mode="first_match")
    return found
