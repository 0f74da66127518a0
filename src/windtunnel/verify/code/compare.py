"""Comparison of plain values and of printed text, in the judge's process."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from .values import decode, tag_of


def matches(expected: Any, got: Any, *, tolerance: float = 0.0, any_sequence: bool = False) -> bool:
    """Whether a value in plain form (as encode made it in the child, but untrusted) is the expected Python value.

    As Python's == says, but NaN equals NaN and numbers may differ by the tolerance. Sets and dicts are walked along the
    expected ones and never built from untrusted members, whose hashes may have been chosen to collide.

    Raises:
        NotPlain: got is not a plain form.
    """

    def inside(a: Any, b: Any) -> bool:
        return matches(a, b, tolerance=tolerance, any_sequence=any_sequence)

    tag, body = tag_of(got)
    if isinstance(expected, list | tuple):
        tags = ("list", "tuple") if any_sequence else (type(expected).__name__,)
        return tag in tags and len(body) == len(expected) and all(map(inside, expected, body))
    if isinstance(expected, set | frozenset):
        left = _Left(expected)
        return tag in ("set", "frozenset") and len(body) == len(expected) and all(map(left.take, body))
    if isinstance(expected, dict):
        if tag != "dict" or len(body) != len(expected):
            return False
        keys = _Left(expected)
        return all(keys.take(key) and inside(expected[decode(key)], value) for key, value in body)
    if tag in ("list", "tuple", "set", "frozenset", "dict"):
        return False
    value = decode(got)
    number = int | float | complex
    if isinstance(expected, number) and isinstance(value, number):
        return _numbers(expected, value, tolerance)
    return bool(expected == value)


class _Left:
    """Those of a set's members, or a dict's keys, that no member of what came has matched yet."""

    def __init__(self, members: Iterable[Any]) -> None:
        self.values = set(members)
        self.sizes = set(map(_leaves, self.values))

    def take(self, form: Any) -> bool:
        """Whether a member in plain form is one of those left, which it then no longer is."""
        # Looked at before it is built: a set inside a set is, and its members may have been made to collide.
        if _leaves_of_form(form) not in self.sizes:
            return False
        value = decode(form)
        if value not in self.values:
            return False
        self.values.remove(value)
        return True


def _leaves(value: Any) -> int:
    """How many values that hold no others are in a value."""
    return sum(map(_leaves, value)) if isinstance(value, tuple | frozenset) else 1


def _leaves_of_form(form: Any) -> int:
    """The same of a plain form."""
    tag, body = tag_of(form)
    return sum(map(_leaves_of_form, body)) if tag in ("tuple", "frozenset", "list", "set", "dict") else 1


def same_print(expected: str, got: str, tolerance: float = 0.0) -> bool:
    """Whether two printed texts are the same but for blanks at the ends of lines and empty lines at the end; with a tolerance
    words that are numbers may differ by it."""
    first, second = _lines(expected), _lines(got)
    if first == second:
        return True
    if not tolerance or len(first) != len(second):
        return False
    return all(_same_words(a.split(), b.split(), tolerance) for a, b in zip(first, second, strict=True))


def _same_words(first: list[str], second: list[str], tolerance: float) -> bool:
    return len(first) == len(second) and all(
        a == b or ((x := _number(a)) is not None and (y := _number(b)) is not None and _numbers(x, y, tolerance))
        for a, b in zip(first, second, strict=True)
    )


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def _numbers(expected: complex, got: complex, tolerance: float) -> bool:
    if expected == got:
        return True
    if isinstance(expected, complex) or isinstance(got, complex):
        return bool(tolerance) and abs(expected - got) <= tolerance * max(1.0, abs(expected))
    try:
        a, b = float(expected), float(got)
    except OverflowError:
        return False
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    return bool(tolerance) and math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)
