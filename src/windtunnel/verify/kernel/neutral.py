"""Makes a candidate answer on a CPU as it would on a GPU where it asks on which of them it is.

`x.is_cuda` becomes True, `device.type` becomes 'cuda', and `device="cuda"` becomes `device="cpu"`: asserts of honest code
hold, and a branch on the device takes the way that it takes on a GPU. Only text of the same line is replaced.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from windtunnel.verify.kernel.text.devices import device_texts
from windtunnel.verify.kernel.text.names import read_names


def as_on_gpu(source: str) -> str:
    """The text with its questions about the device answered; unchanged where it asks none."""
    tree = ast.parse(source)
    lines = source.encode().splitlines(keepends=True)
    # From the end, so that earlier positions stay right; an outer node is replaced whole and its inner ones left out.
    taken: list[tuple[int, int, int]] = []
    for node, text in sorted(
        _answers(tree), key=lambda pair: (-pair[0].lineno, -(pair[0].end_col_offset or 0), pair[0].col_offset)
    ):
        row, start, end = node.lineno - 1, node.col_offset, node.end_col_offset or 0
        if node.end_lineno != node.lineno or any(row == r and start < e and end > s for r, s, e in taken):
            continue
        taken.append((row, start, end))
        lines[row] = lines[row][:start] + text.encode() + lines[row][end:]
    return b"".join(lines).decode()


def _answers(tree: ast.Module) -> Iterator[tuple[ast.expr, str]]:
    left = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    kernels = read_names(tree).kernels.values()  # pointer.type.element_ty asks for no device
    left |= {id(node) for kernel in kernels for part in kernel.body for node in ast.walk(part)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and id(node) not in left:
            if node.attr == "is_cuda":
                yield node, "True"
            elif node.attr == "type":
                yield node, "'cuda'"
    for text in device_texts(tree):
        yield text, "'cpu'"
