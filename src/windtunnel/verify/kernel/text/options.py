"""Dictionaries of a tensor's settings, as torch.nn's own modules use them: torch.empty(n, **factory_kwargs)."""

from __future__ import annotations

import ast

SETTINGS = frozenset({"device", "dtype", "requires_grad"})


def tensor_settings(tree: ast.AST) -> frozenset[str]:
    """Names that everywhere in the text are bound to such a dictionary, written out, and are used as `**name` alone.

    So nothing can put `out` into one, which would make an allocation write into a tensor that lasts.
    """
    plain, bound, found = set[int](), set[str](), set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name() as target], value=made) if _settings(made):
                plain.add(id(target))
                found.add(target.id)
            case ast.keyword(arg=None, value=ast.Name() as used):
                plain.add(id(used))
            case ast.Name(id="dict" as name, ctx=ast.Store() | ast.Del()):
                bound.add(name)
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
            case ast.alias(name=name, asname=other):
                bound.add(other or name.split(".")[0])
    otherwise = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in plain}
    return frozenset() if "dict" in bound else frozenset(found - bound - otherwise)


def _settings(made: ast.expr) -> bool:
    """{"device": x.device} or dict(device=x.device)."""
    match made:
        case ast.Dict(keys=keys):
            return all(isinstance(key, ast.Constant) and key.value in SETTINGS for key in keys)
        case ast.Call(func=ast.Name(id="dict"), args=[], keywords=given):
            return all(keyword.arg in SETTINGS for keyword in given)
    return False
