"""What a task's reference is given, without computing it: dtypes and shapes of inputs and parameters. Imports torch.

In a trusted child: only the task's own source is executed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from windtunnel.verify.kernel.arrays import Buffer, plain
from windtunnel.verify.kernel.child.here import Here
from windtunnel.verify.kernel.child.tensors import dtype_name


def main(message: dict[str, Any], buffers: Sequence[Buffer]) -> tuple[dict[str, Any], list[Buffer]]:
    """Run references on shapes alone.

    Args:
        message: sources and dtypes, of the same length.
        buffers: none are used.

    Returns:
        'forms', or 'wrong' with what the reference raised.
    """
    forms = []
    for source, dtype in zip(message["sources"], message["dtypes"], strict=True):
        try:
            try:
                forms.append(_form(source, dtype, "meta"))
            except (RuntimeError, NotImplementedError):  # it asks for values, which take memory
                forms.append(_form(source, dtype, "cpu"))
        except Exception as error:  # the task's own code may raise anything; the parent decides what that means
            return {"wrong": f"{type(error).__name__}: {error}"[:500]}, []
    return {"forms": forms}, []


def _form(source: str, dtype: str, device: str) -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": "task"}
    exec(compile(source, "<task>", "exec"), space)
    kind = getattr(torch, dtype)
    with torch.device(device), Here(device):
        init = list(space["get_init_inputs"]())
        state = space["Model"](*init).to(kind).state_dict()
        drawn = space["get_inputs"]()

    def head(value: Any) -> dict[str, Any] | None:
        if not isinstance(value, torch.Tensor):
            return None
        return {"dtype": dtype if value.is_floating_point() else dtype_name(value), "shape": list(value.shape)}

    return {
        "init": [plain(value) for value in init],
        "inputs": [head(value) for value in drawn],
        "arguments": [None if isinstance(value, torch.Tensor) else {"value": plain(value)} for value in drawn],
        "parameters": [[name, dtype_name(tensor), list(tensor.shape)] for name, tensor in state.items()],
    }
