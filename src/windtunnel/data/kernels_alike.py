"""Tell whether two kernel tasks are the same: by operators and shapes, or as near copies, whatever their variables are called.

Only the text of a reference in PyTorch is read; nothing is run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from windtunnel.literals import assigned, number_of, numbers

from .near_copies import jaccard

SIMILAR = 0.9  # of the statements' words: higher than for prose, since much of a module is the same in every other

NEEDED = ("Model", "get_inputs", "get_init_inputs")
MODULES = ("torch", "nn", "F", "math", "functional", "np", "numpy")
# Different names of one operator.
_SAME = {
    "mm": "matmul", "bmm": "matmul", "mv": "matmul", "linear": "matmul", "baddbmm": "matmul", "batchnorm1d": "batchnorm",
    "batchnorm2d": "batchnorm", "batchnorm3d": "batchnorm", "instancenorm2d": "instancenorm", "instancenorm3d": "instancenorm",
    "multiply": "mul", "subtract": "sub", "divide": "div", "truediv": "div", "floordivide": "floordiv", "pow": "power",
    "max": "amax", "min": "amin", "swish": "silu", "clip": "clamp", "hardtanh": "clamp", "absolute": "abs",
}  # fmt: skip
_ARITHMETIC = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.MatMult: "matmul", ast.Pow: "power",
    ast.FloorDiv: "floordiv", ast.Mod: "mod",
}  # fmt: skip
# What moves data or makes tensors, and computes nothing.
_PLUMBING = frozenset({
    "super", "module", "modulelist", "sequential", "parameter", "registerbuffer", "view", "reshape", "permute", "transpose",
    "contiguous", "size", "shape", "dim", "numel", "unsqueeze", "squeeze", "flatten", "expand", "to", "type", "float", "half",
    "double", "cuda", "cpu", "detach", "clone", "chunk", "split", "stack", "cat", "empty", "zeros", "ones", "full", "zeroslike",
    "oneslike", "emptylike", "randn", "rand", "randint", "arange", "tensor", "device", "len", "range", "int", "list", "tuple",
    "append", "item", "init", "t", "identity", "expandas", "repeat", "unbind", "extend", "manualseed", "eval", "train",
    "isinstance", "str", "print", "sqrtint", "format", "constant", "constantpad1d", "xavieruniform", "kaimingnormal",
    "zerosint", "normal", "uniform", "state", "dict", "numelint",
})  # fmt: skip
_BIASED = ("linear", "conv1d", "conv2d", "conv3d", "convtranspose1d", "convtranspose2d", "convtranspose3d")


class NoTask(ValueError):
    """A text that is no task in KernelBench's form; the message says why."""


@dataclass(frozen=True)
class Profile:
    """What two tasks are compared by: operators first, and the rest, which takes longer to read, only where these are the same.

    Attributes:
        where: the file, or a task's name.
        operators: names, sorted, each as often as it stands there.
        source: its text.
    """

    where: str
    operators: tuple[str, ...]
    source: str = field(repr=False)

    @cached_property
    def shapes(self) -> str:
        """Return what inputs and the constructor's arguments are made of, with numbers in the place of names."""
        known, functions = numbers(self.source), self._functions
        return " ".join(_given(functions[name], known) for name in ("get_inputs", "get_init_inputs"))

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """Return what texts the constructor is given, such as a model's name."""
        return _texts(ast.parse(self.source), self._functions["get_init_inputs"])

    @cached_property
    def text(self) -> str:
        """Return the statements of every class's methods with one name for everything that the author named."""
        return _renamed([node for node in ast.parse(self.source).body if isinstance(node, ast.ClassDef)])

    @property
    def _functions(self) -> dict[str, ast.FunctionDef]:
        return {node.name: node for node in ast.parse(self.source).body if isinstance(node, ast.FunctionDef)}

    @property
    def combination(self) -> str:
        """Return the operators as a text."""
        return "+".join(self.operators)


def profile(source: str, where: str) -> Profile:
    """Read a task's text. Raises NoTask: it is not Python, or lacks what a task needs."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NoTask(f"not Python ({error})") from None
    defined = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    missing = [name for name in NEEDED if name not in defined]
    if missing:
        raise NoTask(f"defines no {', '.join(missing)}")
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    operators = sorted(name for one in classes for name in _operators(one))
    return Profile(where, tuple(operators), source)


@dataclass
class HeldOut:
    """Tasks that nothing trained on may be like."""

    profiles: Sequence[Profile]
    _by_operators: dict[tuple[str, ...], list[Profile]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for one in self.profiles:
            self._by_operators.setdefault(one.operators, []).append(one)

    def like(self, other: Profile) -> str | None:
        """Return which held-out task another is like, and how; None where it is like none."""
        for one in self._by_operators.get(other.operators, ()):
            # A model's name makes another network of the same code.
            if one.texts != other.texts:
                continue
            if one.shapes == other.shapes:
                return f"has the operators and shapes of {one.where}"
            similarity = jaccard(one.text, other.text)
            if similarity >= SIMILAR:
                return f"is a near copy of {one.where} (similarity {similarity:.2f})"
        return None


def _operators(one: ast.ClassDef) -> Iterator[str]:
    """Yield what a class computes: layers it makes, functions and methods it calls, arithmetic outside of `__init__`."""
    for method in one.body:
        if not isinstance(method, ast.FunctionDef):
            continue
        for node in ast.walk(method):
            if isinstance(node, ast.Call):
                yield from _called(node, building=method.name == "__init__")
            elif method.name != "__init__" and isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _ARITHMETIC:
                yield _ARITHMETIC[type(node.op)]


def _called(node: ast.Call, *, building: bool) -> Iterator[str]:
    if not isinstance(node.func, ast.Attribute):
        return
    root = _root(node.func)
    if root == "self" or (building and root not in MODULES):
        return
    name = node.func.attr.lower().replace("_", "")
    if name in _PLUMBING:
        return
    if name == "conv2d" and len(node.args) > 2 and isinstance(node.args[2], ast.Constant) and node.args[2].value == 1:
        name = "pointconv"  # a kernel of 1 x 1 is a product, which is another task to write a kernel for
    yield _SAME.get(name, name)
    layer = building and node.func.attr.lower() in _BIASED
    off = any(k.arg == "bias" and isinstance(k.value, ast.Constant) and k.value.value is False for k in node.keywords)
    if layer and not off:
        yield "add"  # layers with a bias add it, as a separate addition would


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _given(function: ast.FunctionDef, known: Mapping[str, Any]) -> str:
    """Return the numbers that a function's calls and lists hold, in their order."""
    found = []
    for node in ast.walk(function):
        entries = node.args if isinstance(node, ast.Call) else node.elts if isinstance(node, ast.List | ast.Tuple) else []
        values = [number_of(entry, known) for entry in entries]
        if any(value is not None for value in values):
            found.append(",".join("?" if value is None else f"{value:g}" for value in values))
    return f"[{';'.join(sorted(found))}]"


def _texts(tree: ast.Module, function: ast.FunctionDef) -> tuple[str, ...]:
    """Return the texts that a function names or holds, sorted."""
    known = {
        name: value.value
        for node in tree.body
        for name, value in assigned(node)
        if isinstance(value, ast.Constant) and isinstance(value.value, str)
    }
    held = [known.get(node.id) if isinstance(node, ast.Name) else getattr(node, "value", None) for node in ast.walk(function)]
    return tuple(sorted({text for text in held if isinstance(text, str)} - {ast.get_docstring(function, clean=False)}))


def _renamed(classes: Sequence[ast.ClassDef]) -> str:
    """Return the methods' statements as words, with one name for all that the author named: `h = x + 1` is `x = x + 1`."""

    class Rename(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            return ast.Name(node.id if node.id in (*MODULES, "self", "super") else "v", node.ctx)

        def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
            own = isinstance(node.value, ast.Name) and node.value.id == "self"
            self.generic_visit(node)
            return ast.Attribute(node.value, "held" if own else node.attr, node.ctx)

        def visit_arg(self, node: ast.arg) -> ast.AST:
            return ast.arg("v")

    lines = []
    for one in classes:
        for method in one.body:
            if not isinstance(method, ast.FunctionDef):
                continue
            body = [node for node in method.body if not _said(node)]
            lines += [ast.unparse(Rename().visit(node)) for node in body]
    text = " ".join(lines)
    for sign in "()[],.=:+-*/":
        text = text.replace(sign, f" {sign} ")
    return text


def _said(node: ast.stmt) -> bool:
    """Return whether a statement is a docstring or the call of super().__init__."""
    if not isinstance(node, ast.Expr):
        return False
    return isinstance(node.value, ast.Constant) or "super" in ast.unparse(node.value)
