"""Equations of numbers whose sides differ: 3=2 names two answers, of which one may be right. Plain scanning."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

# A relation that says 'the same' or 'about the same'. What looks alike and is another one comes first.
SIGNS = re.compile(
    r"(?P<other>\\neq?\b|\\not\s*=|[!<>:]=|=[<>]|\\[lg]eq?\b)|(?P<about>\\approx\b|\\simeq\b|[≈≃])|(?P<same>=+|\\equiv\b)"
)
DECIMAL = re.compile(r"-?\d*(?:\.(\d+))?")
UNIT = re.compile(r"\\(?:text|mathrm|mbox|textrm|operatorname)\{[^{}]*\}|\\circ\b|\\degree\b|°|\\%|%|\\\$")
# Not to be taken apart: remainders, numbers to a base, digits that go on.
NOT_SIMPLE = re.compile(r"mod|_|\\overline|\\dot|dots|\.\.\.|…")
BLANKS = re.compile(r"\\[ ,;:!]|~")
BRACES = re.compile(r"\\?\{([^{}]*?)\\?\}")
SLACK = 1.01
ABOUT = 1e-3  # of the number, for what is only said to be near


def sides_differ(text: str, value_of: Callable[[str], Any], digits: int) -> bool:
    r"""Return whether an expression equates numbers that differ: 3=2, 10 \approx 11.

    A side that is a rounded decimal may differ from another by half of its last place; sides with other units are not compared.

    Args:
        text: the expression, in LaTeX.
        value_of: gives a side's number (SymPy), or None.
        digits: decimals to which numbers are compared when they are not exact.
    """
    sides = list(_sides(text))
    if len(sides) < 2 or NOT_SIMPLE.search(text):
        return False
    known: list[tuple[str, Any]] = []
    about = False
    for sign, side in ((sign, _bare(side)) for sign, side in sides):
        about = about or sign == "about"
        value = value_of(side)
        if value is None:
            continue
        for other, number in known:
            if UNIT.findall(side) == UNIT.findall(other) and _apart(value, number, _places(side, other, about), digits, about):
                return True
        known.append((side, value))
    return False


def _bare(side: str) -> str:
    """Return a text without blanks and without braces around all of it."""
    side = BLANKS.sub(" ", side).strip()
    while match := BRACES.fullmatch(side):
        side = match[1].strip()
    return side


def _sides(text: str) -> Iterator[tuple[str, str]]:
    """Yield the relation before it and each side, split outside of brackets; nothing where another relation stands there."""
    found, sign, start = [], "", 0
    depth, at = 0, 0
    while at < len(text):
        if text[at] in "({[":
            depth += 1
        elif text[at] in ")}]":
            depth -= 1
        match = SIGNS.match(text, at) if depth == 0 else None
        if match is None:
            at += 1
            continue
        if match.lastgroup == "other":
            return
        found.append((sign, text[start:at]))
        sign, start = str(match.lastgroup), match.end()
        at = start
    yield from [*found, (sign, text[start:])]


def _places(first: str, second: str, about: bool) -> float:
    """Return how far two sides may be apart because one is a rounded decimal."""
    most = 0.0
    for side in (first, second):
        match = DECIMAL.fullmatch(UNIT.sub("", side).replace("{,}", "").replace(",", "").strip(" \\$"))
        if match is not None and (match[1] or about):
            most = max(most, 0.5 * SLACK * 10.0 ** -len(match[1] or ""))
    return most


def _apart(first: Any, second: Any, places: float, digits: int, about: bool) -> bool:
    if first == second:
        return False
    distance, size = abs(complex((first - second).evalf())), max(1.0, abs(complex(first.evalf())))
    return not distance <= max(places, (ABOUT if about else 10.0**-digits) * size)
