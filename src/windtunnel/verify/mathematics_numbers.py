"""Runs in a sandbox's child: compares two expressions by their values at a few points, without simplifying either."""

from __future__ import annotations

from typing import Any

from .mathematics_child import parse_whole, places

POINTS = (  # values of symbols, none of which is special to a function
    (0.7310585786, 1.3132616875, 2.1269280110, 0.4812118250),
    (1.9106332362, 0.5671432904, 1.1864569104, 2.6854520010),
    (2.3028775640, 1.7632228343, 0.6180339887, 1.2020569031),
)
DIGITS = 30


def compare_values(message: dict[str, Any], buffers: list[memoryview]) -> tuple[dict[str, Any], list[bytes]]:
    """Say whether an expression has the right one's values.

    message: gold, found (texts) and digits.

    Returns:
        equal, a truth value or None: not told; no buffers.
    """
    gold, found = parse_whole(message["gold"]), parse_whole(message["found"])
    digits = max(message["digits"], places(gold))
    if not gold or not found:
        return {"equal": None}, []
    return {"equal": _equal(gold[0], found[0], digits)}, []


def _equal(gold: Any, found: Any, digits: int) -> bool | None:
    """Return whether two expressions have the same values; None: they have none that could be compared."""
    import sympy  # type: ignore[import-untyped]  # it has no annotations

    left, right = _plain(gold), _plain(found)
    if left is None or right is None:
        return None
    free = sorted(left.free_symbols | right.free_symbols, key=str)
    if len(free) > len(POINTS[0]):
        return None
    told, hundredfold = 0, 0
    for point in POINTS if free else POINTS[:1]:
        given = dict(zip(free, map(sympy.Float, point), strict=False))
        one, other = _value(left, given), _value(right, given)
        if one is None or other is None:
            continue
        told += 1
        if not _near(one, other, digits):
            # Percents may be read either way.
            if not (_near(one, 100 * other, digits) or _near(100 * one, other, digits)):
                return False if left.free_symbols == right.free_symbols else None
            hundredfold += 1
    return None if not told or hundredfold else True


def _plain(expression: Any) -> Any:
    """Return an expression with values: of `x = 3` the 3; None for sets, texts and other relations."""
    import sympy  # type: ignore[import-untyped]  # it has no annotations

    if isinstance(expression, sympy.Equality) and expression.lhs.is_Symbol:
        expression = expression.rhs
    return expression if isinstance(expression, sympy.Expr) else None


def _value(expression: Any, given: dict[Any, Any]) -> complex | None:
    try:
        return complex(expression.subs(given).evalf(DIGITS))
    except (TypeError, ValueError, OverflowError, ZeroDivisionError, AttributeError):
        return None


def _near(one: complex, other: complex, digits: int) -> bool:
    distance = abs(one - other)
    return distance <= 10.0**-digits * max(1.0, abs(one))  # a NaN is near nothing
