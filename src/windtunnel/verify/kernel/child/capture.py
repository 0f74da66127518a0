"""Kernels of a candidate as plain data: each function's text, and what its global names mean. Imports triton.

What stands in a kernel's text for something else than Triton's language (a class of settings, a module of the candidate's) is
replaced by what it is, so that the judge needs nothing of the candidate's module.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import math
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch
import triton.language as tl
from triton.runtime.autotuner import Autotuner, Heuristics
from triton.runtime.jit import ConstexprFunction, JITFunction

from windtunnel.verify.kernel.plan.language import BUILTINS, MODULES, in_language

NOT_KERNELS = "it may use triton.language, other @triton.jit functions, and constants"


class NotRecorded(Exception):
    """Something that a launch plan has no words for. reason: the slug of the refusal."""

    def __init__(self, message: str, reason: str = "kernel-call") -> None:
        super().__init__(message)
        self.reason = reason


def language_names() -> dict[int, str]:
    """Return the id of what Triton's language holds → its dotted name."""
    found: dict[int, str] = {}
    for module, names in MODULES.items():
        try:
            held = importlib.import_module(module)
        except ImportError:
            continue
        found[id(held)] = module
        for name in sorted(names):
            value = getattr(held, name, None)
            if value is not None and not isinstance(value, bool | int | float | str):
                found.setdefault(id(value), f"{module}.{name}")
    return found


class Kernels:
    """All kernels that were met, by number."""

    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []
        self.functions: list[JITFunction | ConstexprFunction] = []
        self.language = language_names()

    def number(self, function: Any) -> int:
        """Return the number of a kernel, which is taken up if it is new, with those that it calls."""
        function = inner_function(function)
        for number, known in enumerate(self.functions):
            if known is function or (isinstance(known, ConstexprFunction) and known.fn is function.fn):
                return number
        # Its number first, then its text: a kernel that calls itself names it.
        number = len(self.functions)
        self.functions.append(function)
        self.made.append({})
        self.made[number] = self._taken(function)
        return number

    def _taken(self, function: JITFunction | ConstexprFunction) -> dict[str, Any]:
        try:
            defined = ast.parse(function.src).body[0]
        except (SyntaxError, IndexError) as error:
            raise NotRecorded(f"the text of kernel {function.__name__} cannot be read: {error}") from None
        if not isinstance(defined, ast.FunctionDef):
            raise NotRecorded(f"the text of kernel {function.__name__} is no function")
        defined.decorator_list, defined.returns = [], None
        # What is given at definition, not at a call, is a constant or a name.
        for argument in (*defined.args.args, *defined.args.kwonlyargs):
            argument.annotation = None
        names: dict[str, Any] = {}
        scope = {**vars(builtins), **function.get_capture_scope()}
        _Resolved(self, function.__name__, scope, names, defined).visit(defined)
        text = ast.unparse(ast.fix_missing_locations(defined))
        if isinstance(function, ConstexprFunction):
            return {"name": function.__name__, "source": text, "names": names, "computed": True}
        return {
            "name": function.__name__,
            "source": text,
            "constexprs": [p.name for p in function.params if p.is_constexpr],
            "types": {p.name: p.annotation for p in function.params if not p.is_constexpr and p.annotation_type},
            "names": names,
            "do_not_specialize": [p.name for p in function.params if p.do_not_specialize],
            "aligned_or_not": [p.name for p in function.params if p.do_not_specialize_on_alignment],
            "noinline": bool(function.noinline),
        }

    def meaning(self, value: Any, what: str) -> dict[str, Any]:
        """Return what a global name means, for a plan."""
        if id(value) in self.language and not isinstance(value, bool | int | float | str):
            return {"language": self.language[id(value)]}
        if isinstance(value, JITFunction | Autotuner | Heuristics | ConstexprFunction):
            return {"kernel": self.number(value)}
        if isinstance(value, tl.constexpr):
            if isinstance(value.value, JITFunction):
                return {"kernel": self.number(value.value)}
            if isinstance(value.value, FunctionType):
                return {"kernel": self.number(ConstexprFunction(value.value))}
            return {"constant": self.plain(value.value, what), "constexpr": True}
        return {"constant": self.plain(value, what), "constexpr": False}

    def plain(self, value: Any, what: str) -> Any:
        """Return a constant or argument that is no tensor, for a plan."""
        if isinstance(value, tl.constexpr):
            value = value.value
        # bool before int, which it is too.
        if value is None or isinstance(value, bool | str):
            return value if not isinstance(value, str) else str(value)
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {"float": {math.inf: "inf", -math.inf: "-inf"}.get(value, "nan")}
        if isinstance(value, torch.dtype):
            return {"dtype": f"torch_{str(value).removeprefix('torch.')}"}
        if isinstance(value, tl.dtype):
            return {"dtype": str(value.name)}
        if isinstance(value, JITFunction | Autotuner | Heuristics):
            return {"kernel": self.number(value)}
        if isinstance(value, tuple | list | tl.tuple):
            kind = "list" if isinstance(value, list) else "tuple"
            return {kind: [self.plain(inner, what) for inner in value]}
        # Numbers of numpy's and the candidate's own.
        for convert in ("__index__", "__float__"):
            if hasattr(type(value), convert) and not isinstance(value, torch.Tensor):
                return self.plain({"__index__": int, "__float__": float}[convert](value), what)
        raise NotRecorded(f"{what} is {type(value).__name__}: {NOT_KERNELS}")


def inner_function(function: Any) -> JITFunction | ConstexprFunction:
    """Return the kernel inside tuners and heuristics."""
    while isinstance(function, Autotuner | Heuristics):
        function = function.fn
    if not isinstance(function, JITFunction | ConstexprFunction):
        raise NotRecorded(f"{type(function).__name__} is no kernel")
    return function


class _Resolved(ast.NodeTransformer):
    """Finds what each global name in a kernel's text means."""

    def __init__(
        self, kernels: Kernels, kernel: str, scope: dict[str, Any], names: dict[str, Any], defined: ast.FunctionDef
    ) -> None:
        self.kernels, self.kernel, self.scope, self.names = kernels, kernel, scope, names
        self.local = {a.arg for a in defined.args.args}
        self.local |= {n.id for n in ast.walk(defined) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self._resolved(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        return self._resolved(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """Leave the rest: of what a variable is said to be only tl.constexpr means anything."""
        if "constexpr" in ast.unparse(node.annotation) or node.value is None:
            return self.generic_visit(node)
        return self.generic_visit(ast.copy_location(ast.Assign([node.target], node.value), node))

    def _resolved(self, node: ast.expr) -> ast.AST:
        path, root = [], node
        while isinstance(root, ast.Attribute):
            path.append(root.attr)
            root = root.value
        if not isinstance(root, ast.Name) or not isinstance(root.ctx, ast.Load):
            return self.generic_visit(node)
        if root.id in self.local or (root.id in BUILTINS and self.scope.get(root.id) is getattr(builtins, root.id)):
            return node
        if root.id not in self.scope:
            return node  # the judge refuses it where it stands
        value, names = self.scope[root.id], list(reversed(path))
        known = self.kernels.language.get(id(value))
        meaning = {"language": known}
        if names and known and in_language(".".join([known, *names])) and self.names.setdefault(root.id, meaning) == meaning:
            return node  # tl.load stays what it is
        place = root.id
        while names and isinstance(value, ModuleType | type | SimpleNamespace) | (
            id(value) not in self.kernels.language and not isinstance(value, tl.constexpr | tl.dtype) and _holds(value, names[0])
        ):
            if not hasattr(value, names[0]):
                raise NotRecorded(f"kernel {self.kernel} names {place}.{names[0]}, which is not there")
            value = getattr(value, names[0])
            place += f".{names.pop(0)}"
        name = self._named(place, value)
        made: ast.expr = ast.copy_location(ast.Name(name, ast.Load()), node)
        for attribute in names:
            made = ast.copy_location(ast.Attribute(made, attribute, ast.Load()), node)
        return made

    def _named(self, place: str, value: Any) -> str:
        meaning = self.kernels.meaning(value, f"{place} in kernel {self.kernel}")
        name = place.replace(".", "_")
        # Two modules may hold different things by one name, which are one name here.
        while name in self.local or self.names.get(name, meaning) != meaning or name.startswith("__"):
            name = f"of_{name}"
        self.names[name] = meaning
        return name


def _holds(value: Any, name: str) -> bool:
    """Return whether an object of the candidate's holds this as one of its own."""
    return type(value).__module__ not in ("builtins", "torch") and name in getattr(value, "__dict__", {})
