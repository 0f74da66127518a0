"""Tests that were written as assertions, taken apart so that the candidate's process need not see what is expected."""

from __future__ import annotations

import ast
from typing import Any

from windtunnel.recipe import UserError

from .cases import FIX_PATH, Call, is_path

FIX = "write lines such as: assert f(1, [2]) == 3, with literals on both sides"


def cases_of_asserts(source: str) -> list[Call]:
    """'assert f(1) == 2', 'assert f(1)' or 'assert not f(1)', one a line, as calls and expected values; the latter two ask for
    any value that is true or false.

    Raises:
        UserError: an assertion of another form.
    """
    try:
        body = ast.parse(source).body
    except SyntaxError as error:
        raise UserError(f"asserts: line {error.lineno}: {error.msg}", FIX) from None
    except (ValueError, RecursionError, MemoryError):  # what Python's parser says of text that nests too deeply
        raise UserError("asserts: nested too deeply to be read", FIX) from None
    return [_case(statement) for statement in body]


def _case(statement: ast.stmt) -> Call:
    if isinstance(statement, ast.Assert):
        test = statement.test
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return _call(test.operand, False, statement.lineno, truth=True)
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq | ast.Is):
            expected = _literal(test.comparators[0], statement.lineno)
            itself = isinstance(test.ops[0], ast.Is) and (expected is None or isinstance(expected, bool))
            return _call(test.left, expected, statement.lineno, itself=itself)
        return _call(test, True, statement.lineno, truth=True)
    raise UserError(f"asserts: line {statement.lineno} is not an assertion", FIX)


def _call(node: ast.expr, expected: Any, line: int, *, truth: bool = False, itself: bool = False) -> Call:
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
    return Call(_path(node.func, line), args, expected, kwargs, truth, itself)


def _path(node: ast.expr, line: int) -> str:
    try:
        path = ast.unparse(node)
    except RecursionError:
        path = "..."
    if not is_path(path):
        raise UserError(f"asserts: line {line} calls {path[:60]}, which is no function's name", FIX_PATH)
    return path


def _literal(node: ast.expr, line: int) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):  # a name; a list as a key; nested too deeply
        raise UserError(f"asserts: line {line}: {_shown(node)} is not a literal", FIX) from None


def _shown(node: ast.expr) -> str:
    try:
        return ast.unparse(node)[:60]
    except RecursionError:
        return "what is nested too deeply"
