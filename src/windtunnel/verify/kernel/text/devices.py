"""Where a tensor's device may stand: host code hands it on to what allocates. Its text, its number and what it equals tell the
interpreter's CPU from a GPU, and a candidate that knows could do something else there."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Container, Iterator

from windtunnel.verify.kernel.text.names import Names, annotated_types, arguments, around, decorated, defaults, first_argument

PASSES = 12  # names of names, helpers of helpers; what is not settled then is refused
TAKES = frozenset({"new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided", "to", "cuda"})  # methods of tensors
# What keeps whatever it is given, to be read again.
KEEPS = frozenset({"torch.nn.ParameterDict", "torch.nn.ParameterList", "torch.nn.ModuleDict", "torch.nn.ModuleList"})


def device_texts(tree: ast.AST) -> Iterator[ast.Constant]:
    """Where `device="cuda"` stands in a call, or device("cuda"): on a CPU another text is put there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            first = node.args[:1] if isinstance(node.func, ast.Attribute) and node.func.attr == "device" else []
            for value in [*(keyword.value for keyword in node.keywords if keyword.arg == "device"), *first]:
                if isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value.split(":")[0] == "cuda":
                    yield value


def telling_devices(tree: ast.Module, names: Names, asking: Container[int]) -> list[ast.expr]:
    """Devices that stand elsewhere than in a call that is given them. asking: nodes that only an assert looks at."""
    return _Devices(tree, names, asking).found()


class _Devices:
    """holds: of each function and method the names that hold a device there, or a dictionary with one; under '' the module's
    names, under '.' the names that classes give their objects. A text of `device_texts` is a device too."""

    def __init__(self, tree: ast.Module, names: Names, asking: Container[int]) -> None:
        self.tree, self.names, self.asking = tree, names, asking
        self.units: list[tuple[str, ast.AST]] = [*names.functions.items(), *self._outside()]
        self.holds: dict[str, set[str]] = {key: set() for key in ["", ".", *names.functions]}
        self.texts = {id(text) for text in device_texts(tree)}
        self.bound = set(_bound_otherwise(tree))
        self.own = {key: _object(node) for key, node in names.functions.items() if "." in key}

    def _outside(self) -> Iterator[tuple[str, ast.AST]]:
        """What stands in no function: statements of the module's and of classes, and what stands around functions."""
        host = {id(function) for function in self.names.functions.values()}
        for statement in self.tree.body:
            inside = isinstance(statement, ast.ClassDef)
            for node in [*statement.body, *around(statement)] if isinstance(statement, ast.ClassDef) else [statement]:
                if isinstance(node, ast.FunctionDef):
                    yield from (("", part) for part in (node.decorator_list if id(node) in host else around(node)))
                else:
                    yield "." if inside else "", node

    def found(self) -> list[ast.expr]:
        settled = any(not self._spread() for _ in range(PASSES))
        raised = {id(inner) for node in ast.walk(self.tree) for said in _said_at_the_end(node) for inner in ast.walk(said)}
        wrong: list[ast.expr] = []
        for key, unit in self.units:
            fine = self._fine_places(key, unit) | raised if settled else set[int]()
            for node in (inner for part in _parts(unit) for inner in ast.walk(part)):
                if self._device(node, key) and id(node) not in fine and id(node) not in self.asking:
                    wrong.append(node)  # type: ignore[arg-type]
        return wrong

    def _device(self, node: ast.AST | None, key: str) -> bool:
        """Whether this is a device, or a dictionary with one."""
        match node:
            case ast.Attribute(attr=name, ctx=ast.Load()) if name == "device" or name in self.holds["."]:
                return self.names.dotted(node) is None
            case ast.Attribute(attr="index", value=value):
                return self._device(value, key)
            case ast.Name(id=name, ctx=ast.Load()):
                return name in self.holds[key] or name in self.holds[""]
            case ast.Dict(values=values):
                return any(self._device(value, key) for value in values)
            case ast.Call(func=ast.Name(id="dict"), args=parts, keywords=named):
                return any(self._device(part, key) for part in [*parts, *(keyword.value for keyword in named)])
            case ast.Call(func=called):
                return self.names.dotted(called) == "torch.device"
            case ast.Constant():
                return id(node) in self.texts
        return False

    def _spread(self) -> bool:
        """What is assigned a device, and parameters that are given one or have one by default. Whether anything is new."""
        before = sum(map(len, self.holds.values()))
        for key, unit in self.units:
            for argument, default in defaults(unit):
                self.holds[key] |= {argument.arg} if self._device(default, key) else set()
            for node in ast.walk(unit):
                for target, value in _assigned(node):
                    if isinstance(target, ast.Name) and self._device(value, key):
                        self.holds[key].add(target.id)
                if isinstance(node, ast.Call):
                    callee = self._callee(node.func, key)
                    if callee in self.names.functions:
                        self.holds[callee] |= set(self._given(node, callee, key))
        return sum(map(len, self.holds.values())) > before

    def _callee(self, called: ast.expr, key: str) -> str:
        """The candidate's own function, method or class that is certainly called; '' for anything else."""
        match called:
            case ast.Name(id=name) if name not in self.bound and name in self.names.classes:
                return f"{name}.__init__"
            case ast.Name(id=name) if name not in self.bound:
                return name if name in self.names.functions else ""
            case ast.Attribute(value=ast.Name(id=base), attr=name) if f".{name}" not in self.bound:
                known = base in self.names.classes and base not in self.bound
                kind = key.partition(".")[0] if self.own.get(key) == base else base if known else ""
                return f"{kind}.{name}" if f"{kind}.{name}" in self.names.functions else ""
        return ""

    def _given(self, call: ast.Call, callee: str, key: str) -> Iterator[str]:
        """Parameters that are given a device. What stands behind `*some` may be anywhere."""
        function = self.names.functions[callee]
        by_place = [part.arg for part in (*function.args.posonlyargs, *function.args.args)]
        by_place = by_place[1:] if "." in callee and first_argument(function) else by_place
        rest = [part.arg for part in (function.args.vararg,) if part is not None] * len(call.args)
        spread = any(isinstance(part, ast.Starred) for part in call.args)
        for name, value in zip([*by_place, *rest], call.args, strict=False):
            if self._device(value, key):
                yield from [name] if not spread else [*by_place, *rest]
        known = {part.arg for part in arguments(function)}
        for keyword in call.keywords:
            if self._device(keyword.value, key):
                name = keyword.arg or "device"  # the only key of a dictionary that may hold one
                yield name if name in known or not function.args.kwarg else function.args.kwarg.arg

    def _fine_places(self, key: str, unit: ast.AST) -> set[int]:
        fine = {id(default) for _, default in defaults(unit)}
        for node in ast.walk(unit):
            match node:
                case ast.Call(func=ast.Name(id="dict"), args=parts, keywords=named):
                    fine |= {id(part) for part in [*parts, *(k.value for k in named if k.arg in ("device", None))]}
                case ast.Call():
                    asks = (self.names.dotted(node.func) or "").startswith("torch.cuda.")
                    some = self._taken(node, key)
                    fine |= {id(part) for part in some if asks or not _is_index(part)}
                    fine |= {id(part.value) for part in some if asks and isinstance(part, ast.Attribute)}
                case ast.Dict():
                    pairs = [*zip(node.keys, node.values, strict=True)]
                    fine |= {id(value) for said, value in pairs if isinstance(said, ast.Constant) and said.value == "device"}
                    fine |= {id(value) for said, value in pairs if said is None}
                case ast.Attribute(attr="type" | "device", value=value):  # of a device's type another rule speaks
                    fine.add(id(value))
                case ast.Return(value=value) if isinstance(unit, ast.FunctionDef) and unit.name == "device":
                    fine |= {id(value)} if decorated(unit, "property") else set()
            for target, value in _assigned(node):
                held = isinstance(target, ast.Attribute) and target.attr == "device"
                fine |= {id(value)} if (isinstance(target, ast.Name) or held) and not _is_index(value) else set()
        return fine

    def _taken(self, call: ast.Call, key: str) -> list[ast.expr]:
        """What of a call's arguments may be a device."""
        by_place = [part.value if isinstance(part, ast.Starred) else part for part in call.args]
        some = [*by_place, *(keyword.value for keyword in call.keywords)]
        dotted, callee = self.names.dotted(call.func), self._callee(call.func, key)
        if dotted is not None:
            made = self.names.dotted(call.args[0]) if dotted == "functools.partial" and call.args else dotted
            return some if made is not None and made.startswith("torch.") and made not in KEEPS else []
        if callee in self.names.functions:
            return some
        if callee:  # a class without a constructor of its own: its fields are given, and may be read by their names
            fields = [_field(part) for part in self.names.classes[callee.partition(".")[0]].body]
            placed = zip([name for name in fields if name], by_place, strict=False)
            named = [keyword.value for keyword in call.keywords if keyword.arg in ("device", None)]
            return [*named, *(part for name, part in placed if name == "device")]
        allocates = isinstance(call.func, ast.Attribute) and (call.func.attr in TAKES or call.func.attr == "__init__")
        return some if allocates else []


def _bound_otherwise(tree: ast.Module) -> Iterator[str]:
    """Names that stand for something else than the one function or class of the module's that is called so, and as '.name' those
    of attributes that may hold something else than a method."""
    whole = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    methods = [
        part for node in whole if isinstance(node, ast.ClassDef) for part in node.body if isinstance(part, ast.FunctionDef)
    ]
    usual = {id(node) for node in [*whole, *methods]}
    yield from (name for name, times in Counter(node.name for node in whole).items() if times > 1)
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                yield from (name, f".{name}")  # in a class it is an attribute
            case ast.Attribute(attr=name, ctx=ast.Store() | ast.Del()):
                yield f".{name}"
            case ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) if id(node) not in usual:
                yield name


def _object(method: ast.FunctionDef) -> str:
    """What a method calls its object, '' where a function or lambda inside may call another one so."""
    own = first_argument(method)
    again = [node for node in ast.walk(method) if isinstance(node, ast.arg) and node.arg == own]
    return own if len(again) == 1 else ""


def _parts(unit: ast.AST) -> list[ast.AST]:
    """What runs of a function, and what stands around it."""
    if not isinstance(unit, ast.FunctionDef):
        return [unit]
    return [*unit.body, *(default for _, default in defaults(unit)), *annotated_types(unit)]


def _field(node: ast.stmt) -> str:
    return node.target.id if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) else ""


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
