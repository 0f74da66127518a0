"""What a candidate defines itself: its attributes, and which values are certainly made by its own classes."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Container, Iterator

from windtunnel.verify.kernel.text import rules
from windtunnel.verify.kernel.text.fresh import QUESTIONS
from windtunnel.verify.kernel.text.given import Given
from windtunnel.verify.kernel.text.names import (
    SCOPES,
    Names,
    annotated_types,
    arguments,
    bound_names,
    decorated,
    first_argument,
    own_names,
)

REGISTERS = rules.words("register_buffer register_parameter add_module register_module")
NAMERS = rules.words(
    """
    collections.namedtuple typing.NamedTuple typing_extensions.NamedTuple enum.Enum enum.IntEnum enum.StrEnum torch.nn.ModuleDict
    torch.nn.ParameterDict collections.OrderedDict
    """
)
ADDS = rules.words("add_module register_module")
LIMITED = ("torch.finfo", "torch.iinfo")
TELL_DEVICES = ("torch.FloatTensor", "torch.LongTensor")  # a GPU's tensors are none of these
SELVES = ("self", "cls")
PASSES = 3  # functions that return what other functions made
CLAIM_PASSES = 6  # arguments that functions hand on to others; what is not settled then is not believed


class Owned:
    """attributes: names that its classes give their objects. plain: 'Class.method' of methods that need an object. callables:
    attributes that may be called, as self.norm(x); unclear: others that may be the candidate's own too. names_unread:
    whether some object may have attributes whose names the text does not show."""

    def __init__(self, tree: ast.Module, names: Names) -> None:
        self.names = names
        self.bindings = list(_bindings(tree))
        self.taken = [
            part for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Lambda) for part in arguments(node)
        ]
        self.tuples = {target for target, value in self.bindings if self._named_tuple(value)}
        self.unassigned = set(self._unassigned(tree))
        self.attributes = self.unassigned | set(_assigned(tree))
        self.names_unread = _names_unread(tree, names)
        self.selves = _are_objects(tree)
        self.plain = {key for key, node in names.functions.items() if "." in key and _needs_object(node, self.attributes)}
        self.unsure = _bound_more_than_once(tree) | names.imports.keys()
        self._settle(tree)
        self.callables, self.unclear = self._callables(tree)

    def _settle(self, tree: ast.Module) -> None:
        """Claims of annotations are believed together: the first of them to be broken would be so by a call that shows it."""
        classes = (self.names.classes.keys() | self.tuples) - self.unsure
        given = Given(tree, self.names, classes)
        claims = set(given.claims)
        for _ in range(CLAIM_PASSES):
            self._believe(classes, claims)
            kept = given.kept(claims, self._own_value)
            if kept == claims:
                return
            claims = kept
        self._believe(classes, set())

    def _believe(self, classes: set[str], claims: set[int]) -> None:
        """What makes own objects, and what holds them, if these claims are true."""
        self.makers = set(classes)
        self.made = self._made(claims)
        for _ in range(PASSES):  # functions that return what such functions made
            more = {name for name, node in self.names.functions.items() if self._returns_own(name, node)}
            if more <= self.makers:
                return
            self.makers |= more
            self.made = self._made(claims)

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
        bound = {key for key, _ in self.bindings} | {argument.arg for argument in self.taken}
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

    def _unassigned(self, tree: ast.Module) -> Iterator[str]:
        """Attributes that come otherwise than by self.name = ...: of classes' bodies, registered ones, fields of tuples."""
        for node in ast.walk(tree):
            match node:
                case ast.Attribute(attr=name, ctx=ast.Store() | ast.Del()) if not _key(node):
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
        if isinstance(node.func, ast.Name) and node.func.id in self.makers:
            return "own"
        return "limits" if self.names.dotted(node.func) in LIMITED else ""

    def _returns_own(self, name: str, node: ast.FunctionDef) -> bool:
        """Whether this is a function of the module that returns nothing but objects of the candidate's own classes."""
        if name in self.unsure or "." in name or node.decorator_list:
            return False
        inside = [part for statement in node.body for part in ast.walk(statement)]
        if any(isinstance(part, SCOPES) for part in inside):
            return False
        returned = [part.value for part in inside if isinstance(part, ast.Return)]
        return bool(returned) and all(value is not None and self._own_value(value) for value in returned)

    def _own_value(self, node: ast.expr) -> bool:
        if isinstance(node, ast.IfExp):
            return self._own_value(node.body) and self._own_value(node.orelse)
        return self.is_made(node)

    def _made(self, claims: set[int]) -> dict[str, str]:
        """Name → what every one of its bindings, in any scope, is made by. claims: ids of arguments that are believed."""
        makers: dict[str, set[str]] = {f"self.{name}": {""} for name in self.unassigned}
        for key, value in self.bindings:
            unread = (self.names_unread or not self.selves) and key.startswith("self.")
            makers.setdefault(key, set()).add("" if unread else self._maker(value))
        for argument in self.taken:
            makers.setdefault(argument.arg, set()).add("own" if id(argument) in claims else "")
        return {key: next(iter(kinds)) for key, kinds in makers.items() if len(kinds) == 1}


def _assigned(tree: ast.Module) -> Iterator[str]:
    """Attributes that something is assigned to by a name's dot."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.attr


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


def _bound_more_than_once(tree: ast.Module) -> set[str]:
    """Names that stand for different things here and there."""
    return {name for name, count in Counter(bound_names(tree)).items() if count > 1}


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


def _are_objects(tree: ast.Module) -> bool:
    """Whether `self` and `cls` are bound by methods alone, as their first argument."""
    bodies = (node.body for node in tree.body if isinstance(node, ast.ClassDef))
    methods = [part for body in bodies for part in body if isinstance(part, ast.FunctionDef)]
    return all(count == sum(first_argument(part) == name for part in methods) for name, count in _times(tree).items())


def _times(tree: ast.Module) -> Counter[str]:
    """How often each of SELVES is bound."""
    return Counter(name for name in bound_names(tree) if name in SELVES)


def _key(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id=base), attr=name) if base in SELVES:
            return f"self.{name}"
    return ""


def _names_unread(tree: ast.Module, names: Names) -> bool:
    """Whether a module or tuple may be given an attribute by a name that is put together, by a dictionary or through a value."""
    read = {id(base) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for base in node.bases}
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr=name) as called) if name in REGISTERS:
                place = [*node.args[:1], *(k.value for k in node.keywords if k.arg == "name")]
                read |= {id(called)} if place and all(map(_shown, place)) else set()
            case ast.Call(func=called) if (names.dotted(called) or "").endswith("amedtuple"):
                read |= {id(called)} if len(node.args) == 2 and not node.keywords and all(map(_shown, node.args)) else set()
    for node in ast.walk(tree):
        named = isinstance(node, ast.Attribute | ast.Name) and (names.dotted(node) or "") in NAMERS
        if (named or (isinstance(node, ast.Attribute) and node.attr in REGISTERS)) and id(node) not in read:
            return True
    return False


def _shown(node: ast.expr) -> bool:
    """Whether this is a text, a list of texts, or one that begins with what no question of a tensor's or list's begins with."""
    match node:
        case ast.Constant():
            return True
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return all(map(_shown, parts))
        case ast.JoinedStr(values=[ast.Constant(value=str(start)), *_]):
            return bool(start) and not any(name.startswith(start) for name in QUESTIONS)
    return False


def class_names(node: ast.ClassDef) -> Iterator[str]:
    """What its body defines: methods, and names that are bound, by a walrus in a value or default too."""
    yield from own_names(node.body)


def texts(nodes: list[ast.expr]) -> Iterator[str]:
    """Every word of the constant texts in some expressions: namedtuple('Tile', 'rows cols')."""
    for node in nodes:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                yield from inner.value.replace(",", " ").split()


def _needs_object(node: ast.FunctionDef, attributes: Container[str]) -> bool:
    """Whether its first argument is `self`, by this name or by what it is asked for: a call through the class could make it
    anything."""
    own = first_argument(node)
    if not own or decorated(node, "classmethod"):
        return False
    asked = (part for part in ast.walk(node) if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name))
    return own == "self" or any(part.value.id == own and part.attr in attributes for part in asked)  # type: ignore[attr-defined]


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
                places = [part for part in _kinds(kind) if names.dotted(part) not in TELL_DEVICES]
            case ast.Subscript(value=value) if _generic(value, names):
                places = [node.slice]
            case _:
                continue
        for place in places:
            found |= set(_types(place))
    return found


def _kinds(node: ast.expr) -> list[ast.expr]:
    """The classes that isinstance is given."""
    return [part for inner in node.elts for part in _kinds(inner)] if isinstance(node, ast.Tuple | ast.List) else [node]


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
