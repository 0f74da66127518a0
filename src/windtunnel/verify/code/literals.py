"""Values that a test writes without a call of the answer's: literals, sums of them, set([1, 2]), list(range(5)), float('nan')."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

# A task is data from anywhere: one line of it must not fill the judge's memory.
MOST_VALUES = 100_000
MOST_BITS = 100_000

# None of them makes much out of little.
MAKERS: dict[str, Callable[..., Any]] = {
    made.__name__: made
    for made in (set, frozenset, list, tuple, dict, sorted, float, int, bool, complex, len, sum, min, max, abs)
}
CONSTANTS = {f"math.{name}": getattr(math, name) for name in ("pi", "e", "inf", "nan", "tau")}
NUMBERS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}  # fmt: skip
SIGNS: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Not: operator.not_}
FAULTS = (ValueError, TypeError, ArithmeticError, RecursionError, MemoryError)


def value_of(node: ast.expr) -> Any:
    """Return what an expression without names of its own comes to.

    Raises:
        ValueError: it is none, or comes to more than a test needs.
    """
    try:
        return _value(node)
    except FAULTS as error:
        raise ValueError(str(error)) from None


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.List() | ast.Tuple() | ast.Set():
            return {ast.List: list, ast.Tuple: tuple, ast.Set: set}[type(node)](map(_value, node.elts))
        case ast.Dict():
            if None in node.keys:
                raise ValueError("** in a dict")
            return {_value(key): _value(value) for key, value in zip(node.keys, node.values, strict=True) if key is not None}
        case ast.UnaryOp() if type(node.op) in SIGNS:
            return SIGNS[type(node.op)](_value(node.operand))
        case ast.BinOp() if type(node.op) in NUMBERS:
            return _counted(node.op, _value(node.left), _value(node.right))
        case ast.Attribute(value=ast.Name()) if ast.unparse(node) in CONSTANTS:
            return CONSTANTS[ast.unparse(node)]
        case ast.Call(func=ast.Name(id="range"), args=args, keywords=[]):
            return _range(*map(_value, args))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in MAKERS and len(args) < 2:
            return MAKERS[name](*map(_value, args))
    raise ValueError("not a literal")


def _counted(op: ast.operator, left: Any, right: Any) -> Any:
    """Return an operation on two values, where it comes to something of moderate size."""
    if isinstance(op, ast.Mult) and (_is_sequence(left) or _is_sequence(right)):
        sequence, times = (left, right) if _is_sequence(left) else (right, left)
        if _size(sequence) * max(1, int(times)) > MOST_VALUES:
            raise ValueError(f"more than {MOST_VALUES:,} values")
    elif isinstance(op, ast.Mult) and isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > MOST_BITS:
            raise ValueError(f"more than {MOST_BITS:,} bits")
    elif isinstance(op, ast.Mod) and not isinstance(left, int | float):
        raise ValueError("% makes text")
    elif isinstance(op, ast.Pow) and isinstance(left, int) and left.bit_length() * abs(right) > MOST_BITS:
        raise ValueError(f"more than {MOST_BITS:,} bits")
    return NUMBERS[type(op)](left, right)


def _range(*ends: int) -> range:
    made = range(*ends)
    if len(made) > MOST_VALUES:
        raise ValueError(f"more than {MOST_VALUES:,} values")
    return made


def _is_sequence(value: Any) -> bool:
    return isinstance(value, str | bytes | list | tuple)


def _size(value: Any) -> int:
    """Return how many values are in a value, letters too."""
    if isinstance(value, str | bytes):
        return len(value)
    return sum(map(_size, value)) + 1 if isinstance(value, list | tuple | set | frozenset | dict) else 1
