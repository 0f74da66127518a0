"""Writes the reference text of one generated task: a module with sizes, `Model`, `get_inputs` and `get_init_inputs`."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from windtunnel.verify.kernel.task import Task

Number = int | float
Sizes = Mapping[str, Mapping[str, Number]]

FORMS = ("plain", "scaled", "small", "negated")  # what every task without a narrower domain must bear
LARGE = (*FORMS, "large")  # for tasks whose result stays finite on inputs in the hundreds (softmax, norms)

# The form of KernelBench's files, so that models which know those are asked nothing new.
_MODULE = '''import torch
import torch.nn as nn
import torch.nn.functional as F

{constants}


class Model(nn.Module):
    """{summary}"""

    def __init__({init_arguments}):
        super().__init__()
{init}

    def forward(self, {arguments}):
{body}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return [{init_inputs}]
'''


def task(
    name: str,
    summary: str,
    body: str,
    *,
    family: str,
    level: int,
    sizes: Sizes | None = None,
    inputs: Mapping[str, str] | None = None,
    parameters: Mapping[str, str] | None = None,
    buffers: Mapping[str, str] | None = None,
    init_inputs: Mapping[str, str] | None = None,
    variations: Sequence[str] = FORMS,
    inplace: Sequence[int] = (),
    host_copies: bool = True,
) -> Task:
    """Return one task from its parts. A family's file binds what its tasks share with `functools.partial`.

    Args:
        name: of the task.
        summary: what it computes, in words.
        body: `forward`'s statements, the last a return (or a bare expression, which is returned).
        family: the file that it stands in.
        level: how hard it is, from 1.
        sizes: what the module-level constants are at "tiny", "tiny_ragged", "full" and "full_ragged" (default:
            `rows_cols()`). The text itself shows the full ones; all four name the same constants.
        inputs: argument of `forward` → the expression that draws it (default: `X`).
        parameters: entry of the state dict that is trained → the expression for its first value, made of `init_inputs`.
        buffers: the same for entries that are not trained.
        init_inputs: argument of `__init__`, kept as an attribute → the expression for its value, made of the constants.
        variations: names from `hidden`, applied to floating inputs.
        inplace: positions of inputs that may be overwritten.
        host_copies: whether host code may copy a tensor (`.contiguous()`); False where moving data is the task.
    """
    sizes = sizes or rows_cols()
    assert len({frozenset(values) for values in sizes.values()}) == 1, f"{name}: the sizes name different constants"
    inputs, given = inputs or X, init_inputs or {}
    init = [f"self.{argument} = {argument}" for argument in given]
    init += [f"self.{key} = nn.Parameter({value})" for key, value in (parameters or {}).items()]
    init += [f'self.register_buffer("{key}", {value})' for key, value in (buffers or {}).items()]
    text = _MODULE.format(
        constants="\n".join(f"{key} = {value}" for key, value in sizes["full"].items()),
        summary=summary,
        init_arguments=", ".join(["self", *given]),
        init=textwrap.indent("\n".join(init), " " * 8),
        arguments=", ".join(inputs),
        body=textwrap.indent(body if "return " in body else f"return {body}", " " * 8),
        inputs=", ".join(inputs.values()),
        init_inputs=", ".join(given.values()),
    )
    return Task(
        name=name,
        family=family,
        level=level,
        summary=summary,
        source=text,
        sizes={key: dict(value) for key, value in sizes.items()},
        dtypes=("float32", "float16", "bfloat16"),
        variations=tuple(variations),
        inplace=tuple(inplace),
        host_copies=host_copies,
    )


def drawn(shape: str, *names: str) -> dict[str, str]:
    """Return inputs or parameters of one shape ("ROWS, COLS"), each drawn from the standard normal distribution."""
    return dict.fromkeys(names, f"torch.randn({shape})")


def by_name(*arguments: str) -> dict[str, str]:
    """Return `init_inputs` whose values are the constants of the same name in capitals."""
    return {argument: argument.upper() for argument in arguments}


def grids(**dims: tuple[Number, Number, Number, Number]) -> Sizes:
    """Return sizes from one row a constant: (tiny, tiny_ragged, full, full_ragged)."""
    names = ("tiny", "tiny_ragged", "full", "full_ragged")
    return {name: {key: row[index] for key, row in dims.items()} for index, name in enumerate(names)}


def rows_cols(**more: tuple[Number, Number, Number, Number]) -> Sizes:
    """Return the sizes of most tasks on matrices, with further constants."""
    return grids(**{"ROWS": (8, 5, 4096, 4093), "COLS": (64, 37, 4096, 3001), **more})


def flat(**more: tuple[Number, Number, Number, Number]) -> Sizes:
    """Return `rows_cols` for tasks on every element by itself: the ragged one is more than one block of 1,024."""
    return rows_cols(**{"ROWS": (8, 29, 4096, 4093), **more})


X, XY, XYZ = (drawn("ROWS, COLS", *names) for names in ("x", "xy", "xyz"))
