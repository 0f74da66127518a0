"""What the names of a candidate's text stand for: imports, functions, kernels, classes, lambdas."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

Function = ast.FunctionDef | ast.Lambda


@dataclass
class Names:
    """Module-level view of a candidate.

    imports: local name → dotted origin ('tl' → 'triton.language'). kernels: functions decorated with triton.jit (or passed
    to it). functions: host functions by name, methods as 'Class.method'. callables: other names that hold something
    callable (lambdas, partials). level: every name bound at module level; assigned: those of them bound by other
    than a definition. bound: every name bound anywhere, rebound: those by other than an import.
    """

    imports: dict[str, str] = field(default_factory=dict)
    kernels: dict[str, ast.FunctionDef] = field(default_factory=dict)
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    callables: set[str] = field(default_factory=set)
    level: set[str] = field(default_factory=set)
    assigned: set[str] = field(default_factory=set)
    bound: set[str] = field(default_factory=set)
    rebound: set[str] = field(default_factory=set)

    def dotted(self, node: ast.expr) -> str | None:
        """'torch.nn.Linear' for nn.Linear under `import torch.nn as nn`; None where the root is no import."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.imports:
            return None
        return ".".join([self.imports[node.id], *reversed(parts)])


def read_names(tree: ast.Module) -> Names:
    """The names of a candidate."""
    names = Names()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                # `import torch.nn` binds torch.
                names.imports[alias.asname or alias.name.split(".")[0]] = alias.name if alias.asname else alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                names.imports[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for statement in tree.body:
        _read_statement(statement, names)
    for wrapped in jit_calls(tree, names).values():
        if wrapped in names.functions:
            names.kernels[wrapped] = names.functions.pop(wrapped)
    names.rebound = set(bound_names(tree))
    names.bound = names.rebound | names.imports.keys()
    return names


def _read_statement(node: ast.stmt, names: Names) -> None:
    if isinstance(node, ast.FunctionDef):
        names.level.add(node.name)
        (names.kernels if is_kernel(node, names) else names.functions)[node.name] = node
    elif isinstance(node, ast.ClassDef):
        names.level.add(node.name)
        names.classes[node.name] = node
        for part in node.body:
            if isinstance(part, ast.FunctionDef):
                if is_kernel(part, names):
                    names.kernels[part.name] = part
                else:
                    names.functions[f"{node.name}.{part.name}"] = part
    elif not isinstance(node, ast.Import | ast.ImportFrom):
        assigned = own_names([node], annotated=False)
        names.level |= assigned
        names.assigned |= assigned
        for inner in ast.walk(node):
            if isinstance(inner, ast.Assign) and isinstance(inner.value, ast.Lambda | ast.Call):
                names.callables |= {target.id for target in inner.targets if isinstance(target, ast.Name)}


def is_kernel(node: ast.FunctionDef, names: Names) -> bool:
    """Whether it is decorated with triton.jit, with or without arguments."""
    for decorator in node.decorator_list:
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        if names.dotted(target) == "triton.jit":
            return True
    return False


def jit_calls(tree: ast.Module, names: Names) -> dict[int, str]:
    """Functions that are passed to triton.jit as a call, kernel = triton.jit(_kernel), by the id of what is called. Only those
    whose name stands for nothing else anywhere: what is passed by another name would be a kernel that nobody has read."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and names.dotted(node.func) == "triton.jit"]
    times = Counter(bound_names(tree)) if calls else Counter[str]()
    found: dict[int, str] = {}
    for node in calls:
        match node.args:
            case [ast.Name(id=name)] if times[name] == 1 and (name in names.functions or name in names.kernels):
                found[id(node.func)] = name
    return found


def bound_names(node: ast.AST) -> Iterator[str]:
    """Every name that a piece of code binds: assignments, loops, arguments, walruses, nested functions."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store | ast.Del):
            yield inner.id
        elif isinstance(inner, ast.arg):
            yield inner.arg
        elif isinstance(inner, ast.FunctionDef | ast.ClassDef):
            yield inner.name


SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def own_names(body: Iterable[ast.AST], annotated: bool = True) -> set[str]:
    """Names that these statements bind in their own scope. In a name's stead a builtin must never be read.

    So arguments of lambdas, targets of comprehensions and what nested functions bind do not count; a walrus in a
    comprehension does. annotated: whether `x: int` alone binds x, as it does in a function, not in a module.
    """
    found: set[str] = set()
    for node in body:
        _bind(node, found, annotated, inside=False)
    return found


def _bind(node: ast.AST, found: set[str], annotated: bool, inside: bool) -> None:
    """inside: in a comprehension, whose targets are its own."""
    match node:
        case ast.Name(id=name):
            if not inside and isinstance(node.ctx, ast.Store | ast.Del):
                found.add(name)
            return
        case ast.NamedExpr(target=ast.Name(id=name)):
            found.add(name)
            _bind(node.value, found, annotated, inside)
            return
        case ast.Import() | ast.ImportFrom():
            found |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
            return
        case ast.AnnAssign(target=ast.Name(), value=None) if not annotated:
            _bind(node.annotation, found, annotated, inside)
            return
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            found.add(node.name)
    if isinstance(node, SCOPES):
        for part in around(node):
            _bind(part, found, annotated, inside)
        return
    for child in ast.iter_child_nodes(node):
        _bind(child, found, annotated, inside or isinstance(node, COMPREHENSIONS))


def around(node: ast.AST) -> Iterator[ast.expr]:
    """What of a function, lambda or class is evaluated in the scope around it: decorators, defaults, annotations, bases."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        yield from (part for part in [*node.args.defaults, *node.args.kw_defaults] if part is not None)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield from node.decorator_list
        yield from annotated_types(node)
    if isinstance(node, ast.ClassDef):
        yield from [*node.decorator_list, *node.bases, *(keyword.value for keyword in node.keywords)]


def arguments(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> list[ast.arg]:
    """All arguments of a function, in no order."""
    some = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return some + [part for part in (node.args.vararg, node.args.kwarg) if part is not None]


def first_argument(node: ast.FunctionDef) -> str:
    """What a method calls its object, `def f(this, /)` too; '' where it is given none."""
    by_place = [*node.args.posonlyargs, *node.args.args]
    return by_place[0].arg if by_place and not decorated(node, "staticmethod") else ""


def decorated(node: ast.FunctionDef, *names: str) -> bool:
    """Whether one of its decorators is one of these names."""
    return any(isinstance(part, ast.Name) and part.id in names for part in node.decorator_list)


def defaults(node: ast.AST) -> Iterator[tuple[ast.arg, ast.expr]]:
    """(argument, what it is where nothing is given) of a function."""
    if isinstance(node, ast.FunctionDef):
        by_place = [*node.args.posonlyargs, *node.args.args]
        yield from zip(reversed(by_place), reversed(node.args.defaults), strict=False)
        pairs = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        yield from ((argument, default) for argument, default in pairs if default is not None)


def annotated_types(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.expr]:
    """Those of the arguments and of what is returned: Python evaluates them where the function is defined."""
    return [part for part in (*(argument.annotation for argument in arguments(node)), node.returns) if part is not None]


def never_runs(node: ast.stmt) -> bool:
    """if __name__ == "__main__": a candidate is always imported."""
    return isinstance(node, ast.If) and not node.orelse and ast.unparse(node.test) in ("__name__ == '__main__'",)


def host_methods(names: Names) -> set[str]:
    """Names of methods that the candidate defines itself."""
    return {key.split(".")[1] for key in names.functions if "." in key}
