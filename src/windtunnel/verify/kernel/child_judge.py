"""Judges a candidate's full-size outputs in a trusted child, after the candidate's process has ended. Imports torch.

The reference's answers exist only here, so that no candidate can find them in a GPU's memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from windtunnel.verify.kernel.arrays import Buffer, array_from, row_major
from windtunnel.verify.kernel.child_clock import measure
from windtunnel.verify.kernel.child_compare import values_differ
from windtunnel.verify.kernel.child_draw import Drawn
from windtunnel.verify.kernel.child_tensors import dtype_name, to_tensor

TF32_RELATIVE = 2e-3  # inputs of products rounded to 10 bits, where a task allows it


def main(message: dict[str, Any], buffers: Sequence[Buffer]) -> tuple[dict[str, Any], list[Buffer]]:
    """message: sources, cases, seed, fixed, device, tolerance, mismatched, tf32, runs (the candidate's, untrusted).

    Returns 'wrong' (reason, message) of the first wrong case or None, and the work of one call of the last case.
    """
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    groups: dict[tuple[str, str], Drawn] = {}
    work: dict[str, Any] = {}
    for number, (case, run) in enumerate(zip(message["cases"], message["runs"], strict=True)):
        key = (case["size"], case["dtype"])
        if key not in groups:
            groups[key] = Drawn(
                message["sources"][case["size"]], case["dtype"], message["seed"], message["fixed"], message["device"]
            )
        inputs = groups[key].inputs(case, message["seed"] + 1 + number)
        with FlopCounterMode(display=False) as counter:
            own, exact, kind = groups[key].answers(inputs)
        work = _work(inputs, own, counter.get_total_flops() // 2, case["dtype"])  # it ran twice: in its dtype and in float64
        if not _sensible(own, exact):
            continue
        wrong = _judge(run, kind, own, exact, buffers, message, work["flops"] > 0)
        if wrong is not None:
            return {"wrong": {"reason": wrong[0], "message": f"{wrong[1]} ({case['label']})"}, "work": work}, []
    return {"wrong": None, "work": work}, []


def baseline(message: dict[str, Any], buffers: Sequence[Buffer]) -> tuple[dict[str, Any], list[Buffer]]:
    """Times of the reference itself on the last case, eager and compiled, as the candidate's are taken."""
    import random

    import torch._inductor.config

    torch._inductor.config.compile_threads = 1  # else it starts a pool of processes, which a sandbox bounds

    case = message["cases"][-1]
    drawn = Drawn(message["sources"][case["size"]], case["dtype"], message["seed"], message["fixed"], message["device"])
    sets = [drawn.inputs(case, message["seed"] + 1 + number) for number in range(message["timed"])]
    dice = random.Random(message["seed"])
    found: dict[str, Any] = {}
    with torch.no_grad():
        for name, model in (("eager", drawn.model), ("compiled", torch.compile(drawn.model, fullgraph=False))):
            with contextlib.suppress(Exception) if name == "compiled" else contextlib.nullcontext():
                found[name] = {
                    heat: measure(model, sets, message["calls"], cold=heat == "cold", dice=dice, device=message["device"])
                    for heat in ("cold", "warm")
                }
    return found, []


def _judge(
    run: dict[str, Any],
    kind: str,
    own: list[torch.Tensor],
    exact: list[torch.Tensor],
    buffers: Sequence[Buffer],
    message: dict[str, Any],
    products: bool,
) -> tuple[str, str] | None:
    heads = run.get("outputs")
    if run.get("kind") != kind or not isinstance(heads, list) or len(heads) != len(own):
        return "wrong-structure", f"forward returned {run.get('kind')} of {len(heads or [])}, expected {kind} of {len(own)}."
    tolerance = dict(message["tolerance"])
    if products and message["tf32"]:
        tolerance.setdefault("float32", TF32_RELATIVE)
    for number, (head, right, wide) in enumerate(zip(heads, own, exact, strict=True)):
        name = "The output" if kind == "tensor" else f"Output {number}"
        array = array_from(head, buffers[head["at"]])
        if array is None:
            return "no-answer", f"{name} does not fit its own description."
        if array.shape != tuple(right.shape):
            return "wrong-shape", f"{name} has shape {array.shape}, expected {tuple(right.shape)}."
        if array.dtype != dtype_name(right):
            return "wrong-dtype", f"{name} has dtype {array.dtype}, expected {dtype_name(right)}."
        if array.stride not in (tuple(right.stride()), row_major(array.shape)):
            return "wrong-stride", f"{name} has strides {array.stride}, expected {tuple(right.stride())}."
        found = values_differ(to_tensor(array, message["device"]), right, wide, name, tolerance, message["mismatched"])
        if found is not None:
            return found.reason, found.message
    return None


def _sensible(own: list[torch.Tensor], exact: list[torch.Tensor]) -> bool:
    """A case that overflows in its dtype alone judges nothing."""
    return all(bool((o.isfinite() == e.isfinite()).all()) for o, e in zip(own, exact, strict=True) if o.is_floating_point())


def _work(inputs: list[Any], own: list[torch.Tensor], flops: int, dtype: str) -> dict[str, Any]:
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    return {
        "output_bytes": sum(t.numel() * t.element_size() for t in own),
        "input_bytes": sum(t.numel() * t.element_size() for t in tensors if t.is_floating_point()),
        "flops": int(flops),
        "dtype": dtype,
        "indexed": any(not t.is_floating_point() for t in tensors),
    }
