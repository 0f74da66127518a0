"""What a kernel task is: a reference in PyTorch with an input generator, sizes, dtypes, tolerances and hidden variations.

A task is kept as the text of a module in KernelBench's form: numbers at module level, `class Model(torch.nn.Module)`,
`get_inputs()` and `get_init_inputs()`. A literal dictionary `TASK = {...}` may set any field of `Task` but the source.
Nothing of it is executed here.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from windtunnel.literals import Number, assigned, numbers
from windtunnel.recipe import UserError

SIZES = ("tiny", "tiny_ragged", "full", "full_ragged")
DTYPES = ("float32", "float16", "bfloat16")
VARIATIONS = ("plain", "scaled", "small", "negated", "large", "steep", "faint", "shifted")
FAR_VARIATIONS = ("large", "shifted", "steep", "faint")  # the others are near what any input generator draws
# Near what any input generator draws, so that a reference which is right there can be asked for them.
DEFAULT_VARIATIONS = ("plain", "scaled", "small", "negated")
UNDECLARED_VARIATIONS = (*DEFAULT_VARIATIONS, "large", "shifted")  # of files without TASK, as KernelBench's
UNDECLARED_FRAGILE = ("large", "shifted")  # far beyond what such a file's own get_inputs() draws
NEEDED = ("Model", "get_inputs", "get_init_inputs")


@dataclass(frozen=True)
class Task:
    """One thing to write a kernel for.

    source: text of the reference module; it must run in float64 too. sizes: for 'tiny' and 'tiny_ragged' (run on the
    interpreter) and 'full' and 'full_ragged' (run on a GPU), values of the source's module-level numbers; numbers derived
    from them follow. operations: which of PyTorch's may compute in host code: 'none', 'any', or names ('aten.mm'). dtypes: what
    inputs and parameters are cast to, one after the other; a file's own where it asks for no others. variations: names from
    `hidden`, applied to floating inputs. fragile: those of them with which wrong values are named, not refused.
    tolerance: relative error by dtype instead of `compare`'s. fixed: floating inputs by position ('0') and entries of the state
    dict whose values are kept as the reference made them. inplace: positions of inputs that may be overwritten. host_copies: host
    code may copy (`.contiguous()`); False where moving data is the task. tf32: on a GPU tl.dot may round fp32 inputs to TF32,
    Triton's default. mismatched: share of elements of an integer output that may be off by one. guessed: the tiny sizes are still
    to be found, by `prepared.settled`. training: the reference is run in training mode, but for dropout, which is random.
    compile_seconds: of the CPU, in which one kernel is to be compiled. Three of 407 answers by others are not done in 120 s; of
    the rest none takes more than 7.7 a kernel (benchmarks/results/verify-compile-cpu.json). A model that learns writes more of
    the former, and a round waits for them.
    """

    name: str
    source: str
    family: str = ""
    level: int = 1
    summary: str = ""
    sizes: Mapping[str, Mapping[str, Number]] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ("float32", "float16")
    variations: tuple[str, ...] = DEFAULT_VARIATIONS
    fragile: tuple[str, ...] = ()
    tolerance: Mapping[str, float] = field(default_factory=dict)
    fixed: tuple[str, ...] = ()
    inplace: tuple[int, ...] = ()
    host_copies: bool = True
    operations: str | tuple[str, ...] = "none"
    tf32: bool = True
    mismatched: float = 0.0
    guessed: bool = False
    training: bool = False
    compile_seconds: float = 20.0

    def at(self, size: str) -> str:
        """Return the source with the numbers of one size written into it."""
        return with_numbers(self.source, self.sizes.get(size, {}))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _are(kind: type) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list | tuple) and all(type(entry) is kind for entry in value)


def _are_numbers(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(key, str) and _is_number(entry) for key, entry in value.items())


def _are_sizes(value: object) -> bool:
    return isinstance(value, dict) and all(_are_numbers(numbers) for numbers in value.values())


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


# Key of TASK → whether a value fits it, and what does.
FORMS: dict[str, tuple[Callable[[object], bool], str]] = {
    "sizes": (_are_sizes, "numbers by name for each size: {'tiny': {'ROWS': 8}}"),
    "dtypes": (_are(str), "a list of dtypes: ['float32']"),
    "variations": (_are(str), "a list of variations: ['plain']"),
    "fragile": (_are(str), "a list of variations, or none: ['large']"),
    "tolerance": (
        lambda value: isinstance(value, dict) and _are_numbers(value) and all(0 <= entry <= 1 for entry in value.values()),
        "numbers from 0 to 1 by dtype: {'float32': 1e-4}",
    ),
    "fixed": (_are(str), "a list of names and of positions as text: ['0']"),
    "inplace": (_are(int), "a list of positions: [0]"),
    "mismatched": (lambda value: _is_number(value) and isinstance(value, int | float) and 0 <= value <= 1, "a share from 0 to 1"),
    "host_copies": (_is_flag, "True or False"),
    "operations": (
        lambda value: value in ("none", "any") or (not isinstance(value, str) and _are(str)(value)),
        "'none', 'any' or a list of operations: ['aten.mm']",
    ),
    "tf32": (_is_flag, "True or False"),
    "training": (_is_flag, "True or False"),
    "compile_seconds": (lambda value: _is_number(value) and isinstance(value, int | float) and value > 0, "seconds: 20"),
    "name": (_is_text, "a text"),
    "level": (lambda value: type(value) is int, "a whole number"),
    "family": (_is_text, "a text"),
    "summary": (_is_text, "a text"),
}


def load_task(path: Path, what: str | None = None) -> Task:
    """Return the task of a file: KernelBench's as it is, or one with TASK = {...}.

    Without sizes of its own the file's numbers are its full size, and a tiny one is guessed when the reference first runs.

    what: how to call it in messages, otherwise by its path.

    Raises:
        UserError: something is missing; says what.
    """
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fix = "name a Python file with Model, get_inputs and get_init_inputs"
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{what or f'--task {path}'}: cannot be read ({why})", fix) from None
    return task_from_source(source, name=path.stem, where=what or str(path))


def task_from_source(source: str, *, name: str, where: str = "the task") -> Task:
    """Return a task from the text of such a file."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UserError(f"{where}: not Python ({error})", "give the reference module in Python") from None
    defined = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    missing = [needed for needed in NEEDED if needed not in defined]
    if missing:
        raise UserError(
            f"{where}: defines no {', '.join(missing)}",
            "a task file needs class Model(torch.nn.Module), get_inputs() and get_init_inputs() at module level",
        )
    # Parsed, never run: a task file is run in a sandbox alone.
    declared = _declared(tree, where)
    defaults: dict[str, Any] = {"dtypes": (dtype_of(tree),)}
    if not declared:
        # KernelBench never leaves training mode, where statistics of the batch are taken in place of those that a norm has kept.
        defaults |= {"training": has_batch_statistics(source), "operations": "any"}
        defaults |= {"variations": UNDECLARED_VARIATIONS, "fragile": UNDECLARED_FRAGILE}
    task = Task(name=name, source=source, **{**defaults, **declared})
    check_task(task, where)
    return task if "tiny" in task.sizes else replace(task, guessed=True)


def dtype_of(tree: ast.Module) -> str:
    """Return the dtype that a file's get_inputs() makes.

    That is the first of DTYPES that it names, itself or by a name of the module; float32 where it names none.
    """
    named = {name: _dtype_in(value) for node in tree.body for name, value in assigned(node)}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "get_inputs":
            of_names = (named.get(inner.id) for inner in ast.walk(node) if isinstance(inner, ast.Name))
            return _dtype_in(node) or next((dtype for dtype in of_names if dtype), "float32")
    return "float32"


def _dtype_in(tree: ast.AST) -> str | None:
    """Return the dtype that some code names: torch.bfloat16, .half()."""
    names = (inner.attr for inner in ast.walk(tree) if isinstance(inner, ast.Attribute))
    found = ("float16" if name == "half" else name for name in names)
    return next((name for name in found if name in DTYPES), None)


def has_batch_statistics(source: str) -> bool:
    """Return whether a reference computes something else in training mode, and nothing random. By its text alone."""
    return "batchnorm" in _letters(source) and "dropout" not in _letters(source)


def may_follow_mode(task: Task) -> bool:
    """Return whether a candidate may compute something else in training mode.

    PyTorch's own modules do, where it may call them.
    """
    return task.operations != "none" and any(word in _letters(task.source) for word in ("batchnorm", "dropout"))


def _letters(source: str) -> str:
    return source.lower().replace("_", "")


def check_task(task: Task, where: str) -> None:
    """Refuse a task with a field that names something that does not exist. Raises UserError."""
    try:
        known = numbers(task.source)
    except RecursionError:
        raise UserError(f"{where}: a number at module level is nested too deeply", "write it out") from None
    for size, values in task.sizes.items():
        _among(size, SIZES, f"{where}: TASK['sizes'] key")
        for key in values:
            _among(key, tuple(known), f"{where}: TASK['sizes']['{size}'] key")
    for dtype in task.dtypes:
        _among(dtype, DTYPES, f"{where}: TASK['dtypes'] entry")
    for dtype in task.tolerance:
        _among(dtype, DTYPES, f"{where}: TASK['tolerance'] key")
    for variation in task.variations:
        _among(variation, VARIATIONS, f"{where}: TASK['variations'] entry")
    for variation in task.fragile:
        _among(variation, FAR_VARIATIONS, f"{where}: TASK['fragile'] entry")
    if "plain" not in task.variations or not task.dtypes:
        raise UserError(f"{where}: a task needs the variation 'plain' and at least one dtype", "leave TASK's defaults")


def with_far_inputs(task: Task) -> Task:
    """Return a task with inputs far beyond its own where it has none; what is wrong with those is named, not refused."""
    far = tuple(variation for variation in UNDECLARED_FRAGILE if variation not in task.variations)
    near = (variation for variation in task.variations if variation != "plain")
    # Far ones first: where a GPU judges the rest, the interpreter has no time for all.
    return replace(task, variations=("plain", *far, *near), fragile=(*task.fragile, *far))


def with_numbers(source: str, values: Mapping[str, Number]) -> str:
    """Return the source with new values at the module-level assignments of these names."""
    # As texts: 1 and 1.0 are equal as keys, and not as what is written.
    return _with_texts(source, tuple((name, repr(value)) for name, value in values.items())) if values else source


@lru_cache(maxsize=1024)
def _with_texts(source: str, given: tuple[tuple[str, str], ...]) -> str:
    """Return what `with_numbers` does; kept, since every answer to a task asks for the same ones."""
    values = dict(given)
    tree = ast.parse(source)
    body: list[ast.stmt] = []
    for node in tree.body:
        body.append(node)
        # The statement itself stays: it may bind other names too.
        for name, _ in assigned(node):
            if name in values:
                body += ast.parse(_assignment(name, values[name])).body
    tree.body = body
    return ast.unparse(ast.fix_missing_locations(tree))


def _assignment(name: str, value: str) -> str:
    """Return the statement that sets a number, or an entry of a tuple by making the tuple anew."""
    whole, bracket, place = name.partition("[")
    if not bracket:
        return f"{name} = {value}"
    at = int(place.removesuffix("]"))
    return f"{whole} = type({whole})([*{whole}[:{at}], {value}, *{whole}[{at + 1}:]])"


def _declared(tree: ast.Module, where: str) -> dict[str, Any]:
    """Return the fields that TASK = {...} sets."""
    for written in (written for node in tree.body for name, written in assigned(node) if name == "TASK"):
        try:
            value = ast.literal_eval(written)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            raise UserError(f"{where}: TASK is not a literal", "write TASK = {...} with plain values only") from None
        if not isinstance(value, dict):
            raise UserError(f"{where}: TASK is {type(value).__name__}, not a dictionary", "write TASK = {...}")
        for key in value:
            _among(key, tuple(FORMS), f"{where}: TASK key")
            if not FORMS[key][0](value[key]):
                raise UserError(f"{where}: TASK[{key!r}] is {repr(value[key])[:80]}", f"give {FORMS[key][1]}")
        value.pop("name", None)  # a file's own
        return {key: tuple(entry) if isinstance(entry, list) else entry for key, entry in value.items()}
    return {}


def _among(value: object, allowed: tuple[str, ...], what: str) -> None:
    if value not in allowed:
        raise UserError(f"{what} {value!r} is not known", f"use one of: {', '.join(allowed) or '(none is defined)'}")
