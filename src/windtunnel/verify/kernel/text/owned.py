"""What a candidate defines itself: its attributes, and which values are certainly made by its own classes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from windtunnel.verify.kernel.text import rules
from windtunnel.verify.kernel.text.names import Names, annotated_types, arguments

REGISTERS = rules.words("register_buffer register_parameter add_module register_module")
ADDS = rules.words("add_module register_module")
LIMITED = ("torch.finfo", "torch.iinfo")
SELVES = ("self", "cls")


class Owned:
    """attributes: names that its classes give their objects. plain: 'Class.method' of methods that need an object. callables:
    attributes that may be called, as self.norm(x); unclear: others that may be the candidate's own too."""

    def __init__(self, tree: ast.Module, names: Names) -> None:
        self.names = names
        self.tuples = {target for target, value in _bindings(tree) if self._named_tuple(value)}
        self.attributes = set(self._attributes(tree))
        self.plain = {key for key, node in names.functions.items() if "." in key and _needs_object(node)}
        self.made = self._made(tree)
        self.callables, self.unclear = self._callables(tree)

    def is_made(self, node: ast.expr) -> bool:
        """Whether this is an object of one of the candidate's own classes, whatever the program does before."""
        return self._maker(node) == "own" or self.made.get(_key(node)) == "own"

    def has_limits(self, node: ast.expr) -> bool:
        """Whether this is torch.finfo(...) or torch.iinfo(...), or a name for it."""
        return self._maker(node) == "limits" or self.made.get(_key(node)) == "limits"

    def _callables(self, tree: ast.Module) -> tuple[set[str], set[str]]:
        """Attributes that hold nothing but modules of the candidate's own classes, its functions and lambdas; and others that
        hold nothing that torch makes."""
        values: dict[str, list[ast.expr | None]] = {}
        for name, value in _attribute_values(tree):
            values.setdefault(name, []).append(value)
        of_classes = {name for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for name in class_names(node)}
        adds = any(isinstance(node, ast.Attribute) and node.attr in ADDS for node in ast.walk(tree))
        bound = {key for key, _ in _bindings(tree)} | {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
        called = {name for name, some in values.items() if not adds and all(self._calls(v, bound) for v in some)} - of_classes
        return called, {name for name, some in values.items() if not any(self._of_torch(value) for value in some)} - called

    def _of_torch(self, value: ast.expr | None) -> bool:
        return isinstance(value, ast.Call) and (self.names.dotted(value.func) or "").startswith("torch.")

    def _calls(self, value: ast.expr | None, bound: set[str]) -> bool:
        match value:
            case ast.Lambda():
                return True
            case ast.Name(id=name):
                return name in self.names.functions and name not in bound
            case ast.IfExp(body=body, orelse=orelse):
                return self._calls(body, bound) and self._calls(orelse, bound)
            case ast.Call(func=ast.Name(id=name)):
                return f"{name}.forward" in self.names.functions and name not in bound
        return False

    def _attributes(self, tree: ast.Module) -> Iterator[str]:
        for node in ast.walk(tree):
            match node:
                case ast.Attribute(value=ast.Name(), attr=name) if isinstance(node.ctx, ast.Store):
                    yield name
                case ast.ClassDef():
                    yield from class_names(node)
                case ast.Call(func=ast.Attribute(attr=name)) if name in REGISTERS:
                    yield from texts([*node.args[:1], *(k.value for k in node.keywords if k.arg == "name")])
                case ast.Call() if self._named_tuple(node):
                    yield from texts(node.args[1:])

    def _named_tuple(self, node: ast.expr | None) -> bool:
        made_by = ("collections.namedtuple", "typing.NamedTuple", "typing_extensions.NamedTuple")
        return isinstance(node, ast.Call) and self.names.dotted(node.func) in made_by

    def _maker(self, node: ast.expr | None) -> str:
        if not isinstance(node, ast.Call):
            return ""
        if isinstance(node.func, ast.Name) and (node.func.id in self.names.classes or node.func.id in self.tuples):
            return "own"
        return "limits" if self.names.dotted(node.func) in LIMITED else ""

    def _made(self, tree: ast.Module) -> dict[str, str]:
        """Name → what every one of its bindings, in any scope, is made by."""
        makers: dict[str, set[str]] = {}
        for key, value in _bindings(tree):
            makers.setdefault(key, set()).add(self._maker(value))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.Lambda):
                for argument in arguments(node):
                    own = isinstance(argument.annotation, ast.Name) and argument.annotation.id in self.names.classes
                    makers.setdefault(argument.arg, set()).add("own" if own else "")
        return {key: next(iter(kinds)) for key, kinds in makers.items() if len(kinds) == 1}


def _bindings(tree: ast.Module) -> Iterator[tuple[str, ast.expr | None]]:
    """Name or 'self.name' → what it is assigned; None where that is not an expression of its own."""
    plain: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if _key(target):
                    plain.add(id(target))
                    yield _key(target), node.value
    for node in ast.walk(tree):
        if not isinstance(node, ast.Name | ast.Attribute) or not isinstance(node.ctx, ast.Store) or id(node) in plain:
            continue
        if _key(node):
            yield _key(node), None


def _attribute_values(tree: ast.Module) -> Iterator[tuple[str, ast.expr | None]]:
    """Name of an attribute, of whatever object → what it is assigned; None where that is not an expression of its own."""
    plain: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Attribute):
                    plain.add(id(target))
                    yield target.attr, node.value
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load) and id(node) not in plain:
            yield node.attr, None


def _key(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id=base), attr=name) if base in SELVES:
            return f"self.{name}"
    return ""


def class_names(node: ast.ClassDef) -> Iterator[str]:
    """What its body defines: methods, and names that are assigned."""
    for part in node.body:
        if isinstance(part, ast.FunctionDef):
            yield part.name
        elif isinstance(part, ast.Assign | ast.AnnAssign):
            for target in part.targets if isinstance(part, ast.Assign) else [part.target]:
                yield from (inner.id for inner in ast.walk(target) if isinstance(inner, ast.Name))


def texts(nodes: list[ast.expr]) -> Iterator[str]:
    """Every word of the constant texts in some expressions: namedtuple('Tile', 'rows cols')."""
    for node in nodes:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                yield from inner.value.replace(",", " ").split()


def _needs_object(node: ast.FunctionDef) -> bool:
    """Whether its first argument is `self`, which a call through the class could make anything."""
    return bool(node.args.args) and node.args.args[0].arg == "self" and not decorated(node, "staticmethod", "classmethod")


def decorated(node: ast.FunctionDef, *names: str) -> bool:
    """Whether one of its decorators is one of these names."""
    return any(isinstance(part, ast.Name) and part.id in names for part in node.decorator_list)


def type_places(tree: ast.Module, names: Names) -> set[int]:
    """Nodes that say what type something is: annotations, isinstance's second argument, what stands in Optional[...]."""
    found: set[int] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef():
                places = annotated_types(node)
            case ast.AnnAssign():
                places = [node.annotation]
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass" as name), args=[_, kind]) if name not in names.bound:
                places = [kind]
            case ast.Subscript(value=value) if _generic(value, names):
                places = [node.slice]
            case _:
                continue
        for place in places:
            found |= set(_types(place))
    return found


def _generic(node: ast.expr, names: Names) -> bool:
    dotted = names.dotted(node) if isinstance(node, ast.Attribute | ast.Name) else None
    if dotted is not None:
        return dotted.startswith(("typing.", "typing_extensions.", "collections.abc."))
    return isinstance(node, ast.Name) and node.id in ("tuple", "list", "dict", "set")


def _types(node: ast.expr) -> Iterator[int]:
    match node:
        case ast.Name() | ast.Attribute():
            yield id(node)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            for part in parts:
                yield from _types(part)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            yield from _types(left)
            yield from _types(right)
        case ast.Subscript(value=value, slice=inside):
            yield from _types(value)
            yield from _types(inside)
