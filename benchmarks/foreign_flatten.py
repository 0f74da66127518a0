"""Makes one file of what a function of a package needs, so that a kernel of a library can be judged by itself.

Definitions are taken as they stand, with what they name, from the function's own module and those of the package that it imports
from. Nothing is edited but imports of the package, which the definitions replace, and what `Replaced` names.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


class NotFlat(Exception):
    """The function needs what cannot be put into one file by this rule."""


@dataclass(frozen=True)
class Replaced:
    """What stands in for a package's machinery. names: text by name, wherever it is imported from. edit: of a module's tree
    before it is looked at."""

    names: Mapping[str, str] = field(default_factory=dict)
    edit: Callable[[ast.Module], ast.Module] = lambda tree: tree


@dataclass
class _Module:
    """One file: what binds each of its names, and the statements in their order."""

    package: str
    body: list[ast.stmt]
    binds: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for number, node in enumerate(self.body):
            for name in _bound(node):
                before = self.binds.get(name, []) if name in _used(node) else []  # f = jit(f) needs the f that stands before
                self.binds[name] = [*before, number]


def flattened(read: Callable[[str], str | None], module: str, names: Sequence[str], replaced: Replaced | None = None) -> str:
    """Return the text of one file that defines these names of a module ('package.part'). read: text of a module, None where the
    package has none of that name."""
    work = _Work(read, replaced or Replaced())
    for name in names:
        work.need(module, name)
    return work.text()


class _Work:
    """What is needed so far."""

    def __init__(self, read: Callable[[str], str | None], replaced: Replaced) -> None:
        self.read, self.replaced = read, replaced
        self.modules: dict[str, _Module | None] = {}
        self.done: set[tuple[str, str]] = set()
        self.owner: dict[str, str] = {}
        self.out: list[str] = []
        self.written: set[tuple[str, int]] = set()
        self.kept: set[str] = set()

    def module(self, dotted: str) -> _Module | None:
        if dotted not in self.modules:
            text = self.read(dotted)
            made = None
            if text is not None:
                tree = self.replaced.edit(ast.parse(text))
                package = dotted if self.read(f"{dotted}.__init__") is not None else dotted.rpartition(".")[0]
                made = _Module(package, tree.body)
            self.modules[dotted] = made
        return self.modules[dotted]

    def need(self, dotted: str, name: str) -> None:
        """Write what binds a name of a module, after what that names itself."""
        if (dotted, name) in self.done:
            return
        self.done.add((dotted, name))
        if name in self.replaced.names:
            if name not in self.kept:
                self.kept.add(name)
                self.out.append(self.replaced.names[name])
            return
        module = self.module(dotted)
        if module is None or name not in module.binds:
            return  # of Python's own
        for number in module.binds[name]:
            self._bind(dotted, module, name, number)

    def _bind(self, dotted: str, module: _Module, name: str, number: int) -> None:
        """Write one of the statements that bind a name of a module."""
        node = module.body[number]
        if isinstance(node, ast.ImportFrom) and (inner := self._inner(module, node)) is not None:
            original = next(alias.name for alias in node.names if (alias.asname or alias.name) == name)
            if self.module(inner) is None or (original not in self.module(inner).binds and original not in self.replaced.names):
                raise NotFlat(f"{name} of {inner} is a module, or not there")
            self.need(inner, original)
            if original != name:
                self.out.append(f"{name} = {original}")
            return
        if name not in _imported(node) and self.owner.setdefault(name, dotted) != dotted:
            raise NotFlat(f"{name} is defined twice: {dotted}, {self.owner[name]}")
        if (dotted, number) in self.written:
            return
        self.written.add((dotted, number))
        for used in _used(node):
            self.need(dotted, used)
        if isinstance(node, ast.Import) and any(self.read(alias.name) is not None for alias in node.names):
            raise NotFlat(f"imports {ast.unparse(node)}")
        self.out.append(ast.unparse(_without_imports(node, lambda one: self._inner(module, one) is not None)))

    def _inner(self, module: _Module, node: ast.ImportFrom) -> str | None:
        """The module of the package that a statement imports from, or None."""
        if node.level:
            base = module.package.split(".")
            base = base[: len(base) - node.level + 1]
            return ".".join([*base, *([node.module] if node.module else [])])
        return node.module if node.module and self.read(node.module) is not None else None

    def text(self) -> str:
        """Everything, each import once."""
        lines: list[str] = []
        for part in self.out:
            if part not in lines:
                lines.append(part)
        future = [line for line in lines if line.startswith("from __future__")]
        return "\n\n".join([*future, *(line for line in lines if line not in future)]) + "\n"


def _bound(node: ast.stmt) -> list[str]:
    """The names that a statement at module level binds."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
    found: list[str] = []
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            found.append(inner.id)
        if isinstance(inner, ast.FunctionDef | ast.ClassDef):
            found.append(inner.name)
        if isinstance(inner, ast.Import | ast.ImportFrom) and inner is not node:
            found += _bound(inner)
    return found


def _imported(node: ast.stmt) -> set[str]:
    """Those that it binds by importing them, also where it first looks whether it can."""
    imports = [inner for inner in ast.walk(node) if isinstance(inner, ast.Import | ast.ImportFrom)]
    return {name for inner in imports for name in _bound(inner)}


def _used(node: ast.stmt) -> list[str]:
    """The names that a statement reads, in their order."""
    found = [inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)]
    return list(dict.fromkeys(found))


def _without_imports(node: ast.stmt, inner: Callable[[ast.ImportFrom], bool]) -> ast.stmt:
    """The statement without imports of the package inside of it."""
    for part in ast.walk(node):
        for held in ("body", "orelse", "finalbody"):
            body = getattr(part, held, None)
            if isinstance(body, list) and any(isinstance(one, ast.ImportFrom) and inner(one) for one in body):
                kept = [one for one in body if not (isinstance(one, ast.ImportFrom) and inner(one))]
                setattr(part, held, kept or [ast.Pass()])
    return node
