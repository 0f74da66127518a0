"""Whether what forward returns was given to a kernel that is launched: followed through names, views and helpers.

What cannot be followed is left to the run with the kernels knocked out.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterable, Iterator

from windtunnel.verify.kernel.text.names import Names, bound_names, read_names
from windtunnel.verify.kernel.text.problem import Problem, problem
from windtunnel.verify.kernel.text.rules import words

PASSES = 4  # helpers of helpers
FRESH = words("shape dtype device size numel dim ndim stride element_size is_contiguous")  # no tensor comes out


def check_flow(tree: ast.Module) -> Problem | None:
    """never-launched or output-not-from-kernel, or None."""
    flow = _Flow(read_names(tree))
    flow.settle()
    forward = flow.names.functions["ModelNew.forward"]
    if not flow.reaches_launch("ModelNew.forward", set()):
        return problem("never-launched", forward, forward.name)
    for node in _own(forward):
        if isinstance(node, ast.Return) and node.value is not None:
            for part in node.value.elts if isinstance(node.value, ast.Tuple | ast.List) else [node.value]:
                if flow.returned(part, forward) is False:
                    return problem("output-not-from-kernel", node, ast.unparse(part))
    return None


class _Flow:
    """For each host function: which local names are given to a kernel, and whether what it returns was."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.given: dict[str, set[str]] = {key: set() for key in names.functions}
        self.local = {key: set(bound_names(node)) for key, node in names.functions.items()}
        self.aliases = {key: _aliases(node, names.imports) for key, node in names.functions.items()}
        self.methods: dict[str, str] = {}  # name → the first class's method of that name
        for key in names.functions:
            if "." in key:
                self.methods.setdefault(key.rpartition(".")[2], key)

    def settle(self) -> None:
        for _ in range(PASSES):
            for key, node in self.names.functions.items():
                self._pass(key, node)

    def _pass(self, key: str, function: ast.FunctionDef) -> None:
        given = self.given[key]
        for node in ast.walk(function):
            if not isinstance(node, ast.Call):
                continue
            if _launches(node, function) or self._through_a_value(node, key):
                for argument in _arguments(node):
                    given |= set(_roots(argument))
            elif (callee := self._callee(node)) is not None:
                given |= set(self._given_through(node, callee))
        for _ in range(PASSES):
            for group in self.aliases[key]:
                if not given.isdisjoint(group):
                    given |= group

    def _given_through(self, call: ast.Call, callee: str) -> Iterator[str]:
        """Names of the caller whose tensors the helper passes on to a kernel."""
        parameters = [argument.arg for argument in self.names.functions[callee].args.args]
        if "." in callee and parameters and parameters[0] == "self":
            parameters = parameters[1:]
        pairs = [*zip(parameters, call.args, strict=False), *((k.arg, k.value) for k in call.keywords)]
        for name, argument in pairs:
            if name in self.given[callee]:
                yield from _roots(argument)

    def _callee(self, call: ast.Call) -> str | None:
        match call.func:
            case ast.Name(id=name) if name in self.names.functions:
                return name
            case ast.Attribute(attr=name):
                return self.methods.get(name)
        return None

    def reaches_launch(self, key: str, seen: set[str]) -> bool:
        if key in seen:
            return False
        seen.add(key)
        for node in ast.walk(self.names.functions[key]):
            if isinstance(node, ast.Call):
                if _launches(node, self.names.functions[key]):
                    return True
                callee = self._callee(node)
                if callee is not None and self.reaches_launch(callee, seen):
                    return True
                # Called through a value: a class with __post_init__, a partial, a dictionary of functions.
                if isinstance(node.func, ast.Name) and (node.func.id in self.names.callables):
                    return True
                if self._through_a_value(node, key):
                    return True
        return False

    def _through_a_value(self, call: ast.Call, key: str) -> bool:
        """Whether something is called that this analysis cannot follow, by a local name, as functools.partial or as self.norm(x).
        It may launch with what it is given: only the run tells."""
        if self.names.dotted(call.func) == "functools.partial":
            return True
        if _on_self(call.func) and self._callee(call) is None:
            return True
        return isinstance(call.func, ast.Name) and call.func.id in self.local[key] and call.func.id not in self.names.functions

    def returned(self, node: ast.expr, function: ast.FunctionDef) -> bool | None:
        """True: given to a kernel. False: certainly not. None: cannot be told."""
        key = "ModelNew.forward"
        match node:
            case ast.IfExp():
                parts = [self.returned(node.body, function), self.returned(node.orelse, function)]
                return False if False in parts else None if None in parts else True
            case ast.Call():
                callee = self._callee(node)
                if callee is not None or _on_self(node.func):
                    return None
                if isinstance(node.func, ast.Attribute):
                    return self.returned(node.func.value, function)
                return None
            case ast.Subscript() | ast.Attribute():
                root = next(iter(_roots(node)), "")
                return None if root in ("self", "") else root in self.given[key] or None
            case ast.Name(id=name):
                if name in self.given[key]:
                    return True
                return None if self._comes_from_helper(name, function) else False
            case ast.Constant() | ast.BinOp() | ast.UnaryOp():
                return False
        return None

    def _comes_from_helper(self, name: str, function: ast.FunctionDef) -> bool:
        """Whether it is assigned from something that this analysis does not follow."""
        for node in ast.walk(function):
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr | ast.For | ast.AugAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if any(name in set(_stored(target)) for target in targets):
                    value = node.iter if isinstance(node, ast.For) else node.value
                    if value is not None and any(self._opaque(inner) for inner in ast.walk(value)):
                        return True
        return False

    def _opaque(self, node: ast.AST) -> bool:
        if not isinstance(node, ast.Call):
            return isinstance(node, ast.List | ast.Tuple | ast.ListComp | ast.Dict)
        if self._callee(node) is not None or isinstance(node.func, ast.Subscript) or _on_self(node.func):
            return True
        return isinstance(node.func, ast.Name) and node.func.id in self.names.callables


def _on_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _launches(call: ast.Call, function: ast.FunctionDef) -> bool:
    """kernel[grid](...), or launch(...) after launch = kernel[grid]."""
    if isinstance(call.func, ast.Subscript):
        return True
    if not isinstance(call.func, ast.Name):
        return False
    found = vars(function).get("launchers")  # looked for once: a function may have thousands of calls
    if found is None:
        assigned = (node for node in ast.walk(function) if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript))
        found = {target.id for node in assigned for target in node.targets if isinstance(target, ast.Name)}
        vars(function)["launchers"] = found
    return call.func.id in found


def _own(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions inside it."""
    stack: list[ast.AST] = list(function.body)
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.Lambda):
            stack += ast.iter_child_nodes(node)


def _aliases(function: ast.FunctionDef, imports: Container[str]) -> list[set[str]]:
    """Names that may share a tensor: b = a.view(...), b = a, b = a if c else d, for b, d in ((a, c), ...).

    imports: names that are no tensors. Groups, not pairs: a loop may bind hundreds of names to one of hundreds.
    """
    groups: list[set[str]] = []

    def add(bound: Iterable[str], value: ast.expr) -> None:
        left, right = set(bound), {root for root in _roots(value) if root not in imports}
        if left and right:
            groups.append(left | right)

    for node in ast.walk(function):
        if isinstance(node, ast.For | ast.comprehension):
            add(_stored(node.target), node.iter)
        elif isinstance(node, ast.NamedExpr):
            add([node.target.id], node.value)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            add([node.targets[0].id], node.value)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
            for left, right in zip(node.targets[0].elts, node.value.elts, strict=False):
                if isinstance(left, ast.Name):
                    add([left.id], right)
    return groups


def _roots(node: ast.expr) -> Iterator[str]:
    """Names whose tensor an expression may be (a view of): out.view(-1), out[0], (a, b), a if c else b."""
    match node:
        case ast.Name(id=name):
            yield name
        case ast.Attribute(attr=name) | ast.Call(func=ast.Attribute(attr=name)) if name in FRESH or name.startswith("new_"):
            pass
        case ast.Attribute(value=value) | ast.Subscript(value=value) | ast.Starred(value=value):
            yield from _roots(value)
        case ast.Call(func=ast.Attribute(value=value)):
            yield from _roots(value)
        case ast.Call(func=ast.Name(), args=parts):  # a helper may pass on what it is given
            for part in parts:
                yield from _roots(part)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            for part in parts:
                yield from _roots(part)
        case ast.IfExp(body=body, orelse=orelse):
            yield from _roots(body)
            yield from _roots(orelse)
        case ast.NamedExpr(target=target, value=value):
            yield from _roots(target)
            yield from _roots(value)
        case ast.Dict(values=values):
            for value in values:
                yield from _roots(value)


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _stored(node: ast.expr) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            yield inner.id
