"""Where a tensor's device may stand: host code hands it on to what allocates. Its text, its number and what it equals tell the
interpreter's CPU from a GPU, and a candidate that knows could do something else there."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator

from windtunnel.verify.kernel.text import rules
from windtunnel.verify.kernel.text.names import Names, arguments, first_argument, host_methods

PASSES = 4  # names of names, helpers of helpers
TAKES = rules.TENSOR_METHODS | rules.CONSTRUCTION_METHODS  # methods that may be given one


def telling_devices(tree: ast.Module, names: Names, asking: Container[int]) -> list[ast.expr]:
    """Devices that stand elsewhere than in a call that is given them. asking: nodes that only an assert looks at."""
    return _Devices(tree, names, asking).found()


class _Devices:
    """holds: of each function and method the names that hold a device there, or a dictionary with one."""

    def __init__(self, tree: ast.Module, names: Names, asking: Container[int]) -> None:
        self.tree, self.names, self.asking = tree, names, asking
        self.methods = host_methods(names)
        self.units: dict[str, ast.AST] = {**names.functions, **{f" {n}": node for n, node in enumerate(self._outside())}}
        self.holds: dict[str, set[str]] = {key: set() for key in self.units}

    def _outside(self) -> Iterator[ast.AST]:
        """What stands in no function: lambdas of the module's and in decorators."""
        for statement in self.tree.body:
            for node in statement.body if isinstance(statement, ast.ClassDef) else [statement]:
                if isinstance(node, ast.FunctionDef):
                    yield from node.decorator_list
                elif not isinstance(node, ast.ClassDef):
                    yield node

    def found(self) -> list[ast.expr]:
        for _ in range(PASSES):
            for key, unit in self.units.items():
                self._spread(key, unit)
        raised = {id(inner) for node in ast.walk(self.tree) for said in _said_at_the_end(node) for inner in ast.walk(said)}
        wrong: list[ast.expr] = []
        for key, unit in self.units.items():
            fine = self._fine_places(unit) | raised
            body = unit.body if isinstance(unit, ast.FunctionDef) else [unit]
            for node in (inner for part in body for inner in ast.walk(part)):
                if self._device(node, key) and id(node) not in fine and id(node) not in self.asking:
                    wrong.append(node)  # type: ignore[arg-type]
        return wrong

    def _device(self, node: ast.AST | None, key: str) -> bool:
        """Whether this is a device, or a dictionary with one."""
        match node:
            case ast.Attribute(attr="device", ctx=ast.Load()):
                return self.names.dotted(node) is None
            case ast.Attribute(attr="index", value=value):
                return self._device(value, key)
            case ast.Name(id=name, ctx=ast.Load()):
                return name in self.holds[key]
            case ast.Dict(values=values):
                return any(self._device(value, key) for value in values)
            case ast.Call(func=ast.Name(id="dict"), keywords=named):
                return any(self._device(keyword.value, key) for keyword in named)
        return False

    def _spread(self, key: str, unit: ast.AST) -> None:
        """What is assigned a device, and parameters of the candidate's own functions that are given one."""
        for node in ast.walk(unit):
            for target, value in _assigned(node):
                if isinstance(target, ast.Name) and self._device(value, key):
                    self.holds[key].add(target.id)
            if isinstance(node, ast.Call):
                for callee in self._callees(node.func):
                    self.holds[callee] |= set(self._given(node, callee, key))

    def _callees(self, called: ast.expr) -> list[str]:
        match called:
            case ast.Name(id=name) if name in self.names.functions:
                return [name]
            case ast.Name(id=name) if f"{name}.__init__" in self.names.functions:
                return [f"{name}.__init__"]
            case ast.Attribute(attr=name):
                return [key for key in self.names.functions if key.endswith(f".{name}")]
        return []

    def _given(self, call: ast.Call, callee: str, key: str) -> Iterator[str]:
        function = self.names.functions[callee]
        by_place = [part.arg for part in (*function.args.posonlyargs, *function.args.args)]
        by_place = by_place[1:] if "." in callee and first_argument(function) else by_place
        rest = [part.arg for part in (function.args.vararg,) if part is not None] * len(call.args)
        for name, value in zip([*by_place, *rest], call.args, strict=False):
            if self._device(value, key):
                yield name
        known = {part.arg for part in arguments(function)}
        for keyword in call.keywords:
            if self._device(keyword.value, key):
                more = function.args.kwarg.arg if function.args.kwarg else ""
                yield keyword.arg if keyword.arg in known and keyword.arg else more

    def _fine_places(self, unit: ast.AST) -> set[int]:
        fine: set[int] = set()
        for node in ast.walk(unit):
            match node:
                case ast.Call():
                    if self._takes(node.func):
                        some = [part.value if isinstance(part, ast.Starred) else part for part in node.args]
                        some += [keyword.value for keyword in node.keywords]
                        asks = (self.names.dotted(node.func) or "").startswith("torch.cuda.")
                        fine |= {id(part) for part in some if asks or not _is_index(part)}
                        fine |= {id(part.value) for part in some if asks and isinstance(part, ast.Attribute)}
                case ast.Dict():
                    pairs = zip(node.keys, node.values, strict=True)
                    fine |= {id(value) for said, value in pairs if isinstance(said, ast.Constant) and said.value == "device"}
                    fine |= {id(value) for said, value in zip(node.keys, node.values, strict=True) if said is None}
                case ast.Attribute(attr="type" | "device", value=value):  # of a device's type another rule speaks
                    fine.add(id(value))
                case ast.Return(value=value) if isinstance(unit, ast.FunctionDef) and unit.name == "device":
                    fine.add(id(value))
            for target, value in _assigned(node):
                held = isinstance(target, ast.Attribute) and target.attr == "device"
                fine |= {id(value)} if (isinstance(target, ast.Name) or held) and not _is_index(value) else set()
        return fine

    def _takes(self, called: ast.expr) -> bool:
        """Whether what is called may be given a device."""
        if self.names.dotted(called) is not None:
            return True
        match called:
            case ast.Name(id=name):
                return name == "dict" or name in self.names.functions or name in self.names.classes
            case ast.Attribute(attr=name):
                return name in self.methods or name in TAKES or name == "__init__"
        return False


def _said_at_the_end(node: ast.AST) -> list[ast.AST]:
    """What is evaluated only where the call fails: what is raised, and an assert's words."""
    return [node] if isinstance(node, ast.Raise) else [node.msg] if isinstance(node, ast.Assert) and node.msg else []


def _is_index(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "index"


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """(target, value) of assignments, one by one where both are written out."""
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        yield node.target, node.value
    for target in node.targets if isinstance(node, ast.Assign) else []:
        both = isinstance(target, ast.Tuple | ast.List) and isinstance(node.value, ast.Tuple | ast.List)  # type: ignore[attr-defined]
        if both and len(target.elts) == len(node.value.elts):  # type: ignore[attr-defined]
            yield from zip(target.elts, node.value.elts, strict=True)  # type: ignore[attr-defined]
        else:
            yield target, node.value  # type: ignore[attr-defined]
