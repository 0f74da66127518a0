"""Which values a candidate only looks at, so that they decide nothing or go nowhere."""

from __future__ import annotations

import ast
from collections.abc import Container

from windtunnel.verify.kernel.text import rules

# Calls in an assert that hand on nothing of what they are given.
ASKING_CALLS = rules.words("all any bool float int isinstance issubclass len list max min range set sorted str sum tuple zip")


def only_asserted(tree: ast.Module, methods: Container[str]) -> set[int]:
    """Nodes inside an assert, or in the condition of an if that only raises: there anything may be asked.

    methods: the candidate's own.
    """
    found: set[int] = set()
    for node in ast.walk(tree):
        raises = isinstance(node, ast.If) and not node.orelse and all(isinstance(part, ast.Raise) for part in node.body)
        if isinstance(node, ast.Assert) or raises:
            inside = list(ast.walk(node.test))  # type: ignore[attr-defined]
            if not any(_hands_on(inner, methods) for inner in inside):
                found |= {id(inner) for inner in inside}
    return found


def only_raised(tree: ast.Module) -> set[int]:
    """Nodes of what an error says: where they run, the candidate is refused."""
    said = [
        node.exc if isinstance(node, ast.Raise) else node.msg
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise | ast.Assert)
    ]
    return {id(inner) for part in said if part is not None for inner in ast.walk(part)}


def _hands_on(node: ast.AST, methods: Container[str]) -> bool:
    """Whether an answer could leave an assert through this: by a name, a list or a function of the candidate's."""
    match node:
        case ast.NamedExpr() | ast.Lambda():
            return True
        case ast.Call(func=ast.Name(id=name)):
            return name not in ASKING_CALLS
        case ast.Call(func=ast.Attribute(attr=name)):
            return name in rules.CHANGING or name in methods
        case ast.Call():
            return True
    return False


def looked_at(tree: ast.Module) -> set[int]:
    """Nodes whose value is only compared, computed with, tested or asked for an attribute: it is not kept or passed on."""
    found: list[ast.expr] = []
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=value) if isinstance(node.ctx, ast.Load) and not node.attr.startswith("_"):
                found.append(value)
            case ast.Compare(left=left, comparators=others):
                found += [left, *others]
            case ast.BinOp(left=left, right=right):
                found += [left, right]
            case ast.UnaryOp(operand=value) | ast.If(test=value) | ast.IfExp(test=value) | ast.While(test=value):
                found.append(value)
    return {id(node) for node in found}
