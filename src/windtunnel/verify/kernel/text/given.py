"""Which arguments are given nothing but objects of the candidate's own classes. That an annotation says so shows nothing."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from windtunnel.verify.kernel.text.names import Names, defaults, first_argument


class Given:
    """Arguments that an annotation with one of `classes` claims to be an object of it, where the text shows every call.

    claims: the ids of these arguments, each with all that it may be given.
    """

    def __init__(self, tree: ast.Module, names: Names, classes: set[str]) -> None:
        self.names, self.classes = names, classes
        called = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
        self.uses: dict[str, list[ast.Call | None]] = {}
        for node in ast.walk(tree):
            match node:
                case ast.Name(id=name, ctx=ast.Load()):
                    self.uses.setdefault(name, []).append(called.get(id(node)))
                case ast.Attribute(value=value, attr=name):
                    bare = isinstance(value, ast.Name) and value.id in names.classes  # its object is among the arguments
                    self.uses.setdefault(f".{name}", []).append(None if bare else called.get(id(node)))
        self.claims = dict(self._claims())

    def kept(self, claims: set[int], own: Callable[[ast.expr], bool]) -> set[int]:
        """Those of the claims that every call keeps. own: whether an expression is such an object, if all claims are kept."""
        return {claim for claim in claims if all(_is_none(value) or own(value) for value in self.claims[claim])}

    def _claims(self) -> Iterator[tuple[int, list[ast.expr]]]:
        for key, node in self.names.functions.items():
            calls = self._calls(key, node)
            if calls is None:
                continue
            own = first_argument(node) if "." in key else ""
            by_place = [part for part in (*node.args.posonlyargs, *node.args.args) if part.arg != own]
            for place, argument in enumerate([*by_place, *node.args.kwonlyargs]):
                said = argument.annotation
                if isinstance(said, ast.Name) and said.id in self.classes:
                    values = [default for part, default in defaults(node) if part is argument]
                    values += [value for call in calls for value in _values(call, argument.arg, place)]
                    yield id(argument), values

    def _calls(self, key: str, node: ast.FunctionDef) -> list[ast.Call] | None:
        """Every call of a function or method; None where it may be called in other ways too."""
        name = key.rpartition(".")[2]
        if node.decorator_list or name == "forward" or name.startswith("__"):
            return None
        uses = self.uses.get(name, []) if "." not in key else self.uses.get(f".{name}", []) + [None] * (name in self.uses)
        calls = [call for call in uses if call is not None]
        spread = any(isinstance(part, ast.Starred) for call in calls for part in call.args)
        spread = spread or any(keyword.arg is None for call in calls for keyword in call.keywords)
        return None if spread or len(calls) < len(uses) else calls


def _values(call: ast.Call, name: str, place: int) -> list[ast.expr]:
    """What a call may give an argument by place or name; nothing where it leaves it out."""
    return [*call.args[place:][:1], *(keyword.value for keyword in call.keywords if keyword.arg == name)]


def _is_none(node: ast.expr) -> bool:
    """None has no attribute that anything could be read from."""
    return isinstance(node, ast.Constant) and node.value is None
