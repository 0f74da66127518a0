"""Which expressions host code may use: names that it defines, allocation, views, questions about shapes, launches."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace

from windtunnel.verify.kernel import rules
from windtunnel.verify.kernel.names import bound_names, host_methods, read_names
from windtunnel.verify.kernel.problem import Problem, problem


@dataclass(frozen=True)
class Scope:
    """Where the check is. seen: names that can be read; local: those of this function, whose contents may be changed.

    constructing: inside __init__ or at module level, where tensors of constants may be made. own: the name of `self`.
    """

    local: frozenset[str]
    seen: frozenset[str] = frozenset()
    constructing: bool = False
    own: str = ""


class Expressions:
    """Collects what is wrong with the expressions of one candidate."""

    def __init__(self, tree: ast.Module, tf32: bool) -> None:
        self.tree, self.tf32 = tree, tf32
        self.names = read_names(tree)
        self.methods = host_methods(self.names)
        self.found: list[Problem] = []
        self.asking: set[int] = set()  # nodes that only an assert looks at

    def refuse(self, reason: str, node: ast.AST, what: str = "") -> None:
        self.found.append(problem(reason, node, what or ast.unparse(node)))

    def expression(self, node: ast.AST, scope: Scope) -> None:
        match node:
            case ast.Name():
                self._name(node, scope)
            case ast.Attribute():
                self._attribute(node, scope)
            case ast.Call():
                self._call(node, scope)
            case ast.Lambda():
                self.expression(node.body, replace(scope, seen=scope.seen | frozenset(bound_names(node.args))))
            case ast.BinOp(op=ast.MatMult()):
                self.refuse("host-compute", node, "the operator @")
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                self._parts(node, replace(scope, seen=scope.seen | frozenset(bound_names(node))))
            case ast.NamedExpr():
                self.expression(node.value, scope)
            case ast.Constant():
                pass
            case _:
                self._parts(node, scope)

    def _parts(self, node: ast.AST, scope: Scope) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.expression(child, scope)
            else:
                self._parts(child, scope)

    def _name(self, node: ast.Name, scope: Scope) -> None:
        if not isinstance(node.ctx, ast.Load):
            return
        known = node.id in scope.seen or node.id in self.names.level or node.id in self.names.imports or node.id in rules.BUILTINS
        if known:
            self._bare_import(node)
            return
        banned = (
            "exec",
            "eval",
            "compile",
            "getattr",
            "setattr",
            "delattr",
            "__import__",
            "globals",
            "locals",
            "vars",
            "open",
            "input",
        )
        self.refuse("dynamic-code" if node.id in banned or node.id.startswith("__") else "unknown-name", node)

    def _bare_import(self, node: ast.Name) -> None:
        """`from torch import matmul` was refused at the import; a whole module as a value could be passed around."""
        if self.names.imports.get(node.id) in rules.MODULES and self.names.imports[node.id] != "torch.nn":
            self.refuse("dynamic-code", node, f"the module {node.id} as a value")

    def _attribute(self, node: ast.Attribute, scope: Scope) -> None:
        if self.dunder(node):
            return
        dotted = self.names.dotted(node)
        if dotted is not None:
            self._dotted(node, dotted, scope)
            return
        of_device = node.attr == "type" and isinstance(node.value, ast.Attribute) and node.value.attr == "device"
        if (node.attr == "is_cuda" or of_device) and id(node) not in self.asking:
            self.refuse("reads-mode", node)
        if self._own_name(node, scope):
            return
        if node.attr in rules.BANNED_ATTRIBUTES and not (scope.constructing and node.attr in ("requires_grad",)):
            self.refuse(rules.BANNED_ATTRIBUTES[node.attr], node)
        self.expression(node.value, scope)

    def _own_name(self, node: ast.Attribute, scope: Scope) -> bool:
        """self.run, self.cache: what is banned on kernels is any name on the candidate's own module."""
        own = bool(scope.own) and isinstance(node.value, ast.Name) and node.value.id == scope.own
        return own and rules.BANNED_ATTRIBUTES.get(node.attr) == "reaches-into-triton"

    def dunder(self, node: ast.Attribute) -> bool:
        if node.attr.startswith("__") and node.attr != "__init__":
            self.refuse("reaches-into-python", node)
            return True
        if (
            node.attr.startswith("_")
            and node.attr not in self.methods
            and root_of(node) not in ("self",)
            and not node.attr.startswith("__")
        ):
            self.refuse("reaches-into-python", node)
            return True
        return False

    def _dotted(self, node: ast.expr, dotted: str, scope: Scope) -> None:
        module, _, name = dotted.rpartition(".")
        while module not in rules.MODULES and module:
            module, _, head = module.rpartition(".")
            name = f"{head}.{name}"
        first = name.split(".")[0]
        allowed = rules.MODULES.get(module, frozenset())
        if dotted in rules.MODULES:
            return
        if dotted == "torch.cuda.is_available" and id(node) not in self.asking:
            self.refuse("reads-mode", node)
            return
        if module == "torch" and scope.constructing and first in rules.TORCH_CONSTRUCTION:
            return
        if allowed is not None and first not in allowed:
            compute = module.startswith("torch") or module == "operator"
            self.refuse("host-compute" if compute else "unknown-call", node, f"{ast.unparse(node)}")
        elif module == "torch.nn" and not scope.constructing and first not in ("Module", "Parameter"):
            self.refuse("host-compute", node, ast.unparse(node))

    def _call(self, node: ast.Call, scope: Scope) -> None:
        for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
            self.expression(argument, scope)
        callee = node.func
        match callee:
            case ast.Name():
                self._called_name(callee, scope)
            case ast.Attribute():
                self._called_attribute(node, callee, scope)
            case ast.Subscript():
                self.expression(callee.value, scope)
                self.expression(callee.slice, scope)
            case ast.Lambda():
                self.expression(callee, scope)
            case _:
                before = len(self.found)
                self.expression(callee, scope)
                if len(self.found) == before:
                    self.refuse("unknown-call", node, ast.unparse(callee))

    def _called_name(self, node: ast.Name, scope: Scope) -> None:
        name = node.id
        if name in self.names.kernels:
            self.refuse("reaches-into-triton", node, f"{name}(...) without a grid")
            return
        origin = self.names.imports.get(name)
        if origin is not None:
            self._dotted(node, origin, scope)
            return
        self._name(node, scope)

    def _called_attribute(self, call: ast.Call, node: ast.Attribute, scope: Scope) -> None:
        if node.attr == "__init__":
            base = node.value
            fine = (
                scope.constructing and isinstance(base, ast.Call) and isinstance(base.func, ast.Name) and base.func.id == "super"
            )
            if not fine:
                self.refuse("overrides", node)
            return
        if self.dunder(node):
            return
        dotted = self.names.dotted(node)
        if dotted is not None:
            self._dotted(node, dotted, scope)
            return
        self._method(node, scope)
        self.expression(node.value, scope)

    def _method(self, node: ast.Attribute, scope: Scope) -> None:
        name, root = node.attr, root_of(node.value)
        if name in rules.BANNED_ATTRIBUTES and not self._own_name(node, scope):
            self.refuse(rules.BANNED_ATTRIBUTES[name], node, f".{name}()")
        elif (root == scope.own and isinstance(node.value, ast.Name) and name in self.methods and name != "forward") or (
            name in self.methods and root in self.names.classes
        ):
            pass
        elif name in rules.CHANGING and not scope.constructing and (root not in scope.local or root == scope.own):
            self.refuse("keeps-state", node, f"{ast.unparse(node)}()")
        elif (
            name in rules.TENSOR_METHODS
            or name in rules.CONTAINER_METHODS
            or (scope.constructing and (name in rules.CONSTRUCTION_METHODS or name in rules.TENSOR_METHODS))
            or (scope.constructing and name in rules.TORCH_CONSTRUCTION)
        ):
            pass
        elif name in self.methods and root in scope.seen and root != scope.own:
            pass  # a method of one of the candidate's own classes
        else:
            self.refuse("host-compute", node, f"{ast.unparse(node)[:60]}()")


def root_of(node: ast.expr) -> str:
    """The name that a chain of attributes, subscripts and calls starts from; '' where there is none."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""
