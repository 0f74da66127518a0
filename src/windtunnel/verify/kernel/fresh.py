"""Which local names of a function hold nothing but what it made itself: only their contents may be changed.

Any other name may stand for something that lasts: `kept = KEPT` is a module's list by another name.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from windtunnel.verify.kernel.names import SCOPES, Names, arguments, own_names

MAKERS = frozenset({"list", "dict", "set", "sorted"})
NUMBERS = frozenset({"int", "float", "len", "min", "max", "abs", "round", "sum", "pow", "bool", "str"})
SIZES = frozenset({"numel", "size", "stride", "dim", "element_size", "bit_length"})
OF_SHAPES = frozenset({"shape", "ndim", "itemsize", "nbytes", "multi_processor_count"})
PASSES = 4  # names of names
HELPERS = 3  # helpers of helpers
NUMBER_MODULES = ("math.", "triton.cdiv", "triton.next_power_of_2", "torch.numel")
ONE_NUMBER = (
    "triton.cdiv",
    "triton.next_power_of_2",
    "math.ceil",
    "math.floor",
    "math.isqrt",
    "math.gcd",
    "math.sqrt",
    "math.log2",
)
# What changes a container in its place, where a number is bound anew.
IN_PLACE = (ast.Add, ast.Sub, ast.Mult, ast.BitOr, ast.BitAnd, ast.BitXor)

Binding = tuple[str, ast.expr | None]


@dataclass(frozen=True)
class Known:
    """What the candidate defines. attributes: names that its classes give their objects. hidden: names that are not the module's
    here. given: arguments, which may stand for anything. deeper: how many helpers may still be followed. returns: what those that
    were followed return."""

    names: Names
    attributes: set[str]
    hidden: frozenset[str] = frozenset()
    given: frozenset[str] = frozenset()
    deeper: int = HELPERS
    returns: dict[tuple[str, str], bool] = field(default_factory=dict)

    def helper(self, name: str) -> ast.FunctionDef | None:
        """The function that this name certainly stands for."""
        again = name in self.hidden or name in self.names.assigned or name in self.names.classes
        return None if again or self.deeper == 0 else self.names.functions.get(name)

    def inside(self, helper: ast.FunctionDef) -> Known:
        """The same within a function of the module's."""
        given = frozenset(argument.arg for argument in arguments(helper))
        return replace(self, hidden=given | own_names(helper.body), given=given, deeper=self.deeper - 1)


def fresh_names(body: Iterable[ast.AST], known: Known) -> frozenset[str]:
    """Names that these statements bind, in their own scope, to containers and tensors made there and to nothing else."""
    return _all(list(_bindings(body)), known, lambda value: _made(value, known))


def number_names(body: Iterable[ast.AST], known: Known) -> frozenset[str]:
    """Names that are bound to numbers, texts or sizes and to nothing else, so that `n += 1` binds them anew."""
    bindings, found = list(_bindings(body)), frozenset[str]()
    for _ in range(PASSES):  # one may be another by a second name
        found = _all(bindings, known, partial(_number, known=known, found=found))
    return found


def adds_a_number(node: ast.AugAssign, known: Known) -> bool:
    """Whether `n += 1` binds a number anew or fails, whatever n is: a list takes no number. That n is a tensor, with which host
    code may not compute, is seen when it runs."""
    return not isinstance(node.op, ast.Mult) and _certain(node.value, known)


def tested_numbers(node: ast.If | ast.While) -> frozenset[str]:
    """Names that in its body are no containers, since its test would have failed with them: `if dim < 0: dim += x.dim()`."""
    changed = {id(inner.target) for part in node.body for inner in ast.walk(part) if isinstance(inner, ast.AugAssign)}
    stores = (inner for part in node.body for inner in ast.walk(part) if isinstance(inner, ast.Name) and id(inner) not in changed)
    return frozenset(_compared(node.test)) - {inner.id for inner in stores if not isinstance(inner.ctx, ast.Load)}


def _compared(test: ast.expr) -> Iterator[str]:
    """Names that are compared with a number, or divided by, wherever this test is true."""
    match test:
        case ast.BoolOp(op=ast.And(), values=parts):
            for part in parts:
                yield from _compared(part)
        case ast.Compare(
            left=ast.Name(id=name), ops=[ast.Lt() | ast.LtE() | ast.Gt() | ast.GtE()], comparators=[ast.Constant(value=n)]
        ):
            if isinstance(n, int | float):
                yield name
        case ast.Compare(left=ast.BinOp(op=ast.FloorDiv(), right=ast.Name(id=name))):
            yield name


def _all(bindings: list[Binding], known: Known, good: Callable[[ast.expr], bool]) -> frozenset[str]:
    found: dict[str, bool] = {}
    for name, value in bindings:
        found[name] = found.get(name, True) and value is not None and good(value)
    return frozenset(name for name, fine in found.items() if fine and name not in known.given)


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
            yield from _bound(target.value, ast.List([], ast.Load()))  # always a new list


def _made(value: ast.expr, known: Known) -> bool:
    match value:
        case ast.List() | ast.Dict() | ast.Set() | ast.ListComp() | ast.DictComp() | ast.SetComp() | ast.BinOp():
            return True
        case ast.IfExp():
            return _made(value.body, known) and _made(value.orelse, known)
        case ast.Call(func=ast.Name(id=name), args=[_], keywords=[]) if _is_asdict(name, known):
            return True
        case ast.Call(func=ast.Name(id=name)):
            return (name in MAKERS and name not in known.hidden) or _returns(name, known, fresh_names, _made)
        case ast.Call(func=ast.Attribute(attr="copy"), args=[], keywords=[]) if "copy" not in known.attributes:
            return True
        case ast.Call(func=ast.Attribute() as called):
            return (known.names.dotted(called) or "").startswith("torch.")  # a method of another name may be the candidate's own
    return False


Finder = Callable[[Iterable[ast.AST], Known], frozenset[str]]


def _returns(name: str, known: Known, names_of: Finder, good: Callable[[ast.expr, Known], bool]) -> bool:
    """Whether a helper function of the module returns such values only."""
    helper, key = known.helper(name), (name, good.__name__)
    if helper is None:
        return False
    if key not in known.returns:
        known.returns[key] = False  # where it calls itself
        within = known.inside(helper)
        names = names_of(helper.body, within)
        values = list(_returned(helper.body))
        fine = [value is not None and (_named(value, names) or good(value, within)) for value in values]
        known.returns[key] = bool(fine) and all(fine)
    return known.returns[key]


def _named(value: ast.expr, names: frozenset[str]) -> bool:
    return isinstance(value, ast.Name) and value.id in names


def _is_asdict(name: str, known: Known) -> bool:
    return known.names.imports.get(name) == "dataclasses.asdict" and name not in known.hidden | known.names.level


def _returned(body: Iterable[ast.AST]) -> Iterator[ast.expr | None]:
    waiting = list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Return):
            yield node.value
        elif not isinstance(node, SCOPES):
            waiting += list(ast.iter_child_nodes(node))


def _number(value: ast.expr, known: Known, found: frozenset[str] = frozenset()) -> bool:
    """found: names that are known to be bound to numbers."""
    match value:
        case ast.Name(id=name):
            return name in found
        case ast.Constant() | ast.BinOp() | ast.UnaryOp() | ast.Compare() | ast.JoinedStr() | ast.Tuple():
            return True
        case ast.IfExp():
            return _number(value.body, known, found) and _number(value.orelse, known, found)
        case ast.Call(func=ast.Name(id=name)):
            return (name in NUMBERS and name not in known.hidden) or _returns(name, known, number_names, _number)
        case ast.Call(func=ast.Attribute() as called):
            return called.attr in SIZES or (known.names.dotted(called) or "").startswith(NUMBER_MODULES)
    return _sizes(value)


def _certain(value: ast.expr, known: Known) -> bool:
    """Whether this is one number, and nothing that a list could be extended by."""
    match value:
        case ast.Constant(value=number):
            return isinstance(number, int | float)
        case ast.UnaryOp(operand=inner):
            return _certain(inner, known)
        case ast.BinOp(left=left, right=right):
            return _certain(left, known) and _certain(right, known)
        case ast.Call(func=ast.Name(id=name)):
            return name in ("int", "float", "len") and name not in known.hidden
        case ast.Call(func=ast.Attribute(attr=name) as called):
            if known.names.dotted(called) in ONE_NUMBER:
                return True
            by_place = name in ("size", "stride") and len(value.args) == 1 and _certain(value.args[0], known)
            return (by_place or name in ("numel", "dim", "element_size")) and name not in known.attributes
        case ast.Attribute(attr=name):
            return name in ("ndim", "itemsize") and name not in known.attributes
        case ast.Subscript(value=ast.Attribute(attr="shape"), slice=place):
            return "shape" not in known.attributes and _certain(place, known)
    return False


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
