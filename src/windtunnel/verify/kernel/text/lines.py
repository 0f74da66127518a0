"""Triton finds a kernel's text by its lines: a compiler from the first that begins with def, its interpreter from the last."""

from __future__ import annotations

import ast
import re

from windtunnel.verify.kernel.text.names import Names
from windtunnel.verify.kernel.text.problem import Problem, problem

BREAK = re.compile(r"\r\n|\r|\n")
DEFINES = re.compile(r"\s*def\s")
PLAIN = re.compile(r"\s*def +\w+ *\(")
INSTEAD = "Triton would read the kernel from there. Begin the line with another word."


def check_lines(source: str, names: Names) -> Problem | None:
    """The first line within a text in a kernel or its decorators that Triton could take for the kernel's beginning."""
    lines = BREAK.split(source)
    for kernel in names.kernels.values():
        first = min([kernel.lineno, *(decorator.lineno for decorator in kernel.decorator_list)])
        if not PLAIN.match(lines[kernel.lineno - 1]):
            return problem("statement", kernel, lines[kernel.lineno - 1], f"Write def {kernel.name}( in one line.")
        for number in range(first, (kernel.end_lineno or first) + 1):
            if number != kernel.lineno and DEFINES.match(lines[number - 1]):
                place = ast.Pass(lineno=number, col_offset=0)
                return problem("statement", place, f"{lines[number - 1].strip()[:60]} in a text of {kernel.name}", INSTEAD)
    return None
