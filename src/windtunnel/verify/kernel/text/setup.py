"""Which methods of a candidate's run only while its model is constructed: what `__init__` calls and nothing else names."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterable, Iterator

from windtunnel.verify.kernel.text.names import SCOPES, first_argument

CONSTRUCTORS = ("__init__", "__post_init__")
PASSES = 4  # methods that such methods call


def setup_methods(tree: ast.Module, called: set[int]) -> frozenset[str]:
    """Names of methods like reset_parameters or _init_weights: each mention of such a name is a call on `self` in a constructor
    or in another of them. called: ids of what is called."""
    methods = {part.name: part for part in _methods(tree) if not part.decorator_list and part.name not in CONSTRUCTORS}
    mentioned: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in methods:
            mentioned[node.attr] = mentioned.get(node.attr, 0) + 1
    found: frozenset[str] = frozenset()
    for _ in range(PASSES):
        counted: dict[str, int] = {}
        for part in _methods(tree):
            if part.name in CONSTRUCTORS or part.name in found:
                for name in _called_on_self(part, called):
                    counted[name] = counted.get(name, 0) + 1
        found = frozenset(name for name in methods if name != "forward" and 0 < mentioned.get(name, 0) == counted.get(name, 0))
    return found


def made_once(
    tree: ast.Module, classes: Iterable[str], called: Container[int], types: Container[int], setup: Container[str]
) -> frozenset[str]:
    """Classes of the candidate's whose objects are all made while its model is constructed, or the module is imported: those that
    are called there and named nowhere else. In the others' constructors forward runs. called, types: ids of what is called, and
    of what stands for a type. setup: methods that only construct."""
    found = set(classes)
    places = {id(node): kind for node, kind in _made_at(tree, found, setup)}  # '' where it runs on import
    harmless = {id(node) for node in _asked_only(tree)}
    made_in: dict[str, list[str]] = {}  # class → those that its constructor makes
    later: list[str] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Name) or node.id not in found or id(node) in harmless or id(node) in types:
            continue
        if id(node) in called and id(node) in places:
            made_in.setdefault(places[id(node)], []).append(node.id)
        else:
            later.append(node.id)
    while later:
        name = later.pop()
        if name in found and name != "ModelNew":
            found.remove(name)
            later += made_in.get(name, [])
    return frozenset(found)


def _asked_only(tree: ast.Module) -> Iterator[ast.expr]:
    """Classes in super(Block, self), and those that are asked for what is no method."""
    methods = {part.name for part in _methods(tree)}
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="super"), args=[kind, *_]):
                yield kind
            case ast.Attribute(value=ast.Name() as kind, attr=name) if name not in methods:
                yield kind


def _made_at(tree: ast.Module, classes: Container[str], setup: Container[str]) -> Iterator[tuple[ast.AST, str]]:
    """(node, class) of what runs in these classes' constructors, and with '' of what runs on import."""
    waiting: list[tuple[ast.AST, str]] = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            constructs = [part for part in node.body if isinstance(part, ast.FunctionDef) and node.name in classes]
            inside = (one for part in constructs if part.name in CONSTRUCTORS or part.name in setup for one in part.body)
            waiting += [(one, node.name) for one in inside]
            waiting += [(part, "") for part in node.body if not isinstance(part, ast.FunctionDef)]
        elif not isinstance(node, ast.FunctionDef):
            waiting.append((node, ""))
    while waiting:
        inner, kind = waiting.pop()
        yield inner, kind
        if not isinstance(inner, SCOPES):
            waiting += [(child, kind) for child in ast.iter_child_nodes(inner)]


def _methods(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from (part for part in node.body if isinstance(part, ast.FunctionDef))


def _called_on_self(method: ast.FunctionDef, called: set[int]) -> Iterator[str]:
    """What a method calls on its first argument by itself: lambdas, functions and generators inside run later."""
    own = first_argument(method)
    waiting: list[ast.AST] = list(method.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Attribute) and id(node) in called and isinstance(node.value, ast.Name) and node.value.id == own:
            yield node.attr
        if not isinstance(node, (*SCOPES, ast.GeneratorExp)):
            waiting += list(ast.iter_child_nodes(node))
