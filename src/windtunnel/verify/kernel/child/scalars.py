"""Single numbers in the interpreter, as a GPU has them: fractions that a launch is given and what a loop counts are tensors of
one element, which a kernel may ask to convert themselves. Runs only in sandboxed children; imports triton."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter


def numbers_as_tensors() -> None:
    """Before any kernel is launched: `eps.to(tl.float32)`, and `start.to(tl.int64)` in a loop over a range, work then."""
    original = interpreter._implicit_cvt

    def converted(argument: Any) -> Any:
        if isinstance(argument, float):
            with np.errstate(over="ignore"):
                return tl.tensor(interpreter.TensorHandle(np.array([argument], np.float32), tl.float32), tl.float32)
        return original(argument)

    interpreter._implicit_cvt = converted
    interpreter.FunctionRewriter.ast_transformer = _Counting()


class _Counting(interpreter.ASTTransformer):  # type: ignore[misc]
    """What the interpreter does to assignments, done to what a loop counts too. `tl.static_range` counts constants."""

    def visit_For(self, node: ast.For) -> ast.For:  # noqa: N802 (as ast calls it)
        """`for i in range(n)` begins each turn with `i = i`, which then makes a tensor of it."""
        self.generic_visit(node)
        if isinstance(node.target, ast.Name) and isinstance(node.iter, ast.Call):
            called = node.iter.func
            if (called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")) == "range":
                itself = ast.Assign([ast.Name(node.target.id, ast.Store())], ast.Name(node.target.id, ast.Load()))
                node.body.insert(0, self.visit_Assign(ast.copy_location(itself, node)))
        return node
