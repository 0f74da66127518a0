"""What to add to the words of a refusal, found in the candidate's text. Imports nothing heavy."""

from __future__ import annotations

import ast

UNDEFINED = (
    "Line {line}: tl.load with a mask and without other= leaves undefined values where the mask is false; "
    "the interpreter puts numbers there that nobody computes. Give other=."
)

ALIGNED = (
    "A tensor descriptor needs every stride but the last to be a multiple of 16 bytes, on a GPU too. Load shapes that are not so "
    "through pointers with a mask, or view the tensor as one dimension."
)
VALUES = ("wrong-values", "non-finite", "out-of-bounds", "crash")


def advice(source: str, reason: str, message: str) -> str:
    """What helps against this refusal: a sentence with a blank before it, or ''."""
    if reason == "raised" and "must be 16-byte aligned" in message:
        return f" {ALIGNED}"
    return _undefined(source) if reason in VALUES else ""


def _undefined(source: str) -> str:
    """On the first masked load without `other` (or block load without padding_option)."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        said = {keyword.arg for keyword in node.keywords}
        masked = ("mask" in said or len(node.args) == 2) and "other" not in said and len(node.args) < 3
        cut = "boundary_check" in said and "padding_option" not in said
        if name == "load" and (masked or cut) and None not in said:
            return " " + UNDEFINED.format(line=node.lineno)
    return ""
