"""Tests that were written as assertions, taken apart so that the candidate's process need not see what is expected."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Iterator
from typing import Any

from windtunnel.recipe import UserError

from .cases import FIX_PATH, Call, is_path
from .literals import value_of

FIX = "write lines such as: assert f(1, [2]) == 3, with literals on both sides"
# What may be around the call: made of its value in the answer's process, from where it comes as any other.
AROUND = (
    "set",
    "frozenset",
    "list",
    "tuple",
    "dict",
    "sorted",
    "len",
    "sum",
    "min",
    "max",
    "abs",
    "round",
    "str",
    "int",
    "float",
)


def cases_of_asserts(source: str, entry_point: str = "") -> list[Call]:
    """Return lines such as 'assert f(1) == 2', 'assert f(1)' or 'assert not f(1)' as calls and expected values.

    The latter two ask for any value that is true or false. HumanEval's check(candidate), with the name of what it is given, is
    understood too.

    Raises:
        UserError: an assertion of another form.
    """
    try:
        body = ast.parse(source).body
    except SyntaxError as error:
        raise UserError(f"asserts: line {error.lineno}: {error.msg}", FIX) from None
    except (ValueError, RecursionError, MemoryError):  # what Python's parser says of text that nests too deeply
        raise UserError("asserts: nested too deeply to be read", FIX) from None
    # HumanEval says the name apart, other sets in the line check(f).
    entry_point = entry_point or next(filter(None, map(_checked, body)), "")
    return [_case(statement, names) for statement, names in _statements(body, entry_point)]


def _statements(body: Iterable[ast.stmt], entry_point: str) -> Iterator[tuple[ast.stmt, dict[str, str]]]:
    """Yield what is to be an assertion, with the other names of the function there."""
    for statement in body:
        match statement:
            case ast.FunctionDef(name="check", args=ast.arguments(args=[given])):
                if not entry_point:
                    raise UserError("asserts: check(candidate) is given nothing", "name the function: entry_point: f")
                yield from ((inner, {given.arg: entry_point}) for inner in statement.body if not _says_nothing(inner))
            case ast.Assign(targets=[ast.Name(id="METADATA")]):
                continue
            case _ if not _says_nothing(statement) and not _checked(statement):
                yield statement, {}


def _says_nothing(statement: ast.stmt) -> bool:
    """Return whether a statement tests nothing: an import, a text, pass or `assert True`.

    What a test may use is known here, so that it need not import anything.
    """
    match statement:
        case ast.Import() | ast.ImportFrom() | ast.Pass() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Assert(test=ast.Constant(value=value)):
            return bool(value)
    return False


def _checked(statement: ast.stmt) -> str:
    """Return the function that a line check(f) names, or ''."""
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Name(id="check"), args=[ast.Name(id=name)], keywords=[])):
            return name
    return ""


def _case(statement: ast.stmt, names: dict[str, str]) -> Call:
    if not isinstance(statement, ast.Assert):
        raise UserError(f"asserts: line {statement.lineno} is not an assertion", FIX)
    line = statement.lineno
    match statement.test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _call(operand, False, line, names, truth=True)
        case ast.Compare(left=left, ops=[ast.Eq() | ast.Is() as op], comparators=[right]):
            # Some write what is expected first.
            if _is_literal(left) and not _is_literal(right):
                left, right = right, left
            expected = _literal(right, line)
            # Of other values `is` depends on what Python happens to share.
            itself = isinstance(op, ast.Is) and (expected is None or isinstance(expected, bool))
            return _call(left, expected, line, names, itself=itself)
        case ast.Compare(
            left=ast.Call(func=ast.Name(id="abs"), args=[ast.BinOp(op=ast.Sub()) as distance], keywords=[]),
            ops=[ast.Lt() | ast.LtE() as op],
            comparators=[most],
        ):
            within = _number(most, line)
            # Less, and not equal: `near` takes both ends for near.
            close = (0.0, math.nextafter(within, -math.inf) if isinstance(op, ast.Lt) else within)
            return _close(distance.left, distance.right, close, line, names)
        case ast.Call(func=ast.Name() | ast.Attribute() as func, args=[first, second]) as near if _is_close(func):
            given = {str(keyword.arg): _number(keyword.value, line) for keyword in near.keywords}
            if set(given) <= {"rel_tol", "abs_tol"}:
                return _close(first, second, (given.get("rel_tol", 1e-9), given.get("abs_tol", 0.0)), line, names)
    return _call(statement.test, True, line, names, truth=True)


def _is_close(func: ast.expr) -> bool:
    return ast.unparse(func) in ("math.isclose", "isclose")


def _close(first: ast.expr, second: ast.expr, close: tuple[float, float], line: int, names: dict[str, str]) -> Call:
    """Return a call and a number that it may differ from a little."""
    if _is_literal(first):
        first, second = second, first
    _number(second, line)
    return _call(first, _literal(second, line), line, names, close=close)


def _call(node: ast.expr, expected: Any, line: int, names: dict[str, str], *, truth: bool = False, **more: Any) -> Call:
    around: list[tuple[Any, ...]] = [("bool",)] if truth else []
    while (wrapped := _wrapped(node, line)) is not None:
        node, made = wrapped
        around.insert(0, made)  # the inmost is applied first
    if not isinstance(node, ast.Call):
        raise UserError(f"asserts: line {line} tests no call", FIX)
    args = [_literal(arg, line) for arg in node.args]
    if any(keyword.arg is None for keyword in node.keywords):
        raise UserError(f"asserts: line {line} passes arguments by **", "write each one out: assert f(1, key=2) == 3")
    kwargs: dict[str, Any] = {}
    for keyword in node.keywords:
        name = str(keyword.arg)
        if name in kwargs:
            raise UserError(f"asserts: line {line} passes {name[:60]} twice", "pass each argument once: assert f(1, key=2) == 3")
        kwargs[name] = _literal(keyword.value, line)
    path = _path(node.func, line)
    return Call(names.get(path, path), args, expected, kwargs, around=tuple(around), **more)


def _wrapped(node: ast.expr, line: int) -> tuple[ast.expr, tuple[Any, ...]] | None:
    """Return what stands inside set(...), round(..., 2), and that around it: a call which is no literal."""
    match node:
        case ast.Call(func=ast.Name(id=name), args=[ast.Call() as inner, *rest], keywords=[]):
            if name in AROUND and not _is_literal(inner):
                return inner, (name, *(_literal(arg, line) for arg in rest))
    return None


def _path(node: ast.expr, line: int) -> str:
    try:
        path = ast.unparse(node)
    except RecursionError:
        path = "..."
    if not is_path(path):
        raise UserError(f"asserts: line {line} calls {path[:60]}, which is no function's name", FIX_PATH)
    return path


def _number(node: ast.expr, line: int) -> float:
    value = _literal(node, line)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"asserts: line {line}: {_shown(node)} is no number", FIX)
    return float(value)


def _is_literal(node: ast.expr) -> bool:
    try:
        value_of(node)
    except ValueError:
        return False
    return True


def _literal(node: ast.expr, line: int) -> Any:
    try:
        return value_of(node)
    except ValueError:  # a name; a list as a key; nested too deeply
        raise UserError(f"asserts: line {line}: {_shown(node)} is not a literal", FIX) from None


def _shown(node: ast.expr) -> str:
    try:
        return ast.unparse(node)[:60]
    except RecursionError:
        return "what is nested too deeply"
