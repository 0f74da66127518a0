"""What may stand inside a @triton.jit function. Under the interpreter its body is ordinary Python, so it is checked too."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from windtunnel.verify.kernel.text import rules
from windtunnel.verify.kernel.text.names import Names, arguments, bound_names, own_names
from windtunnel.verify.kernel.text.problem import Problem, problem

STATEMENTS = (
    ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.While, ast.If, ast.Expr, ast.Return, ast.Pass, ast.Assert, ast.Break,
    ast.Continue,
)  # fmt: skip
# Methods and properties of values inside a kernel.
MEMBERS = rules.words(
    """
    to T shape dtype type element_ty value sum max min argmax argmin reshape trans broadcast_to expand_dims split view
    permute load store advance cast gather reduce numel exp log sqrt rsqrt abs sigmoid softmax cos sin cumsum cumprod
    flip item cdiv ravel logical_and logical_or join atomic_add scatter primitive_bitwidth is_floating is_int is_ptr
    is_fp16 is_bf16 is_fp32 xor_sum sort associative_scan histogram scalar is_fp8 floor ceil erf int_bitwidth
    fp_mantissa_width exp2 log2 sqrt_rn reduce_or atomic_and atomic_cas atomic_max atomic_min atomic_or atomic_xchg atomic_xor
    """
)


class KernelCheck:
    """Checks one kernel's arguments, statements, names and calls."""

    def __init__(self, kernel: ast.FunctionDef, names: Names, tf32: bool) -> None:
        self.kernel, self.names, self.tf32 = kernel, names, tf32
        self.local = set(bound_names(kernel))
        self.roots = {id(node.value) for node in ast.walk(kernel) if isinstance(node, ast.Attribute)}
        self.found: list[Problem] = []

    def problems(self) -> list[Problem]:
        """Everything in the kernel that is not allowed."""
        for part in self.kernel.body:
            for node in ast.walk(part):
                self._node(node)
        for name in self.local & (set(dir(builtins)) - own_names(self.kernel.body) - {a.arg for a in arguments(self.kernel)}):
            self._refuse("patches", self.kernel, f"{name} in a comprehension")  # elsewhere in the kernel it is the builtin
        return self.found

    def _refuse(self, reason: str, node: ast.AST, what: str = "") -> None:
        self.found.append(problem(reason, node, what or ast.unparse(node)))

    def _node(self, node: ast.AST) -> None:
        match node:
            case ast.stmt() if not isinstance(node, STATEMENTS):
                self._refuse("kernel-call", node, f"{type(node).__name__.lower()} inside the kernel {self.kernel.name}")
            case ast.Lambda() | ast.Await() | ast.Yield():
                self._refuse("kernel-call", node)
            case ast.Compare(left=left, ops=signs, comparators=others) if any(isinstance(s, ast.Is | ast.IsNot) for s in signs):
                if not any(isinstance(side, ast.Constant) and side.value is None for side in (left, *others)):
                    self._refuse("kernel-call", node)  # which numbers are the same object is the compiler's own affair
            case ast.Name():
                self._name(node)
            case ast.Attribute():
                self._attribute(node)
            case ast.Call():
                self._call(node)
            case ast.Assign() | ast.AugAssign() | ast.AnnAssign():
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    self._target(target)
            case ast.For() | ast.comprehension():
                self._target(node.target)

    def _target(self, target: ast.expr) -> None:
        for inner in ast.walk(target):
            if isinstance(inner, ast.Attribute | ast.Subscript):
                self._refuse("patches", target, f"{ast.unparse(target)} = ...")

    def _name(self, node: ast.Name) -> None:
        name = node.id
        if (
            isinstance(node.ctx, ast.Load)
            and name not in self.local
            and name not in self.names.level
            and not self._from_language(node)
        ):
            if name not in rules.KERNEL_BUILTINS:
                self._refuse("kernel-call", node)
        elif name in self.names.functions and name not in self.local:
            self._refuse("kernel-call", node, f"{name}, which is no @triton.jit function,")

    def _attribute(self, node: ast.Attribute) -> None:
        dotted = self.names.dotted(node)
        if dotted is not None:
            if id(node) not in self.roots and not _in_language(dotted):  # of a.b.c the whole counts
                self._refuse("kernel-call", node)
        elif node.attr.startswith("_") or node.attr not in MEMBERS:
            constant = isinstance(node.value, ast.Name) and node.value.id in self.names.classes
            if node.attr.startswith("_") or not constant:
                self._refuse("kernel-call", node)

    def _from_language(self, node: ast.Name) -> bool:
        """Whether it is imported from where kernels may; of modules as roots of attributes the whole attribute is looked at."""
        origin = self.names.imports.get(node.id)
        return origin is not None and (id(node) in self.roots or _in_language(origin))

    def _call(self, node: ast.Call) -> None:
        match node.func:
            case ast.Name(id=name):
                known = (
                    name in self.names.kernels
                    or name in rules.KERNEL_BUILTINS
                    or self._from_language(node.func)
                    or name in self.local
                )
                if not known and name not in self.names.callables:
                    self._refuse("kernel-call", node, f"{name}(...)")
                self._precision(node)
            case ast.Attribute():
                self._precision(node)
            case _:
                self._refuse("kernel-call", node)

    def _precision(self, node: ast.Call) -> None:
        """tl.dot rounds fp32 to TF32 unless told otherwise; some tasks forbid that."""
        if self.tf32 or self.names.dotted(node.func) != "triton.language.dot":
            return
        said = {keyword.arg: keyword.value for keyword in node.keywords}
        precision, allow = said.get("input_precision"), said.get("allow_tf32")
        exact = isinstance(precision, ast.Constant) and precision.value in ("ieee", "tf32x3")
        if not exact and not (isinstance(allow, ast.Constant) and allow.value is False):
            self._refuse("tf32", node)


def dots_by_another_name(tree: ast.AST, names: Names) -> Iterator[ast.expr]:
    """Where tl.dot is named and not called, as in d = tl.dot or kernel[grid](..., DOT=tl.dot): what is called by it later cannot
    be told from there."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute | ast.Name) or id(node) in called:
            continue
        if names.dotted(node) == "triton.language.dot":
            yield node


def _in_language(dotted: str) -> bool:
    """Whether a kernel may use it: triton.language and its libraries, arithmetic, two functions of triton's."""
    if dotted in ("triton.cdiv", "triton.next_power_of_2"):
        return True
    module, name = rules.split_dotted(dotted)
    if any(part in rules.KERNEL_BANNED or part.startswith("_") for part in dotted.split(".")[1:]):
        return False
    first, _, rest = name.partition(".")
    known = module == "math" or module.startswith("triton.language")
    return known and first in rules.MODULES[module] and rest in ("", "primitive_bitwidth", "value")
