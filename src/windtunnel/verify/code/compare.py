"""Comparison of plain values and of printed text, in the judge's process."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, TypeGuard

from .values import decode, tag_of


def matches(expected: Any, got: Any, *, tolerance: float = 0.0, any_sequence: bool = False) -> bool:
    """Return whether a value in plain form (as encode made it in the child, but untrusted) is the expected Python value.

    As Python's == says, but NaN equals NaN and numbers may differ by the tolerance, two whole ones only absolutely. Sets and
    dicts are walked along the expected ones and never built from untrusted members, whose hashes may have been chosen to collide.
    Where there is a tolerance their numbers are matched in order of size; what a tuple holds, or complex numbers, are matched
    exactly there.

    Raises:
        NotPlain: got is not a plain form.
    """

    def inside(a: Any, b: Any) -> bool:
        return matches(a, b, tolerance=tolerance, any_sequence=any_sequence)

    # The tag decides before anything is built: what came is whatever the answer's process wrote.
    tag, body = tag_of(got)
    if isinstance(expected, list | tuple):
        tags = ("list", "tuple") if any_sequence else (type(expected).__name__,)
        return tag in tags and len(body) == len(expected) and all(map(inside, expected, body))
    if isinstance(expected, set | frozenset):
        return tag in ("set", "frozenset") and len(body) == len(expected) and _paired(expected, body, tolerance) is not None
    if isinstance(expected, dict):
        if tag != "dict" or len(body) != len(expected):
            return False
        pairs = _paired(expected, [key for key, _ in body], tolerance)
        return pairs is not None and all(inside(expected[key], body[at][1]) for key, at in pairs)
    if tag in ("list", "tuple", "set", "frozenset", "dict"):
        return False
    value = decode(got)
    number = int | float | complex
    if isinstance(expected, number) and isinstance(value, number):
        return _numbers(expected, value, tolerance)
    return bool(expected == value)


def near(expected: float, got: Any, relative: float, absolute: float) -> bool:
    """Return whether a value in plain form is a number this near to the expected one, as math.isclose says.

    Raises:
        NotPlain: got is not a plain form.
    """
    value = decode(got) if tag_of(got)[0] in ("value", "int", "float") else None
    if not isinstance(value, int | float):
        return False
    try:
        return math.isclose(value, expected, rel_tol=relative, abs_tol=absolute)
    except OverflowError:  # too large for a float
        return False


def _paired(members: Iterable[Any], forms: Sequence[Any], tolerance: float) -> list[tuple[Any, int]] | None:
    """Return each member with the place of its plain form, or None where they do not match. As many forms as members."""
    pairs: list[tuple[Any, int]] = []
    wanted = sorted(member for member in members if tolerance and _is_ordered(member))
    left = _Left(member for member in members if not (tolerance and _is_ordered(member)))
    numbers: list[tuple[float, int]] = []
    for at, form in enumerate(forms):
        value = decode(form) if tolerance and tag_of(form)[0] in ("value", "int", "float") else None
        if _is_ordered(value):
            numbers.append((value, at))
        elif (member := left.take(form)) is not None:
            pairs.append((member[0], at))
        else:
            return None
    # Two sets of numbers that differ by little match in this order, if they match in any.
    numbers.sort()
    if len(numbers) != len(wanted) or any(a == b for (a, _), (b, _) in pairwise(numbers)):  # no set holds one twice
        return None
    if not all(_numbers(member, number, tolerance) for member, (number, _) in zip(wanted, numbers, strict=True)):
        return None
    return pairs + [(member, at) for member, (_, at) in zip(wanted, numbers, strict=True)]


def _is_ordered(value: Any) -> TypeGuard[float]:
    """Return whether this is a number that has a place among others."""
    return isinstance(value, int | float) and value == value


class _Left:
    """Those of a set's members, or a dict's keys, that no member of what came has matched yet."""

    def __init__(self, members: Iterable[Any]) -> None:
        self.values = set(members)
        self.sizes = set(map(_leaves, self.values))

    def take(self, form: Any) -> tuple[Any] | None:
        """Return the member that is in this plain form, in a tuple, if it is one of those left, which it then no longer is."""
        # Looked at before it is built: a set inside a set is, and its members may have been made to collide.
        if _leaves_of_form(form) not in self.sizes:
            return None
        value = decode(form)
        if value not in self.values:
            return None
        self.values.remove(value)
        return (value,)


def _leaves(value: Any) -> int:
    """Return how many values that hold no others are in a value."""
    return sum(map(_leaves, value)) if isinstance(value, tuple | frozenset) else 1


def _leaves_of_form(form: Any) -> int:
    """Return how many plain values a plain form holds."""
    tag, body = tag_of(form)
    return sum(map(_leaves_of_form, body)) if tag in ("tuple", "frozenset", "list", "set", "dict") else 1


def same_print(expected: str, got: str, tolerance: float = 0.0) -> bool:
    """Return whether two printed texts are the same but for blanks at the ends of lines and empty lines at the end.

    With a tolerance words that are numbers may differ by it.
    """
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
    """Return the number that a word is; None also of one too large for a float."""
    try:
        if word.removeprefix("-").isdecimal():
            return int(word)
        number = float(word)
    except ValueError:  # no number, or more digits than Python reads
        return None
    # 1e999 and 1e1000 would be the same.
    return None if math.isinf(number) and any(map(str.isdecimal, word)) else number


def _numbers(expected: complex, got: complex, tolerance: float) -> bool:
    if expected == got:
        return True
    if isinstance(expected, complex) or isinstance(got, complex):
        return bool(tolerance) and abs(expected - got) <= tolerance * max(1.0, abs(expected))
    if isinstance(expected, int) and isinstance(got, int):
        return abs(expected - got) <= tolerance
    try:
        a, b = float(expected), float(got)
    except OverflowError:
        return False
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    return bool(tolerance) and math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)
