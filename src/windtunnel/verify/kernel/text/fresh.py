"""Which local names of a function hold nothing but what it made itself: only their contents may be changed.

Any other name may stand for something that lasts: `kept = KEPT` is a module's list by another name.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from windtunnel.verify.kernel.text.names import SCOPES, Names, arguments, own_names

MAKERS = frozenset({"list", "dict", "set", "sorted", "tuple"})  # a tuple that is not new cannot be changed either
SHOW = frozenset({"torch.as_tensor", "torch.nn.Parameter", "torch.nn.Buffer"})
NUMBERS = frozenset({"int", "float", "len", "min", "max", "abs", "round", "sum", "pow", "bool", "str"})
SIZES = frozenset({"numel", "size", "stride", "dim", "element_size", "bit_length"})
OF_SHAPES = frozenset({"shape", "ndim", "itemsize", "nbytes", "multi_processor_count"})
QUESTIONS = SIZES | OF_SHAPES | {"copy"}  # whose answers are new, where no class of the candidate's has another
PASSES = 4  # names of names
HELPERS = 3  # helpers of helpers
NUMBER_MODULES = ("math.", "triton.cdiv", "triton.next_power_of_2", "torch.numel")
IN_MATH = ("ceil", "floor", "isqrt", "gcd", "sqrt", "log2")
ONE_NUMBER = frozenset({"triton.cdiv", "triton.next_power_of_2", *(f"math.{name}" for name in IN_MATH)})
# What changes a container in its place, where a number is bound anew.
IN_PLACE = (ast.Add, ast.Sub, ast.Mult, ast.BitOr, ast.BitAnd, ast.BitXor)

Binding = tuple[str, ast.expr | None]


@dataclass(frozen=True)
class Fresh:
    """Tells what is made anew. names: of the candidate. own: attributes that its classes define, so that `.shape` may be a list
    of theirs. Within a function: hidden are names that are not the module's there, given its arguments, which may stand for
    anything; deeper is how many helpers may still be followed, returns what those that were followed return."""

    names: Names
    own: Container[str]
    hidden: frozenset[str] = frozenset()
    given: frozenset[str] = frozenset()
    deeper: int = HELPERS
    returns: dict[tuple[str, str], bool] = field(default_factory=dict)

    def within(self, hidden: frozenset[str], given: frozenset[str]) -> Fresh:
        """The same within a function that binds or sees these names."""
        return replace(self, hidden=hidden, given=given)

    def containers(self, body: Iterable[ast.AST]) -> frozenset[str]:
        """Names that these statements bind, in their own scope, to containers and tensors made there and to nothing else."""
        return self._all(list(self._bindings(body)), self.made)

    def numbers(self, body: Iterable[ast.AST]) -> frozenset[str]:
        """Names that are bound to numbers, texts or sizes and to nothing else, so that `n += 1` binds them anew."""
        bindings, found = list(self._bindings(body)), frozenset[str]()
        for _ in range(PASSES):  # one may be another by a second name
            found = self._all(bindings, partial(self.number, found=found))
        return found

    def tallies(self, body: Iterable[ast.AST]) -> frozenset[str]:
        """Names that are bound to new lists of numbers and to nothing else, so that `n[0] += 1` changes no list inside."""
        some = list(body)
        return self._all(list(self._bindings(some)), self._tally) - frozenset(self._filled(some))

    def _filled(self, body: Iterable[ast.AST]) -> Iterator[str]:
        """Names of lists that something else than a number may be put into."""
        plain: set[int] = set()
        for node in (inner for part in body for inner in ast.walk(part)):
            match node:
                case ast.Assign(targets=[ast.Subscript(value=ast.Name(), slice=place) as target], value=value):
                    whole = _one_place(place) or not isinstance(value, ast.Tuple | ast.BinOp)
                    plain |= {id(target)} if whole and self.number(value) else set()
                case ast.AugAssign(target=ast.Subscript(value=ast.Name(), slice=place) as target) if _one_place(place):
                    plain.add(id(target))  # a number and what is added to it
                case ast.AugAssign(target=ast.Name(id=name)):
                    yield name
                case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append" | "insert"), args=parts, keywords=[]):
                    if not all(map(self.number, parts)) or any(isinstance(part, ast.Tuple | ast.BinOp) for part in parts):
                        yield name
                case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="extend")):
                    yield name
        for node in (inner for part in body for inner in ast.walk(part)):
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and id(node) not in plain:
                yield from [node.value.id] if isinstance(node.value, ast.Name) else []

    def made(self, value: ast.expr) -> bool:
        """Whether this is a container or tensor that did not exist before."""
        match value:
            case ast.Tuple():  # nothing in it can be exchanged
                return True
            case ast.List() | ast.Dict() | ast.Set() | ast.ListComp() | ast.DictComp() | ast.SetComp() | ast.BinOp():
                return True
            case ast.IfExp():
                return self.made(value.body) and self.made(value.orelse)
            case ast.Call(func=ast.Attribute(attr="copy"), args=[], keywords=[]) if "copy" not in self.own:
                return True
            case ast.Call(func=ast.Name(id=name)) if name not in self.names.imports:
                return self._builtin(name, MAKERS) or self._returns(name, "containers")
            case ast.Call(func=ast.Attribute() | ast.Name() as called):
                # A method of any other name may be the candidate's own; what is written to by `out=` is not new.
                dotted = self._dotted(called)
                alone = len(value.args) == 1 and not value.keywords
                if dotted in SHOW:  # the memory of what they are given
                    return bool(value.args) and self.made(value.args[0])
                return (dotted.startswith("torch.") and not _writes_to(value)) or (alone and dotted == "dataclasses.asdict")
        return False

    def number(self, value: ast.expr, found: frozenset[str] = frozenset()) -> bool:
        """Whether this is a number, a text or a size. found: names that hold such."""
        number = partial(self.number, found=found)
        match value:
            case ast.Name(id=name):
                return name in found
            case ast.UnaryOp(op=ast.UAdd(), operand=same):  # a tensor's is the tensor
                return number(same)
            case ast.Constant() | ast.BinOp() | ast.UnaryOp() | ast.Compare() | ast.JoinedStr() | ast.Tuple():
                return True
            case ast.IfExp():
                return number(value.body) and number(value.orelse)
            case ast.Call(func=ast.Name(id="max" | "min" as name), args=parts, keywords=[]) if name not in self.names.bound:
                return any(map(_plain_number, parts)) or (len(parts) > 1 and all(map(number, parts)))
            case ast.Call(func=ast.Name(id="sum"), args=parts, keywords=named) if "sum" not in self.names.bound:
                return not named and all(map(_plain_number, parts[1:]))  # sum([], KEPT) is KEPT
            case ast.Call(func=ast.Name(id=name)) if name not in self.names.imports:
                return self._builtin(name, NUMBERS) or self._returns(name, "numbers")
            case ast.Call(func=ast.Attribute() | ast.Name() as called):
                dotted = self._dotted(called)
                return dotted.startswith(NUMBER_MODULES) or (
                    not dotted and isinstance(called, ast.Attribute) and self._size(called.attr)
                )
        return self._sizes(value)

    def adds_a_number(self, node: ast.AugAssign) -> bool:
        """Whether `n += 1` binds a number anew or fails, whatever n is: a list takes no number. That n is a tensor, with which
        host code may not compute, is seen when it runs."""
        return not isinstance(node.op, ast.Mult) and self._certain(node.value)

    def _certain(self, value: ast.expr) -> bool:
        """Whether this is one number, and nothing that a list could be extended by."""
        match value:
            case ast.Constant(value=number):
                return isinstance(number, int | float)
            case ast.UnaryOp(operand=inner):
                return self._certain(inner)
            case ast.BinOp(op=ast.LShift() | ast.RShift(), right=right):
                return self._certain(right)  # nothing but a number, or a tensor, can be shifted
            case ast.BinOp(left=left, right=right):
                return self._certain(left) and self._certain(right)
            case ast.Call(func=called) if self._dotted(called) in ONE_NUMBER:
                return True
            case ast.Call(func=ast.Name(id=name)):
                return self._builtin(name, ("int", "float", "len"))
            case ast.Call(func=ast.Attribute(attr=name), args=parts):
                by_place = name in ("size", "stride") and len(parts) == 1 and self._certain(parts[0])
                return (by_place or name in ("numel", "dim", "element_size")) and name not in self.own
            case ast.Attribute(attr=name):
                return name in ("ndim", "itemsize") and name not in self.own
            case ast.Subscript(value=ast.Attribute(attr="shape"), slice=place):
                return "shape" not in self.own and self._certain(place)
        return False

    def _tally(self, value: ast.expr) -> bool:
        match value:
            case ast.List(elts=parts):
                return all(map(self.number, parts)) and not any(isinstance(part, ast.Tuple | ast.BinOp) for part in parts)
            case ast.Call(func=ast.Name(id="list"), args=[part], keywords=[]) if "list" not in self.names.bound:
                return self._sizes(part)
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return (self._tally(left) and self.number(right)) or (self._tally(right) and self.number(left))
        return False

    def _dotted(self, called: ast.expr) -> str:
        """What an imported name stands for, where nothing else has that name; '' for any other."""
        root = called
        while isinstance(root, ast.Attribute):
            root = root.value
        return "" if isinstance(root, ast.Name) and root.id in self.names.rebound else self.names.dotted(called) or ""

    def _builtin(self, name: str, known: Container[str]) -> bool:
        return name in known and name not in self.names.bound

    def _size(self, name: str) -> bool:
        return name in SIZES and name not in self.own

    def _sizes(self, value: ast.expr | None) -> bool:
        """A shape, strides, or one of them."""
        match value:
            case ast.Attribute(attr=name):
                return name in OF_SHAPES and name not in self.own
            case ast.Subscript(value=inner):
                return self._sizes(inner)
            case ast.Call(func=ast.Attribute(attr=name)):
                return self._size(name)
        return False

    def _returns(self, name: str, kind: str) -> bool:
        """Whether a name certainly stands for a function of the module that returns containers, or numbers, made anew."""
        again = name in self.hidden or name in self.names.assigned or name in self.names.classes
        helper, key = self.names.functions.get(name), (name, kind)
        if again or self.deeper == 0 or helper is None:
            return False
        if key not in self.returns:
            self.returns[key] = False  # where it calls itself
            given = frozenset(argument.arg for argument in arguments(helper))
            inside = replace(self, hidden=given | own_names(helper.body), given=given, deeper=self.deeper - 1)
            names = inside.containers(helper.body) if kind == "containers" else inside.numbers(helper.body)
            good = inside.made if kind == "containers" else inside.number
            values = list(_returned(helper.body))
            fine = [value is not None and (_named(value, names) or good(value)) for value in values]
            self.returns[key] = bool(fine) and all(fine)
        return self.returns[key]

    def _all(self, bindings: list[Binding], good: Callable[[ast.expr], bool]) -> frozenset[str]:
        found: dict[str, bool] = {}
        for name, value in bindings:
            found[name] = found.get(name, True) and value is not None and good(value)
        return frozenset(name for name, fine in found.items() if fine and name not in self.given)

    def _bindings(self, body: Iterable[ast.AST]) -> Iterator[Binding]:
        """(name, what it is bound to) in the statements' own scope; None where that cannot be said."""
        waiting = list(body)
        while waiting:
            node = waiting.pop()
            match node:
                case ast.Assign():
                    for target in node.targets:
                        yield from self._bound(target, node.value)
                case ast.AnnAssign(target=ast.Name(id=name)):
                    if node.value is not None:
                        yield name, node.value
                case ast.NamedExpr(target=ast.Name(id=name)):
                    yield name, node.value
                case ast.For() | ast.comprehension():
                    yield from self._bound(node.target, None)
                case ast.withitem(optional_vars=ast.expr() as target):
                    yield from self._bound(target, None)
                case ast.FunctionDef() | ast.ClassDef():
                    yield node.name, None
                case ast.Import() | ast.ImportFrom():
                    yield from ((alias.asname or alias.name.split(".")[0], None) for alias in node.names)
            if not isinstance(node, SCOPES):
                waiting += list(ast.iter_child_nodes(node))

    def _bound(self, target: ast.expr, value: ast.expr | None) -> Iterator[Binding]:
        match target:
            case ast.Name():
                yield target.id, value
            case ast.Tuple() | ast.List():
                parts = value.elts if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts) else None
                for number, part in enumerate(target.elts):
                    # Of a shape each part is a number.
                    yield from self._bound(part, parts[number] if parts else value if self._sizes(value) else None)
            case ast.Starred():
                yield from self._bound(target.value, ast.List([], ast.Load()))  # always a new list


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


def _returned(body: Iterable[ast.AST]) -> Iterator[ast.expr | None]:
    waiting = list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Return):
            yield node.value
        elif not isinstance(node, SCOPES):
            waiting += list(ast.iter_child_nodes(node))


def _one_place(place: ast.expr) -> bool:
    """Whether this is a number that is written out: another index may be a slice, in whose place a list's contents are put."""
    return isinstance(place, ast.Constant) or (isinstance(place, ast.UnaryOp) and isinstance(place.operand, ast.Constant))


def _named(value: ast.expr, names: frozenset[str]) -> bool:
    return isinstance(value, ast.Name) and value.id in names


def _plain_number(value: ast.expr) -> bool:
    """One that is written out: with a list beside it, max() raises."""
    return isinstance(value, ast.Constant) and isinstance(value.value, int | float)


def _writes_to(call: ast.Call) -> bool:
    return any(keyword.arg in ("out", None) for keyword in call.keywords)
