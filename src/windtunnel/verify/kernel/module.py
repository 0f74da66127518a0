"""A kernel task from a user's own module: KernelBench's files as they are, any other nn.Module with its example inputs.

The file is parsed, never run: what is missing is written below it, as text.
"""

from __future__ import annotations

import ast
import symtable
from collections.abc import Collection
from dataclasses import replace

from windtunnel.recipe import UserError
from windtunnel.verify.kernel.task import NEEDED, Task, task_from_source

INPUTS = ("example_inputs", "inputs")
# Whole numbers from here on, in example inputs and constructor, are sizes; smaller ones are counts and switches.
LEAST_SIZE = 5
MODULES = ("Module", "nn.Module", "torch.nn.Module")
HELP = "assign them at module level, example_inputs = (torch.randn(64, 256),), or give --inputs 'torch.randn(64, 256)'"


def tasks_of_module(
    source: str, name: str, where: str, *, module: str | None = None, inputs: str | None = None, init: str | None = None
) -> list[Task]:
    """Return the task of a file, and after it those to take where its reference does not run at other sizes.

    Args:
        source: the file's text.
        name: of the task.
        where: what to call the file in messages.
        module: the class; None: `Model`, or the only one that derives from nn.Module.
        inputs: arguments of forward, as Python text; None: as the file has them.
        init: arguments of the constructor, likewise.

    Raises:
        UserError: the file is not Python, or it does not say which module, with which inputs.
    """
    try:
        tree = ast.parse(source)
        compile(tree, where, "exec")  # finds more than the parser: a return outside of functions
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UserError(f"{where}: not Python ({error})", "give the file of a PyTorch module") from None
    defined = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    if defined >= set(NEEDED) and module is None and inputs is None and init is None:
        return [task_from_source(source, name=name, where=where)]
    chosen = _chosen(tree, module, where)
    asked = _asked(tree, inputs, where)
    made = _by_place(tree, chosen, _arguments("--init", init) if init is not None else _made(tree, chosen, where))
    kept = _without_examples(source, tree, chosen, ast.unparse(asked), ast.unparse(made))
    # As it is, for a reference that does not run with sizes of its own lifted out of it.
    plain = f"{kept}\n\n{_written(chosen, asked, made)}"
    sizes = _Sizes()
    lifted = f"{kept}\n\n{sizes.assigned(asked, made)}{_written(chosen, sizes.visit(asked), sizes.visit(made))}"
    first = task_from_source(lifted, name=name, where=where)
    if "tiny" in first.sizes:
        return [first]
    return [first, replace(task_from_source(plain, name=name, where=where), sizes={"tiny": {}}, guessed=False)]


def _chosen(tree: ast.Module, module: str | None, where: str) -> str:
    """Return the class to be replaced."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    if module is not None:
        if module not in (node.name for node in classes):
            raise UserError(
                f"{where}: there is no class {module}", f"one of {', '.join(node.name for node in classes) or '(it has none)'}"
            )
        return module
    found = [node.name for node in classes if any(ast.unparse(base) in MODULES for base in node.bases)]
    if "Model" in found:
        return "Model"
    if len(found) != 1:
        what = f"several modules: {', '.join(found)}" if found else "no class that derives from torch.nn.Module"
        raise UserError(f"{where}: has {what}", "say which one: --module NAME")
    return found[0]


def _asked(tree: ast.Module, inputs: str | None, where: str) -> ast.expr:
    """Return the example inputs, as an expression that draws them anew each time: a tuple, or one tensor."""
    if inputs is not None:
        return ast.Tuple(list(_arguments("--inputs", inputs).args), ast.Load())
    if any(isinstance(node, ast.FunctionDef) and node.name == "get_inputs" for node in tree.body):
        return ast.Call(ast.Name("get_inputs", ast.Load()), [], [])
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in INPUTS:
            return ast.Call(ast.Name(node.name, ast.Load()), [], [])
        if isinstance(node, ast.Assign) and any(isinstance(target, ast.Name) and target.id in INPUTS for target in node.targets):
            # A tensor that is made once when the file is imported would be the same for every case.
            return _WrittenOut(tree).visit(node.value)
    raise UserError(f"{where}: says no example inputs", HELP)


def _made(tree: ast.Module, chosen: str, where: str) -> ast.Call:
    """Return the arguments of the constructor: of an instance at module level, of get_init_inputs, or none."""
    for node in tree.body:
        value = _instance(node, chosen)
        if value is not None:
            return value
    if any(isinstance(node, ast.FunctionDef) and node.name == "get_init_inputs" for node in tree.body):
        starred = ast.Starred(ast.Call(ast.Name("get_init_inputs", ast.Load()), [], []), ast.Load())
        return ast.Call(ast.Name(chosen, ast.Load()), [starred], [])
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == chosen)
    for part in found.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            needed = len(part.args.args) - 1 - len(part.args.defaults)
            needed += sum(default is None for default in part.args.kw_defaults)
            if needed > 0:
                fix = f"make one at module level, model = {chosen}(256), or give --init '256'"
                raise UserError(f"{where}: {chosen} takes {needed} argument{'s' * (needed > 1)} that the file does not give", fix)
    return ast.Call(ast.Name(chosen, ast.Load()), [], [])


def _instance(node: ast.stmt, chosen: str) -> ast.Call | None:
    """Return the call by which a statement makes an instance."""
    value = getattr(node, "value", None)
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):  # MyModule(64).eval()
        value = value.func.value
    made = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == chosen
    return value if made and isinstance(value, ast.Call) else None


def _without_examples(source: str, tree: ast.Module, chosen: str, *written: str) -> str:
    """Return the file without its own instance and inputs, which are written anew below, unless something else needs them.

    They have their full sizes, for which a sandbox may lack the memory, and may be put on a GPU that is not there.
    """
    tensors = _WrittenOut(tree).made
    kept, gone = list(tree.body), list[ast.stmt]()
    # What an example was made of may be needed by nothing else once that is gone.
    while True:
        used = _globals_of("\n".join([*map(ast.unparse, kept), *written]))
        more = [node for node in kept if _is_example(node, chosen, tensors) and not _assigned(node) & used]
        if not more:
            break
        kept, gone = [node for node in kept if node not in more], [*gone, *more]
    lines: list[str] = source.splitlines(keepends=True)
    shared = {line for node in kept for line in _lines_of(node)}
    # Two statements on one line: it stays.
    dropped = {line for node in gone for line in _lines_of(node)} - shared
    return "".join(line for number, line in enumerate(lines, 1) if number not in dropped)


def _is_example(node: ast.stmt, chosen: str, tensors: Collection[str]) -> bool:
    names = _assigned(node)
    return bool(names) and (_instance(node, chosen) is not None or names <= {*INPUTS, *tensors})


def _assigned(node: ast.stmt) -> set[str]:
    """Return the names that a statement assigns, where it assigns nothing else."""
    targets = node.targets if isinstance(node, ast.Assign) else []
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    return set(names) if len(names) == len(targets) else set()


def _globals_of(source: str) -> set[str]:
    """Return the names of module level that a source uses, in functions and classes too."""

    def inside(table: symtable.SymbolTable) -> set[str]:
        own = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()}
        return own.union(*map(inside, table.get_children()))

    top = symtable.symtable(source, "task", "exec")
    own = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_referenced()}
    return own.union(*map(inside, top.get_children()))


def _lines_of(node: ast.stmt) -> range:
    first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
    return range(first, (node.end_lineno or node.lineno) + 1)


def _arguments(option: str, text: str) -> ast.Call:
    """Return the arguments that an option holds."""
    try:
        call = ast.parse(f"f({text})", mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise UserError(f"{option} {text!r}: not Python ({error})", "arguments as in a call: 'torch.randn(64, 256), 3'") from None
    assert isinstance(call, ast.Call)
    if option == "--inputs" and (call.keywords or not call.args):
        raise UserError(f"{option} {text!r}: forward is called with arguments by place", "'torch.randn(64, 256), 3'")
    return call


def _by_place(tree: ast.Module, chosen: str, made: ast.Call) -> ast.Call:
    """Return the call with as many arguments by place as can be: get_init_inputs() gives those to a kernel's module too."""
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == chosen)
    inits = [part for part in found.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"]
    if not inits or any(isinstance(argument, ast.Starred) for argument in made.args):
        return made
    given = inits[0].args
    names = [argument.arg for argument in given.args[1:]]
    values: dict[str, ast.expr] = dict(zip(names[::-1], given.defaults[::-1], strict=False))
    named = {keyword.arg: keyword.value for keyword in made.keywords}
    by_name = [name for name in names if name in named]
    # Up to the last that is named: those between take their defaults.
    last = max((names.index(name) + 1 for name in by_name), default=0)
    placed = list(made.args)
    for name in names[len(placed) : last]:
        value = named.get(name) or values.get(name)
        if value is None:
            break
        placed.append(value)
    rest = [keyword for keyword in made.keywords if keyword.arg not in names[: len(placed)]]
    return ast.Call(made.func, placed, rest)


def _written(chosen: str, asked: ast.expr, made: ast.Call) -> str:
    """Return what makes KernelBench's form of a file. What the constructor takes by name alone is the same for every module."""
    placed, named = ", ".join(map(ast.unparse, made.args)), "".join(f", {ast.unparse(keyword)}" for keyword in made.keywords)
    body = f"    def __init__(self, *arguments):\n        super().__init__(*arguments{named})\n" if named else "    pass\n"
    model = f"class Model({chosen}):\n{body}\n\n" if chosen != "Model" or named else ""
    inputs, init = ast.unparse(asked), f"[{placed}]"
    kept = ""
    for own, name in (("get_inputs", "_given_inputs"), ("get_init_inputs", "_given_init")):
        if f"{own}()" in f"{inputs} {init}":  # what is written below takes its name
            kept += f"{name} = {own}\n\n\n"
            inputs, init = inputs.replace(f"{own}()", f"{name}()"), init.replace(f"{own}()", f"{name}()")
    return (
        f"{model}{kept}def get_inputs():\n    given = {inputs}\n"
        "    return list(given) if isinstance(given, (list, tuple)) else [given]\n\n\n"
        f"def get_init_inputs():\n    return {init}\n"
    )


class _WrittenOut(ast.NodeTransformer):
    """Writes tensors that a module holds by a name out, x = torch.randn(8, 64), so that they are drawn anew."""

    def __init__(self, tree: ast.Module) -> None:
        self.made = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
            for target in node.targets
            if isinstance(target, ast.Name) and ast.unparse(node.value.func).startswith("torch.")
        }

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Replace a name by what makes its tensor."""
        return self.made.get(node.id, node)


class _Sizes(ast.NodeTransformer):
    """Gives sizes that are written out a name at module level, equal ones the same, so that other sizes can be tried."""

    def assigned(self, *parts: ast.AST) -> str:
        """Return the assignments of all sizes in these expressions."""
        walked = (node for part in parts for node in ast.walk(part))
        found = sorted({int(ast.unparse(node)) for node in walked if _is_size(node)})
        return "".join(f"SIZE_{value} = {value}\n" for value in found) + ("\n\n" if found else "")

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        """Name a size."""
        return ast.copy_location(ast.Name(f"SIZE_{ast.unparse(node)}", ast.Load()), node) if _is_size(node) else node


def _is_size(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value >= LEAST_SIZE
