"""Which attributes of `self` hold nothing but what a class's own __init__ made: only their contents may be changed there.

`self.kept = kept` is whatever was passed, and __init__ of a helper class may run in each call of forward.
"""

from __future__ import annotations

import ast

from windtunnel.verify.kernel.text.fresh import Fresh
from windtunnel.verify.kernel.text.owned import REGISTERS, class_names, texts

MODULES = ("torch.nn.",)
NO_MODULES = ("torch.nn.init.",)


class Built:
    """made: attributes that hold containers, tensors and modules made where they are assigned. numbers: those that hold numbers.
    modules: those that hold parameters and modules of torch's, whose `data` may be set."""

    def __init__(self, tree: ast.Module, fresh: Fresh) -> None:
        self.fresh = fresh
        self.values: dict[str, list[ast.expr | None]] = {}
        self.registered: set[str] = set()
        self._read(tree)
        of_classes = {name for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for name in class_names(node)}
        found = {name: values for name, values in self.values.items() if name not in of_classes and None not in values}
        whole = {name: [value for value in values if value is not None] for name, values in found.items()}
        self.made = {name for name, values in whole.items() if all(fresh.made(v) or self._module(v) for v in values)}
        self.made |= self.registered
        self.numbers = {name for name, values in whole.items() if all(map(fresh.number, values))}
        self.modules = {name for name, values in whole.items() if all(map(self._module, values))} | self.registered

    def _read(self, tree: ast.Module) -> None:
        plain: set[int] = set()
        for node in ast.walk(tree):
            match node:
                case ast.Assign() | ast.AnnAssign():
                    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                        if isinstance(target, ast.Attribute):
                            plain.add(id(target))
                            self.values.setdefault(target.attr, []).append(node.value)
                case ast.AugAssign(target=ast.Attribute() as target):
                    plain.add(id(target))  # judged by itself
                case ast.Call(func=ast.Attribute(attr=name)) if name in REGISTERS:
                    self.registered |= set(texts([*node.args[:1], *(k.value for k in node.keywords if k.arg == "name")]))
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and id(node) not in plain:
                self.values.setdefault(node.attr, []).append(None)
        self.registered -= set(self.values)

    def _module(self, value: ast.expr) -> bool:
        dotted = (self.fresh.names.dotted(value.func) or "") if isinstance(value, ast.Call) else ""
        return dotted.startswith(MODULES) and not dotted.startswith(NO_MODULES)


def on_self(node: ast.expr, own: str) -> str:
    """'x' for self.x and self.x.weight, without subscripts and calls in between; '' for anything else."""
    name = ""
    while isinstance(node, ast.Attribute):
        name, node = node.attr, node.value
    return name if own and isinstance(node, ast.Name) and node.id == own else ""
