"""One thing that is wrong with a candidate's text."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from windtunnel.verify.kernel.text.rules import MESSAGES

SHOWN = 100


@dataclass(frozen=True)
class Problem:
    """reason: a slug of `rules.MESSAGES`. line: where in the candidate, 0 for the whole of it."""

    reason: str
    message: str
    line: int


def problem(reason: str, node: ast.AST, what: str, instead: str = "") -> Problem:
    """A problem at a node, with what is wrong there in the candidate's own words. instead: a sentence on what to write there."""
    line = getattr(node, "lineno", 0)
    short = what if len(what) <= SHOWN else what[: SHOWN - 3] + "..."
    text = MESSAGES[reason].format(what=short.replace("\n", " ")) + (f" {instead}" if instead else "")
    return Problem(reason, f"Line {line}: {text}" if line else text[0].upper() + text[1:], line)
