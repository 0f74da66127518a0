"""Runs a task's reference in a trusted child: inputs, parameters, and the right answer in float64. Imports torch.

Or asks it for shapes alone, without computing it. Only the task's own source is executed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any
from zlib import crc32

import torch
from torch.utils.flop_counter import FlopCounterMode

from windtunnel.verify.kernel.arrays import Buffer, plain
from windtunnel.verify.kernel.child.draw import Drawn, Here
from windtunnel.verify.kernel.child.tensors import dtype_name, sent

MOST_PARAMETERS = 90 << 20  # bytes; they go to the parent with each case, which takes a gigabyte in all


def main(message: dict[str, Any], buffers: Sequence[Buffer]) -> tuple[dict[str, Any], list[Buffer]]:
    """Run the reference on cases.

    A case whose reference cannot be computed has 'error', and in 'import' whether what it imports is missing; one whose values
    are not finite where plain's are has 'dropped'.

    message: sources by size, cases, first (number of the first of them among all), seed, fixed, count, nearby.

    Returns:
        For each case its heads, and the arrays' bytes in order; with count also how many multiplications its products and
        convolutions take; with nearby also the reference's errors with inputs nearby. Or 'parameters', their bytes, where they
        are too many.
    """
    torch.set_num_threads(1)
    out: list[Buffer] = []
    groups: dict[tuple[str, str], Drawn] = {}
    finite: dict[tuple[str, str], bool] = {}
    answers = []
    for number, case in enumerate(message["cases"], message["first"]):
        key = (case["size"], case["dtype"])
        try:
            if key not in groups:
                # Else sizes with the same parameters would share their values.
                seed = message["seed"] + crc32(case["size"].encode())
                source = message["sources"][case["size"]]
                groups[key] = Drawn(source, case["dtype"], seed, message["fixed"], training=message["training"])
                held = sum(tensor.numel() * tensor.element_size() for tensor in groups[key].model.state_dict().values())
                if held > MOST_PARAMETERS:  # each candidate's child would get them too
                    return {"parameters": held}, []
            with FlopCounterMode(display=False) if message["count"] else nullcontext() as counter:
                answers.append(_answer(groups[key], case, message["seed"] + 1 + number, out, finite, nearby=message["nearby"]))
            if counter is not None:  # it ran in its dtype and in float64; an addition counts as well
                answers[-1]["work"] = int(counter.get_total_flops()) // 4
        except Exception as error:  # the task's own code may raise anything; the parent decides what that means
            answers.append({"error": f"{type(error).__name__}: {error}"[:500], "import": isinstance(error, ImportError)})
    return {"cases": answers}, out


def _answer(
    drawn: Drawn, case: dict[str, Any], seed: int, out: list[Buffer], finite: dict[tuple[str, str], bool], *, nearby: bool
) -> dict[str, Any]:
    inputs = drawn.inputs(case, seed)
    own, exact, kind = drawn.answers(inputs)
    whole = all(bool(torch.isfinite(tensor).all()) for tensor in exact + own if tensor.is_floating_point())
    key = (case["size"], case["dtype"])
    if case["variation"] == "plain":
        finite[key] = whole
    elif finite.get(key) and not whole:
        return {"dropped": "the reference is not finite here"}
    tensors = {
        "inputs": [value for value in inputs if isinstance(value, torch.Tensor)],
        "parameters": list(drawn.model.state_dict().values()),
        "own": own,
        "exact": exact,
    }
    answer: dict[str, Any] = {name: [sent(tensor, out) for tensor in some] for name, some in tensors.items()}
    answer["names"] = list(drawn.model.state_dict())
    answer["init"] = [plain(value) for value in drawn.init]
    answer["arguments"] = [None if isinstance(value, torch.Tensor) else {"value": plain(value)} for value in inputs]
    answer["kind"] = kind
    if nearby:
        answer["errors"] = drawn.errors(inputs, own, exact)
    return answer


def shapes(message: dict[str, Any], buffers: Sequence[Buffer]) -> tuple[dict[str, Any], list[Buffer]]:
    """Run references on shapes alone.

    message: sources and dtypes, of the same length.

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
