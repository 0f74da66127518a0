"""A candidate without what never runs or is never read."""

from __future__ import annotations

import ast
from collections import Counter
from copy import copy

from windtunnel.verify.kernel.text import rules
from windtunnel.verify.kernel.text.names import never_runs

REPEATED = ("Model", "get_inputs", "get_init_inputs")


def living(tree: ast.Module) -> ast.Module:
    """The module without what never runs or is never read, whose names stand for nothing elsewhere."""
    live = [_without_remarks(node) for node in tree.body if not never_runs(node) and not _remark(node)]
    named = Counter(name for part in live for name in _repeated_in(part))
    return ast.Module([_emptied(node) if _unused(node, named) else node for node in live], tree.type_ignores)


def _without_remarks(node: ast.stmt) -> ast.stmt:
    if not isinstance(node, ast.ClassDef) or not any(_remark(part) for part in node.body):
        return node
    kept = copy(node)
    kept.body = [part for part in node.body if not _remark(part)] or [ast.copy_location(ast.Pass(), node)]
    return kept


def _remark(node: ast.stmt) -> bool:
    """__all__ = ["ModelNew"]"""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in rules.REMARKS:
            parts = value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
            return all(isinstance(part, ast.Constant) for part in parts)
    return False


def _repeated_in(node: ast.stmt) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name) and inner.id in REPEATED}


def _unused(node: ast.stmt, named: Counter[str]) -> bool:
    """Model, get_inputs() and get_init_inputs() of KernelBench's files, if a candidate repeats them and names them nowhere else.
    named: how many statements of the module name each."""
    if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name not in REPEATED:
        return False
    return named[node.name] == (node.name in _repeated_in(node))  # super(Model, self)


def _emptied(node: ast.stmt) -> ast.stmt:
    """Without the bodies of what nobody calls. What is evaluated where it is defined stays: decorators, defaults, annotations,
    and all else in a class."""
    kept = copy(node)
    if isinstance(kept, ast.ClassDef):
        kept.body = [_emptied(part) if getattr(part, "name", "") in ("__init__", "forward") else part for part in kept.body]
    elif isinstance(kept, ast.FunctionDef):
        kept.body = [ast.copy_location(ast.Pass(), node)]
    return kept
