"""Which local names of a function hold nothing but what it made itself: only their contents may be changed.

Any other name may stand for something that lasts: `kept = KEPT` is a module's list by another name.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator

from windtunnel.verify.kernel.names import SCOPES, Names

MAKERS = frozenset({"list", "dict", "set", "sorted"})
NUMBERS = frozenset({"int", "float", "len", "min", "max", "abs", "round", "sum", "pow", "bool", "str"})
SIZES = frozenset({"numel", "size", "stride", "dim", "element_size", "bit_length"})
OF_SHAPES = frozenset({"shape", "ndim", "itemsize", "nbytes", "multi_processor_count"})
NUMBER_MODULES = ("math.", "triton.cdiv", "triton.next_power_of_2", "torch.numel")
# What changes a container in its place, where a number is bound anew.
IN_PLACE = (ast.Add, ast.Sub, ast.Mult, ast.BitOr, ast.BitAnd, ast.BitXor)

Binding = tuple[str, ast.expr | None]


def fresh_names(body: Iterable[ast.AST], names: Names) -> frozenset[str]:
    """Names that these statements bind, in their own scope, to containers and tensors made there and to nothing else."""
    return _all(body, lambda value: _made(value, names))


def number_names(body: Iterable[ast.AST], names: Names) -> frozenset[str]:
    """Names that are bound to numbers, texts or sizes and to nothing else, so that `n += 1` binds them anew."""
    return _all(body, lambda value: _number(value, names))


def _all(body: Iterable[ast.AST], good: Callable[[ast.expr], bool]) -> frozenset[str]:
    found: dict[str, bool] = {}
    for name, value in _bindings(body):
        found[name] = found.get(name, True) and value is not None and good(value)
    return frozenset(name for name, fine in found.items() if fine)


def _bindings(body: Iterable[ast.AST]) -> Iterator[Binding]:
    """(name, what it is bound to) in the statements' own scope; None where that cannot be said."""
    waiting = list(body)
    while waiting:
        node = waiting.pop()
        match node:
            case ast.Assign():
                for target in node.targets:
                    yield from _bound(target, node.value)
            case ast.AnnAssign(target=ast.Name(id=name)):
                if node.value is not None:
                    yield name, node.value
            case ast.NamedExpr(target=ast.Name(id=name)):
                yield name, node.value
            case ast.For():
                yield from _bound(node.target, None)
            case ast.withitem(optional_vars=ast.expr() as target):
                yield from _bound(target, None)
            case ast.comprehension():
                yield from _bound(node.target, None)
            case ast.FunctionDef() | ast.ClassDef():
                yield node.name, None
            case ast.Import() | ast.ImportFrom():
                yield from ((alias.asname or alias.name, None) for alias in node.names)
        if not isinstance(node, SCOPES):
            waiting += list(ast.iter_child_nodes(node))


def _bound(target: ast.expr, value: ast.expr | None) -> Iterator[Binding]:
    match target:
        case ast.Name():
            yield target.id, value
        case ast.Tuple() | ast.List():
            parts = value.elts if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts) else None
            for number, part in enumerate(target.elts):
                yield from _bound(part, parts[number] if parts else value if _sizes(value) else None)
        case ast.Starred():
            yield from _bound(target.value, None)


def _made(value: ast.expr, names: Names) -> bool:
    match value:
        case ast.List() | ast.Dict() | ast.Set() | ast.ListComp() | ast.DictComp() | ast.SetComp() | ast.BinOp():
            return True
        case ast.IfExp():
            return _made(value.body, names) and _made(value.orelse, names)
        case ast.Call(func=ast.Name(id=name)):
            return name in MAKERS
        case ast.Call(func=ast.Attribute() as called):
            return (names.dotted(called) or "").startswith("torch.")  # a method of any other name may be the candidate's own
    return False


def _number(value: ast.expr, names: Names) -> bool:
    match value:
        case ast.Constant() | ast.BinOp() | ast.UnaryOp() | ast.Compare() | ast.JoinedStr() | ast.Tuple():
            return True
        case ast.IfExp():
            return _number(value.body, names) and _number(value.orelse, names)
        case ast.Call(func=ast.Name(id=name)):
            return name in NUMBERS
        case ast.Call(func=ast.Attribute() as called):
            return called.attr in SIZES or (names.dotted(called) or "").startswith(NUMBER_MODULES)
    return _sizes(value)


def _sizes(value: ast.expr | None) -> bool:
    """A shape, strides, or one of them."""
    match value:
        case ast.Attribute(attr=name):
            return name in OF_SHAPES
        case ast.Subscript(value=inner):
            return _sizes(inner)
        case ast.Call(func=ast.Attribute(attr=name)):
            return name in SIZES
    return False
