"""The closed grammar of kernels: every node of a kernel's text is visited, and what is not named here is refused.

A kernel is compiled, or run by Triton's interpreter as the Python that it is, in the judge's process. So it may name its own
variables, what its plan says its global names are, a few builtins and Triton's language; and of values only what MEMBERS holds.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from windtunnel.verify.kernel.plan.bombs import too_much
from windtunnel.verify.kernel.plan.language import BUILTINS, DTYPE_NAMES, MEMBERS, MODULES, in_language
from windtunnel.verify.kernel.plan.schema import Constant, Kernel, KernelValue, Language

STATEMENTS = (
    ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.While, ast.If, ast.Expr, ast.Return, ast.Pass, ast.Assert, ast.Break,
    ast.Continue,
)  # fmt: skip
EXPRESSIONS = (
    ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call, ast.Attribute, ast.Subscript, ast.Slice, ast.Name,
    ast.Constant, ast.Tuple, ast.List, ast.ListComp, ast.Starred, ast.JoinedStr, ast.FormattedValue,
)  # fmt: skip
PARTS = (
    ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.Load, ast.Store, ast.keyword, ast.comprehension, ast.arguments, ast.arg,
)  # fmt: skip
CONSTANTS = (int, float, bool, str, type(None), type(...))
EXACT_PRODUCTS = ("ieee", "tf32x3")
LONGEST_SHOWN = 80
# Calls that a text is a message of. Elsewhere f"{K}" could decide something, and compiler and interpreter write texts apart.
SAYS = ("static_assert", "static_print", "device_assert", "device_print", "print", "assume")
# What is called by these names is looked at by its name; max = tl.max(x) is a variable like another.
NOT_SHADOWED = (*SAYS, "range")


class NotInGrammar(Exception):
    """A kernel's text is not of the grammar; the words say what and where. reason: the slug of the refusal."""

    def __init__(self, text: str, reason: str = "kernel-call") -> None:
        super().__init__(text)
        self.reason = reason


def function_of(kernel: Kernel) -> ast.FunctionDef:
    """Return the function that a kernel's text defines. Raises NotInGrammar where it is anything else."""
    refused = too_much(kernel.source)
    if refused is not None:
        raise NotInGrammar(f"kernel {kernel.name} is not read: {refused}", "too-large")
    try:
        body = ast.parse(kernel.source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotInGrammar(f"kernel {kernel.name} is not Python: {error}") from None
    if len(body) != 1 or not isinstance(body[0], ast.FunctionDef) or body[0].name != kernel.name:
        raise NotInGrammar(f"kernel {kernel.name} is not the text of one function of that name")
    return body[0]


def check_kernels(kernels: tuple[Kernel, ...], *, tf32: bool = True) -> list[ast.arguments]:
    """Check every kernel of a plan; return the parameters of each. tf32: False demands products in full fp32.

    Raises:
        NotInGrammar: at the first node that is not named.
    """
    checks = [_Check(kernel, len(kernels), tf32) for kernel in kernels]
    for check in checks:
        check.whole()
    return [check.function.args for check in checks]


class _Check:
    def __init__(self, kernel: Kernel, number: int, tf32: bool) -> None:
        self.kernel, self.number, self.tf32 = kernel, number, tf32
        self.function = function_of(kernel)
        self.local = frozenset({a.arg for a in self.function.args.args} | set(_stored(self.function)))
        # Of a.b.c the whole counts: its parts are not looked at by themselves.
        self.inner = {id(node.value) for node in ast.walk(self.function) if isinstance(node, ast.Attribute)}
        self.messages = set(_messages(self.function))
        self.called = {id(node.func): node for node in ast.walk(self.function) if isinstance(node, ast.Call)}

    def whole(self) -> None:
        function, arguments = self.function, self.function.args
        if function.decorator_list or function.returns or arguments.posonlyargs or arguments.kwonlyargs:
            raise self._refusal(function, "decorators, annotations of what is returned, and parameters by name or place alone")
        if arguments.vararg or arguments.kwarg or any(a.annotation for a in arguments.args):
            raise self._refusal(function, "*args, **kwargs and annotations of parameters")
        names = {a.arg for a in arguments.args}
        told = {*self.kernel.constexprs, *self.kernel.types, *self.kernel.do_not_specialize, *self.kernel.aligned_or_not}
        if told - names:
            raise self._refusal(function, f"{sorted(told - names)[0]}, which is no parameter")
        self._global_names()
        if self.kernel.computed:
            self._computed(function.body)
        for default in arguments.defaults:
            self._visit(default, frozenset())
        for statement in function.body:
            self._visit(statement, self.local)

    def _computed(self, body: Sequence[ast.stmt]) -> None:
        """Check a function that the compiler runs as the Python that it is: it asks what a dtype is, and returns one.

        With values of a kernel's it would be one thing to the compiler and another to the interpreter.
        """
        for statement in body:
            if isinstance(statement, ast.If) and self._asks(statement.test):
                self._computed(statement.body)
                self._computed(statement.orelse)
            elif not (isinstance(statement, ast.Return) and self._is_dtype(statement.value)) and not _is_text(statement):
                raise self._refusal(statement)

    def _asks(self, test: ast.expr) -> bool:
        """Return whether a condition is made of questions such as dtype.is_fp16()."""
        match test:
            case ast.BoolOp(values=values):
                return all(map(self._asks, values))
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                return self._asks(inner)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=question), args=[], keywords=[]):
                return name in self.local and question.startswith("is_")
        return False

    def _is_dtype(self, value: ast.expr | None) -> bool:
        return value is not None and (
            (isinstance(value, ast.Name) and value.id in self.local) or self._dotted(value, self.local) in DTYPE_NAMES
        )

    def _visit(self, node: ast.AST, local: frozenset[str]) -> None:
        """Check a node and all below it.

        local: the names that are the kernel's own there: those that a comprehension counts with are so within it alone, and not
        yet in what it goes through first.
        """
        self._node(node, local)
        if isinstance(node, ast.ListComp):
            first = node.generators[0].iter
            self._visit(first, local)
            local |= {inner.id for part in node.generators for inner in ast.walk(part.target) if isinstance(inner, ast.Name)}
            for inner in [
                node.elt,
                *(child for part in node.generators for child in ast.iter_child_nodes(part) if child is not first),
            ]:
                self._visit(inner, local)
            return
        for child in ast.iter_child_nodes(node):
            self._visit(child, local)

    def _refusal(self, node: ast.AST, what: str = "", reason: str = "kernel-call") -> NotInGrammar:
        line = getattr(node, "lineno", 1)
        shown = what or ast.unparse(node)[:LONGEST_SHOWN]
        return NotInGrammar(
            f"in kernel {self.kernel.name}, line {line} of it: {shown} may not be used inside a kernel. "
            "Use triton.language and other @triton.jit functions",
            reason,
        )

    def _global_names(self) -> None:
        for name, meaning in self.kernel.names.items():
            # Names by which Python, or Triton's interpreter, finds what is its own.
            if name.startswith("__") or name in ("interpreter_semantic", "interpreter_builder"):
                raise self._refusal(self.function, name)
            if isinstance(meaning, KernelValue) and meaning.kernel >= self.number:
                raise self._refusal(self.function, f"{name}, a kernel that the plan does not hold,")
            if isinstance(meaning, Language) and meaning.language not in MODULES and not in_language(meaning.language):
                raise self._refusal(self.function, meaning.language)
            if isinstance(meaning, Constant) and not isinstance(meaning.constant, bool | int | float | str | type(None)):
                for inner in _inside(meaning.constant):
                    if not isinstance(inner, bool | int | float | str | type(None)):
                        raise self._refusal(self.function, f"the constant {name}")

    def _node(self, node: ast.AST, local: frozenset[str]) -> None:
        # What Python will have tomorrow is refused as well: a list of what is forbidden would let it pass.
        if not isinstance(node, (*STATEMENTS, *EXPRESSIONS, *PARTS)):
            what = type(node).__name__.lower()
            raise self._refusal(node, f"{what} ({ast.unparse(node)[:LONGEST_SHOWN]})" if isinstance(node, ast.expr) else what)
        match node:
            # Bytes and complex numbers: Triton has no use for them.
            case ast.Constant(value=value) if not isinstance(value, CONSTANTS):
                raise self._refusal(node)
            case ast.Name():
                self._name(node, local)
            case ast.Attribute():
                self._attribute(node, local)
            case ast.keyword(arg=None):
                raise self._refusal(node.value, f"**{ast.unparse(node.value)[:LONGEST_SHOWN]}")
            case ast.JoinedStr() if id(node) not in self.messages:
                raise self._refusal(node)
            # What is called has to have a name, by which it is looked up.
            case ast.Call() if not isinstance(node.func, ast.Name | ast.Attribute):
                raise self._refusal(node)
            case ast.Compare(left=left, ops=signs, comparators=others) if any(isinstance(s, ast.Is | ast.IsNot) for s in signs):
                # Which numbers are the same object is the compiler's own affair; None and dtypes there are one of each.
                if not any(self._is_one_of_a_kind(side, local) for side in (left, *others)):
                    raise self._refusal(node)
            case ast.Subscript(ctx=ast.Store()):
                raise self._refusal(node)
            case ast.Assign(targets=targets) if len(targets) > 1:
                raise self._refusal(node, "a = b = ...")

    def _name(self, node: ast.Name, local: frozenset[str]) -> None:
        if isinstance(node.ctx, ast.Store):
            if node.id.startswith("__") or node.id in NOT_SHADOWED:
                raise self._refusal(node, f"{node.id} = ...")
            return
        if node.id in local or (id(node) in self.inner and self._dotted(node, local)):
            return
        meaning = self.kernel.names.get(node.id)
        if meaning is None and node.id not in BUILTINS:
            raise self._refusal(node)
        if isinstance(meaning, Language):
            if meaning.language in MODULES:
                raise self._refusal(node)  # a module is no value
            self._products(node, meaning.language)

    def _attribute(self, node: ast.Attribute, local: frozenset[str]) -> None:
        if not isinstance(node.ctx, ast.Load):
            raise self._refusal(node, f"{ast.unparse(node)} = ...")
        dotted = self._dotted(node, local)
        if dotted is None:
            if node.attr not in MEMBERS:
                raise self._refusal(node)
        elif id(node) not in self.inner:
            if not in_language(dotted):
                raise self._refusal(node)
            self._products(node, dotted)

    def _is_one_of_a_kind(self, node: ast.expr, local: frozenset[str]) -> bool:
        return (isinstance(node, ast.Constant) and node.value is None) or self._dotted(node, local) in DTYPE_NAMES

    def _dotted(self, node: ast.expr, local: frozenset[str]) -> str | None:
        """Return 'triton.language.exp' for a name or chain that begins with a module, None for others."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        meaning = self.kernel.names.get(node.id) if isinstance(node, ast.Name) and node.id not in local else None
        if not isinstance(meaning, Language):
            return None
        return ".".join([meaning.language, *reversed(parts)])

    def _products(self, node: ast.expr, dotted: str) -> None:
        """tl.dot rounds fp32 to TF32 unless told otherwise; some tasks forbid that."""
        if self.tf32 or dotted not in ("triton.language.dot", "triton.language.dot_scaled"):
            return
        call = self.called.get(id(node))
        said = {keyword.arg: keyword.value for keyword in call.keywords} if call is not None else {}
        precision, allow = said.get("input_precision"), said.get("allow_tf32")
        exact = isinstance(precision, ast.Constant) and precision.value in EXACT_PRODUCTS
        if not exact and not (isinstance(allow, ast.Constant) and allow.value is False):
            shown = ast.unparse(call or node)[:LONGEST_SHOWN]
            text = f"in kernel {self.kernel.name}: {shown}: this task is to be computed in full fp32"
            raise NotInGrammar(f"{text}. Use input_precision='ieee'", "tf32")


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _stored(node: ast.AST) -> Iterator[str]:
    """Yield the names that a function assigns, but for those of comprehensions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield child.id
        elif not isinstance(child, ast.comprehension):
            yield from _stored(child)


def _messages(function: ast.FunctionDef) -> Iterator[int]:
    """Yield the ids of all nodes in what asserts and prints say."""
    for node in ast.walk(function):
        said: list[ast.expr] = []
        if isinstance(node, ast.Assert) and node.msg is not None:
            said = [node.msg]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            said = [*node.args, *(keyword.value for keyword in node.keywords)] if called in SAYS else []
        for part in said:
            yield from (id(inner) for inner in ast.walk(part))


def _inside(value: object) -> Iterator[object]:
    """Yield the plain values in lists and tuples; anything else as it is."""
    inner = getattr(value, "list", None) or getattr(value, "tuple", None)
    if isinstance(inner, tuple):
        for entry in inner:
            yield from _inside(entry)
    else:
        yield value if not hasattr(value, "float") else 0.0
