"""Single numbers in the interpreter, as a GPU has them.

Fractions that a launch is given and what a loop counts are tensors of one element, which a kernel may ask to convert
themselves. Runs only in sandboxed children; imports triton.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter


def numbers_as_tensors() -> None:
    """Let `eps.to(tl.float32)` work, and `start.to(tl.int64)` in a loop over a range. Before any kernel is launched."""
    original = interpreter._implicit_cvt

    def converted(argument: Any) -> Any:
        if isinstance(argument, float):
            with np.errstate(over="ignore"):
                return tl.tensor(interpreter.TensorHandle(np.array([argument], np.float32), tl.float32), tl.float32)
        return original(argument)

    interpreter._implicit_cvt = converted
    interpreter.FunctionRewriter.ast_transformer = _AsCompiled()
    semantic = type(interpreter.interpreter_semantic)  # its object is at hand wherever a kernel runs
    semantic.one_of, semantic.all_of = staticmethod(_one_of), staticmethod(_all_of)
    semantic.remainder, semantic.constant = staticmethod(_remainder), staticmethod(constant)


def constant(value: Any) -> Any:
    """`tl.constexpr(value)`: to a compiler a constant is its value, also where it is None or is written out."""
    return value.value if isinstance(value, tl.constexpr) else value


def _remainder(left: Any, right: Any) -> Any:
    """Return `a % b` of numbers. Of a text it would be another one than the compiler's."""
    if isinstance(constant(left), str):
        raise TypeError("a text is formatted by % inside a kernel")
    return left % right


def _one_of(*parts: Callable[[], Any]) -> Any:
    """Return `a or b` as a compiler has it: every part is evaluated up to a constant that is true, which is then the value."""
    values: list[Any] = []
    for part in parts:
        values.append(part())
        if not isinstance(values[-1], tl.tensor) and values[-1]:
            return values[-1]
    return functools.reduce(lambda left, right: left.logical_or(right), _decided_later(values))


def _all_of(*parts: Callable[[], Any]) -> Any:
    """Return `a and b` as a compiler has it, up to a constant that is false."""
    values: list[Any] = []
    for part in parts:
        values.append(part())
        if not isinstance(values[-1], tl.tensor) and not values[-1]:
            return values[-1]
    return functools.reduce(lambda left, right: left.logical_and(right), _decided_later(values))


def _decided_later(values: list[Any]) -> list[Any]:
    """Return those that only a launch knows; the last constant where there are none."""
    return [value for value in values if isinstance(value, tl.tensor)] or values[-1:]


class _AsCompiled(interpreter.ASTTransformer):  # type: ignore[misc]  # Triton has no annotations: a base of any type
    """What the interpreter does to assignments, done to what a loop counts and what `a += b` binds too.

    `and` and `or` are as a compiler has them. `tl.static_range` counts constants.
    """

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:  # noqa: N802
        self.generic_visit(node)
        if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
            node.value.elts = [part if isinstance(part, ast.Starred) else self._as_tensor(part) for part in node.value.elts]
            return node
        return super().visit_Assign(node)

    def _as_tensor(self, value: ast.expr) -> ast.expr:
        return super().visit_Assign(ast.Assign([ast.Name("_", ast.Store())], value)).value

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:  # noqa: N802
        """Write `a += b` as `a = a + b`, which it is to a compiler, and which makes a tensor of a constant."""
        if not isinstance(node.target, ast.Name):
            return self.generic_visit(node)
        value = ast.BinOp(ast.Name(node.target.id, ast.Load()), node.op, node.value)
        return self.visit_Assign(ast.copy_location(ast.Assign([node.target], value), node))

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:  # noqa: N802
        self.generic_visit(node)
        if not isinstance(node.op, ast.Mod):
            return node
        function = ast.Attribute(ast.Name("interpreter_semantic", ast.Load()), "remainder", ast.Load())
        return ast.copy_location(ast.Call(function, [node.left, node.right], []), node)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        """Leave the annotation of a parameter, which says that it is a constant."""
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:  # noqa: N802
        """`K.value` of a constant is the constant; the only attribute called constexpr is triton.language's."""
        self.generic_visit(node)
        if node.attr == "value":
            return node.value
        if node.attr == "constexpr":
            semantic = ast.Name("interpreter_semantic", ast.Load())
            return ast.copy_location(ast.Attribute(semantic, "constant", ast.Load()), node)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.Call:  # noqa: N802
        self.generic_visit(node)
        name = "one_of" if isinstance(node.op, ast.Or) else "all_of"
        function = ast.Attribute(ast.Name("interpreter_semantic", ast.Load()), name, ast.Load())
        none = ast.arguments([], [], None, [], [], None, [])
        return ast.copy_location(ast.Call(function, [ast.Lambda(none, value) for value in node.values], []), node)

    def visit_For(self, node: ast.For) -> ast.For:  # noqa: N802 (as ast calls it)
        """`for i in range(n)` begins each turn with `i = i`, which then makes a tensor of it."""
        self.generic_visit(node)
        if isinstance(node.target, ast.Name) and isinstance(node.iter, ast.Call):
            called = node.iter.func
            if (called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")) == "range":
                itself = ast.Assign([ast.Name(node.target.id, ast.Store())], ast.Name(node.target.id, ast.Load()))
                node.body.insert(0, self.visit_Assign(ast.copy_location(itself, node)))
        return node
