"""What to add to the words of a refusal, found in the candidate's text. Imports nothing heavy."""

from __future__ import annotations

import ast

UNDEFINED = (
    "Line {line}: tl.load with a mask and without other= leaves undefined values where the mask is false; "
    "the interpreter puts NaN there. Give other=."
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


CONVERT = (
    "Convert in the kernel: tl.load(...).to(tl.float32), and .to(out_ptr.dtype.element_ty) before the store; "
    "torch.empty takes the dtype of what is returned."
)
ON_GPU = "Inputs and parameters are on the GPU."
REDUCE = "Reduce in a kernel, over its programs with tl.atomic_add or in a second launch."
INSTEAD = {
    **dict.fromkeys(("to", "type", "type_as", "float", "half", "bfloat16", "double", "int", "long", "bool"), CONVERT),
    **dict.fromkeys(("cuda", "cpu"), ON_GPU),
    "is_cuda": f"{ON_GPU} Leave the question out, or ask it in an assert.",
    "clone": "Allocate with torch.empty_like and let the kernel write it.",
    "arange": "Take tl.arange in the kernel.",
    "tensor_split": "Take split or chunk.",
    "item": "Give the kernel the tensor and load it there; shapes are numbers.",
    "get_device": "Take x.device.",
    **dict.fromkeys(("cat", "concat", "stack", "pad", "repeat", "roll", "flip"), "Take masks and strides in the kernel."),
    **dict.fromkeys(("sum", "mean", "max", "min", "amax", "amin", "prod", "norm", "var", "std"), REDUCE),
    **dict.fromkeys(("synchronize", "current_stream", "stream", "Stream", "Event"), "Leave it out: launches follow one another."),
}
NO_GRADIENT = "Launch in ModelNew.forward or in a function that it calls: no gradient is asked for."
IN_A_STATEMENTS_PLACE = {"match": "Write if and elif.", "yield": "Return a list.", "yield from": "Return a list."}


def instead_of(name: str) -> str:
    """What to write where host code may not use this attribute of a tensor: a sentence, or ''."""
    return INSTEAD.get(name, "")


def own_copy(node: ast.expr) -> str:
    """Where something is changed that may not be the function's own."""
    name = ast.unparse(node)
    return (
        f"where {name} may last (change a copy: dict({name}), list({name}))"
        if len(name) < 16
        else "which may last: change a copy"
    )
