"""Judges a candidate's full-size outputs in a trusted child, after the candidate's process has ended. Imports torch.

The reference's answers exist only here, so that no candidate can find them in a GPU's memory.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import tempfile
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from windtunnel.verify.kernel.arrays import Array, Buffer, array_from, row_major
from windtunnel.verify.kernel.child.clock import measure
from windtunnel.verify.kernel.child.compare import not_finite, values_differ
from windtunnel.verify.kernel.child.draw import Drawn
from windtunnel.verify.kernel.child.tensors import dtype_name, to_tensor
from windtunnel.verify.kernel.child.turn import TIMING, waiting_for
from windtunnel.verify.kernel.child.zeros import ProductsByZero
from windtunnel.verify.kernel.gpu_lock import gpu_lock_of
from windtunnel.verify.kernel.hidden import WIDE
from windtunnel.verify.sandbox import FILES_FROM

TF32_RELATIVE = 2e-3  # of the result, where a task allows products in TF32


def main(message: dict[str, Any], buffers: Sequence[Buffer]) -> tuple[dict[str, Any], list[Buffer]]:
    """message: sources, cases, seed, fixed, device, tolerance, mismatched, tf32, runs (the candidate's, untrusted), spans (where
    its outputs lie in the child's first file), turn (how many files after that are the lock).

    Returns 'wrong' (reason, message) of the first wrong case or None, and the work of one call of the last case.
    """
    _as_new()
    turns = gpu_lock_of(range(FILES_FROM + 1, FILES_FROM + 1 + message["turn"]))
    held = mmap.mmap(FILES_FROM, 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    with held as file, waiting_for(turns, again=True, then="judge"):
        view = memoryview(file)
        outputs = [view[at : at + size] for at, size in message["spans"]]
        try:
            return _first_wrong(message, outputs), []
        finally:
            for part in (*outputs, view):
                part.release()


def _first_wrong(message: dict[str, Any], outputs: Sequence[Buffer]) -> dict[str, Any]:
    groups: dict[tuple[str, str], Drawn] = {}
    work: dict[str, Any] = {}
    for number, (case, run) in enumerate(zip(message["cases"], message["runs"], strict=True)):
        key = (case["size"], case["dtype"])
        if key not in groups:
            groups[key] = Drawn(
                message["sources"][case["size"]], case["dtype"], message["seed"], message["fixed"], message["device"]
            )
        inputs = groups[key].inputs(case, message["seed"] + 1 + number)
        with FlopCounterMode(display=False) as counter, ProductsByZero() as zeros:
            own, exact, kind = groups[key].answers(inputs)
        flops = counter.get_total_flops() - zeros.flops
        work = _work(inputs, own, flops // 2, case["dtype"])  # it ran twice: in its dtype and in float64
        if not _sensible(own, exact):
            continue
        wide = case["variation"] in WIDE
        tf32 = message["tf32"] and work["flops"] > 0 and case["dtype"] == "float32" and "float32" not in message["tolerance"]
        coarse = groups[key].coarse(inputs) if tf32 and not wide else [None] * len(own)
        wrong = _judge(run, kind, [*zip(own, exact, coarse, strict=True)], outputs, message, tf32=tf32, finite_alone=wide)
        if wrong is not None:
            return {"wrong": {"reason": wrong[0], "message": f"{wrong[1]} ({case['label']})"}, "work": work}
    return {"wrong": None, "work": work}


def baseline(message: dict[str, Any], buffers: Sequence[Buffer]) -> tuple[dict[str, Any], list[Buffer]]:
    """Times of the reference itself on the last case, eager and compiled, as the candidate's are taken.

    Compiled and warmed up among others; timed while no process that holds a candidate lives. turn: as in `main`, the first pair
    of files; the next pair is that lock of the candidates' processes.
    """
    import torch._inductor.config

    torch._inductor.config.compile_threads = 1  # else it starts a pool of processes, which a sandbox bounds
    # Chosen when the worker imported it, which knew no folder that a child may write to.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(tempfile.gettempdir(), "inductor")
    _as_new()
    fds = range(FILES_FROM, FILES_FROM + 2 * message["turn"])
    turns, candidates = gpu_lock_of(fds[: message["turn"]]), gpu_lock_of(fds[message["turn"] :])
    with waiting_for(turns, then="baseline"), torch.no_grad():
        case = message["cases"][-1]
        drawn = Drawn(message["sources"][case["size"]], case["dtype"], message["seed"], message["fixed"], message["device"])
        sets = [drawn.inputs(case, message["seed"] + 1 + number) for number in range(message["timed"])]
        drawn.model(*sets[0])
        models = {"eager": drawn.model}
        with contextlib.suppress(Exception):  # a reference need not compile
            compiled = torch.compile(drawn.model, fullgraph=False)
            compiled(*sets[0])
            models["compiled"] = compiled
        if message["device"] != "cpu":
            torch.cuda.synchronize()
    dice, found = random.Random(message["seed"]), {}
    with waiting_for(candidates, alone=True), waiting_for(turns, alone=True, then=TIMING), torch.no_grad():
        for name, model in models.items():
            with contextlib.suppress(Exception) if name == "compiled" else contextlib.nullcontext():
                found[name] = {
                    heat: measure(model, sets, message["calls"], cold=heat == "cold", dice=dice, device=message["device"])
                    for heat in ("cold", "warm")
                }
    torch._dynamo.reset()
    return found, []


def warm() -> None:
    """In the worker, while it can still see the machine's processors: what PyTorch looks up on its first product on a CPU."""
    torch.set_num_threads(1)
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        x = torch.ones(4, 4, dtype=dtype)
        torch.nn.functional.linear(x, x).softmax(-1)


def _as_new() -> None:
    """This process serves many tasks: what the reference of an earlier one may have set is set back."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.set_grad_enabled(True)
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(False)


def _judge(
    run: dict[str, Any],
    kind: str,
    answers: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]],
    buffers: Sequence[Buffer],
    message: dict[str, Any],
    *,
    tf32: bool,
    finite_alone: bool,
) -> tuple[str, str] | None:
    """answers: of the reference in the case's dtype, in float64, and there with products in TF32 where they may be. finite_alone:
    a case that asks for numbers, not which: a softmax of huge values turns on their last bits."""
    heads = run.get("outputs")
    given_number = len(heads) if isinstance(heads, list) else 0
    if run.get("kind") != kind or given_number != len(answers):
        return "wrong-structure", f"forward returned {run.get('kind')} of {given_number}, expected {kind} of {len(answers)}."
    assert isinstance(heads, list)
    tolerance = dict(message["tolerance"])
    if tf32:
        tolerance["float32"] = TF32_RELATIVE
    for number, (head, (right, exact, coarse)) in enumerate(zip(heads, answers, strict=True)):
        name = "The output" if kind == "tensor" else f"Output {number}"
        array = _array(head, buffers)
        if array is None:
            return "no-answer", f"{name} does not fit its own description."
        if array.shape != tuple(right.shape):
            return "wrong-shape", f"{name} has shape {array.shape}, expected {tuple(right.shape)}."
        if array.dtype != dtype_name(right):
            return "wrong-dtype", f"{name} has dtype {array.dtype}, expected {dtype_name(right)}."
        if array.stride not in (tuple(right.stride()), row_major(array.shape)):
            return "wrong-stride", f"{name} has strides {array.stride}, expected {tuple(right.stride())}."
        given = to_tensor(array, message["device"])
        if finite_alone:
            found = not_finite(given, right, exact, name)
        else:
            found = values_differ(given, right, exact, name, tolerance, message["mismatched"], coarse)
        if found is not None:
            return found.reason, found.message
    return None


def _array(head: object, buffers: Sequence[Buffer]) -> Array | None:
    """What the candidate's process describes, None where the description does not fit."""
    at = head.get("at") if isinstance(head, dict) else None
    return array_from(head, buffers[at]) if type(at) is int and 0 <= at < len(buffers) else None


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
