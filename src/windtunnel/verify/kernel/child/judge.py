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

from windtunnel.verify.kernel.arrays import Buffer, row_major
from windtunnel.verify.kernel.child.clock import measure
from windtunnel.verify.kernel.child.compare import drawn_part, is_large, not_finite, sums_differ, values_differ
from windtunnel.verify.kernel.child.draw import Drawn
from windtunnel.verify.kernel.child.memory import give_back
from windtunnel.verify.kernel.child.products import ProductsByZero
from windtunnel.verify.kernel.child.tensors import dtype_name
from windtunnel.verify.kernel.child.turn import TIMING, waiting_for
from windtunnel.verify.kernel.compare import RELATIVE
from windtunnel.verify.kernel.gpu_lock import gpu_lock_of
from windtunnel.verify.kernel.hidden import WIDE
from windtunnel.verify.sandbox import FILES_FROM

TF32_RELATIVE = 2e-3  # of the result, where a task allows products in TF32
SUMS_RELATIVE = 2.0  # of a block's mean: errors of one sign are few


def main(message: dict[str, Any], buffers: Sequence[Buffer]) -> tuple[dict[str, Any], list[Buffer]]:
    """message: sources, cases, seed, fixed, device, tolerance, mismatched, tf32, runs, spans (where
    its outputs lie in the child's first file), turn (how many files after that are the lock).

    Returns 'wrong' (reason, message) of the first wrong case or None, and the work of one call of the last case.
    """
    _as_new()
    turns = gpu_lock_of(range(FILES_FROM + 1, FILES_FROM + 1 + message["turn"]))
    held = mmap.mmap(FILES_FROM, 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    with held as file, waiting_for(turns, then="judge"):
        view = memoryview(file)
        outputs = [view[at : at + size] for at, size in message["spans"]]
        try:
            return _first_wrong(message, outputs), []
        finally:
            give_back(message["device"])
            for part in (*outputs, view):
                part.release()


def _first_wrong(message: dict[str, Any], outputs: Sequence[Buffer]) -> dict[str, Any]:
    drawn, key, flops = None, ("", ""), 0
    work: dict[str, Any] = {}
    for number, (case, run) in enumerate(zip(message["cases"], message["runs"], strict=True)):
        if drawn is None or key != (case["size"], case["dtype"]):
            drawn, key, counted = None, (case["size"], case["dtype"]), False
            drawn = Drawn(
                message["sources"][key[0]],
                key[1],
                message["seed"],
                message["fixed"],
                message["device"],
                training=message["training"],
            )
        inputs = drawn.inputs(case, message["seed"] + 1 + number)
        own, exact, kind, done = _answers(drawn, inputs, count=not counted)
        flops, counted = done if not counted else flops, True
        work = _work(inputs, own, flops, case["dtype"])
        if not _sensible(own, exact):
            continue
        wide = case["variation"] in WIDE
        tf32 = message["tf32"] and flops > 0 and case["dtype"] == "float32" and "float32" not in message["tolerance"]
        coarse = drawn.coarse(inputs) if tf32 and not wide else [None] * len(own)
        part = message["seed"] + number
        answers = [*zip(own, exact, coarse, strict=True)]
        wrong = _judge(run, kind, answers, outputs, message, part=part, tf32=tf32, finite_alone=wide)
        if wrong is not None:
            return {"wrong": {"reason": wrong[0], "message": f"{wrong[1]} ({case['label']})"}, "work": work}
    return {"wrong": None, "work": work}


def _answers(drawn: Drawn, inputs: list[Any], *, count: bool) -> tuple[list[torch.Tensor], list[torch.Tensor], str, int]:
    """The reference's outputs in its dtype and in float64, and what it multiplies, where that is to be counted."""
    if not count:
        return (*drawn.answers(inputs), 0)
    with FlopCounterMode(display=False) as counter, ProductsByZero() as zeros:
        answers = drawn.answers(inputs)
    return (*answers, (counter.get_total_flops() - zeros.flops) // 2)  # it ran twice


def baseline(message: dict[str, Any], buffers: Sequence[Buffer]) -> tuple[dict[str, Any], list[Buffer]]:
    """Times of the reference itself on the last case, eager and compiled, as the candidate's are taken.

    Compiled and warmed up among others, timed alone. turn: how many of the child's files are the lock.
    """
    import torch._inductor.config

    torch._inductor.config.compile_threads = 1  # else it starts a pool of processes, which a sandbox bounds
    # Chosen when the worker imported it, which knew no folder that a child may write to.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(tempfile.gettempdir(), "inductor")
    _as_new()
    turns = gpu_lock_of(range(FILES_FROM, FILES_FROM + message["turn"]))
    with waiting_for(turns, then="baseline"), torch.no_grad():
        case = message["cases"][-1]
        drawn = Drawn(
            message["sources"][case["size"]],
            case["dtype"],
            message["seed"],
            message["fixed"],
            message["device"],
            training=message["training"],
        )
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
    with waiting_for(turns, alone=True, then=TIMING), torch.no_grad():
        for name, model in models.items():

            def call(which: int, model: Any = model) -> Any:
                return model(*sets[which])

            with contextlib.suppress(Exception) if name == "compiled" else contextlib.nullcontext():
                found[name] = {
                    heat: measure(call, len(sets), message["calls"], cold=heat == "cold", dice=dice, device=message["device"])
                    for heat in ("cold", "warm")
                }
    torch._dynamo.reset()
    give_back(message["device"])
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
    part: int,
    tf32: bool,
    finite_alone: bool,
) -> tuple[str, str] | None:
    """answers: of the reference in the case's dtype, in float64, and there with products in TF32 where they may be. finite_alone:
    a case that asks for numbers, not which: a softmax of huge values turns on their last bits. part: what blocks of large outputs
    were drawn by."""
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
        wrong = _metadata(head, right, name)
        if wrong is not None:
            return wrong
        if is_large(right):
            of_blocks = _given(buffers[head["sums"]], "float64", message["device"])
            relative = SUMS_RELATIVE * tolerance.get(head["dtype"], RELATIVE[head["dtype"]])
            found = None if finite_alone else sums_differ(of_blocks, right, exact, name, relative)
            if found is not None:
                return found.reason, found.message
            right, exact = (drawn_part(some, part) for some in (right, exact))
            coarse = None if coarse is None else drawn_part(coarse, part)
        given = _given(buffers[head["at"]], head["dtype"], message["device"]).reshape(right.shape)
        if finite_alone:
            found = not_finite(given, right, exact, name)
        else:
            found = values_differ(given, right, exact, name, tolerance, message["mismatched"], coarse)
        if found is not None:
            return found.reason, found.message
    return None


def _metadata(head: dict[str, Any], right: torch.Tensor, name: str) -> tuple[str, str] | None:
    shape, stride = tuple(head["shape"]), tuple(head["stride"])
    if shape != tuple(right.shape):
        return "wrong-shape", f"{name} has shape {shape}, expected {tuple(right.shape)}."
    if head["dtype"] != dtype_name(right):
        return "wrong-dtype", f"{name} has dtype {head['dtype']}, expected {dtype_name(right)}."
    if stride not in (tuple(right.stride()), row_major(shape)):
        return "wrong-stride", f"{name} has strides {stride}, expected {tuple(right.stride())}."
    return None


def _given(data: Buffer, dtype: str, device: str) -> torch.Tensor:
    """What was handed over, in one dimension."""
    if not len(data):
        return torch.empty(0, dtype=getattr(torch, dtype), device=device)
    return torch.frombuffer(data, dtype=getattr(torch, dtype)).to(device)


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
