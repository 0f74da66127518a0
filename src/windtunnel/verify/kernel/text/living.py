"""A candidate without what never runs or is never read."""

from __future__ import annotations

import ast
from copy import copy

from windtunnel.verify.kernel.text import rules
from windtunnel.verify.kernel.text.names import around, never_runs


def living(tree: ast.Module) -> ast.Module:
    """The module without what never runs or is never read, whose names stand for nothing elsewhere."""
    live = [_without_remarks(node) for node in tree.body if not never_runs(node) and not _remark(node)]
    named = {inner.id for part in live for inner in ast.walk(part) if isinstance(inner, ast.Name)}
    return ast.Module([node for node in live if not _unused_helper(node, named)], tree.type_ignores)


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


def _unused_helper(node: ast.stmt, named: set[str]) -> bool:
    """get_inputs() and get_init_inputs() of KernelBench's files, if a candidate repeats them and calls them nowhere."""
    if not isinstance(node, ast.FunctionDef) or node.name not in ("get_inputs", "get_init_inputs") or list(around(node)):
        return False
    return node.name not in named
