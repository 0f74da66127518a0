"""Writes the reference text of one generated task: a module with sizes, `Model`, `get_inputs` and `get_init_inputs`."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from windtunnel.verify.kernel.task import Task

Number = int | float
Sizes = Mapping[str, Mapping[str, Number]]

FORMS = ("plain", "scaled", "small", "negated")  # what every task without a narrower domain must bear
LARGE = (*FORMS, "large")  # for tasks whose result stays finite on inputs in the hundreds (softmax, norms)

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
    *,
    family: str,
    level: int,
    summary: str,
    sizes: Sizes,
    inputs: Mapping[str, str],
    body: str,
    init: str = "",
    init_inputs: Mapping[str, str] | None = None,
    variations: Sequence[str] = FORMS,
    fixed: Sequence[str] = (),
    inplace: Sequence[int] = (),
    dtypes: Sequence[str] = ("float32", "float16", "bfloat16"),
    tolerance: Mapping[str, float] | None = None,
    host_copies: bool = True,
) -> Task:
    """One task from its parts.

    Args:
        sizes: what the module-level constants are at "tiny", "tiny_ragged", "full" and "full_ragged". The text itself
            shows the full ones; all four name the same constants.
        inputs: argument of `forward` → the expression that draws it.
        body: `forward`'s statements, the last a return (or a bare expression, which is returned).
        init: statements of `__init__` after `super().__init__()`.
        host_copies: whether host code may copy a tensor (`.contiguous()`); False where moving data is the task.
        init_inputs: argument of `__init__` → the expression for its value, made of the constants.
    """
    names = {frozenset(values) for values in sizes.values()}
    assert len(names) == 1, f"{name}: the sizes name different constants"
    given = dict(init_inputs or {})
    keep = "\n".join(f"self.{argument} = {argument}" for argument in given)
    statements = body if "return " in body else f"return {body}"
    text = _MODULE.format(
        constants="\n".join(f"{key} = {value}" for key, value in sizes["full"].items()),
        summary=summary,
        init_arguments=", ".join(["self", *given]),
        init=textwrap.indent("\n".join(part for part in (keep, init) if part), " " * 8),
        arguments=", ".join(inputs),
        body=textwrap.indent(statements, " " * 8),
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
        dtypes=tuple(dtypes),
        variations=tuple(variations),
        fixed=tuple(fixed),
        inplace=tuple(inplace),
        tolerance=dict(tolerance or {}),
        host_copies=host_copies,
    )


def grids(**dims: tuple[Number, Number, Number, Number]) -> Sizes:
    """Sizes from one row a constant: (tiny, tiny_ragged, full, full_ragged)."""
    names = ("tiny", "tiny_ragged", "full", "full_ragged")
    return {name: {key: row[index] for key, row in dims.items()} for index, name in enumerate(names)}


ROWS_COLS = grids(ROWS=(8, 5, 4096, 4093), COLS=(64, 37, 4096, 3001))
