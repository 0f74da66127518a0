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
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from windtunnel.verify.kernel.arrays import Array, Buffer
from windtunnel.verify.kernel.child.clock import measure
from windtunnel.verify.kernel.child.compare import (
    Leave,
    Rounding,
    drawn_part,
    is_flat,
    is_large,
    not_finite,
    sums_differ,
    values_differ,
)
from windtunnel.verify.kernel.child.draw import Drawn
from windtunnel.verify.kernel.child.group import Group
from windtunnel.verify.kernel.child.memory import giving_back
from windtunnel.verify.kernel.child.tensors import head_of
from windtunnel.verify.kernel.compare import OF_VALUES, RELATIVE, Difference, metadata
from windtunnel.verify.kernel.gpu_lock import TIMING, Turns, gpu_lock_of
from windtunnel.verify.kernel.hidden import WIDE
from windtunnel.verify.sandbox import FILES_FROM

TF32_RELATIVE = 2e-3  # of the result, where a task allows products in TF32
SUMS_RELATIVE = 2.0  # of a block's mean: errors of one sign are few


def main(message: dict[str, Any], buffers: Sequence[Buffer]) -> tuple[dict[str, Any], list[Buffer]]:
    """Compare what a candidate gave with the reference.

    message: sources, cases, seed, fixed, device, tolerance, mismatched, tf32, timed, runs, spans (where its outputs lie in the
    child's first file), alone (whether to see if a constant would be right), flops (what one call multiplies, by 'size dtype', as
    far as that is known), turn (how many files after the first are the lock).

    Returns:
        'wrong' (reason, message) of the first wrong case or None, 'fragile' (what is wrong where the reference itself is of no
        use, in words), the work of one call of the last case, the flops that are known now; 'flat' where a constant would be
        right; 'turn', what it waited for that.
    """
    _as_new()
    turns = Turns(gpu_lock_of(range(FILES_FROM + 1, FILES_FROM + 1 + message["turn"])))
    # Not the whole file, which is as long as any reply may be: where addresses are limited, that is all there are.
    length = max((at + size for at, size in message["spans"]), default=1)
    held = mmap.mmap(FILES_FROM, length, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    with held as file, turns.waiting_for(then="judge"):
        view = memoryview(file)
        outputs = [view[at : at + size] for at, size in message["spans"]]
        try:
            with giving_back(message["device"]):
                return _first_wrong(message, outputs) | {"turn": turns.waited}, []
        finally:
            for part in (*outputs, view):
                part.release()


def _first_wrong(message: dict[str, Any], outputs: Sequence[Buffer]) -> dict[str, Any]:
    group: Group | None = None
    work: dict[str, Any] = {}
    flops: dict[str, int] = {}
    fragile: list[str] = []
    # In the order in which they ran: cases of one group share a model, and the seed of each goes by its number.
    for number, (case, run) in enumerate(zip(message["cases"], message["runs"], strict=True)):
        key = (case["size"], case["dtype"])
        if group is None or key != group.key:
            group = None  # its memory goes before the next one's comes
            group = Group(message, *key)
        inputs = group.drawn.inputs(case, message["seed"] + 1 + number)
        own, kind = group.own(inputs)
        if group.flops is not None:
            flops[group.name] = group.flops
        work = _work(inputs, own, group.flops or 0, case["dtype"])
        if message["alone"] and case["variation"] == "plain":
            tolerance = dict(message["tolerance"]) | ({"float32": TF32_RELATIVE} if group.tf32 else {})
            if all(is_flat(mine, right, tolerance) for mine, right in zip(own, _as_exact(own), strict=True)):
                return {"wrong": None, "fragile": fragile, "work": work, "flops": flops, "flat": True}
        given = _Given(run, kind, outputs, message, message["seed"] + number, case["variation"] in WIDE)
        wrong = compared(given, group, case["variation"], inputs, own)
        if wrong is None:
            continue
        text = f"{wrong.words} ({case['label']})"
        if wrong.doubtful:
            fragile.append(f"{wrong.reason}: {text}")
            continue
        return {"wrong": {"reason": wrong.reason, "message": text}, "fragile": fragile, "work": work, "flops": flops}
    return {"wrong": None, "fragile": fragile, "work": work, "flops": flops}


class Found(NamedTuple):
    """What is wrong with one case's outputs. doubtful: these are not the task's own inputs, and too much for its reference."""

    reason: str
    words: str
    doubtful: bool


def compared(given: _Given, group: Group, variation: str, inputs: list[Any], own: list[torch.Tensor]) -> Found | None:
    """Return what is wrong, or None.

    The reference in float64 takes most of the GPU's time, and is not asked where what was given is as near to the reference in
    its own dtype as it would have to be to that. That one's error is small beside the tolerance, which else has more than this
    error added.
    """
    finite = all(bool(mine.isfinite().all()) for mine in own)
    if variation == "plain":
        group.finite = finite
    if finite:
        near = _as_exact(own)
        if _judged(given, group, variation, inputs, own, near, double=False) is None:
            return None
        # Gigabytes: the answers in float64 take their place.
        del near
    exact = group.drawn.exact(inputs)
    if not _sensible(own, exact):
        return None
    wrong = _judged(given, group, variation, inputs, own, exact, double=True)
    if wrong is None:
        return None
    errors = tuple(group.drawn.errors(inputs, own, exact)) if wrong.reason in OF_VALUES else ()
    if any(errors):
        wrong = _judged(given, group, variation, inputs, own, exact, double=True, leave=Leave(errors=errors))
        if wrong is None:
            return None
    if variation == "plain":
        return Found(wrong.reason, wrong.message, False)
    # Values beside the plain ones are the judge's idea, not the task's: where the reference itself cannot bear them, nobody is
    # refused for them.
    leave = Leave(special=group.finite and not finite, digits=group.is_rough(own, exact), errors=errors)
    doubtful = leave != Leave(errors=errors) and (
        _judged(given, group, variation, inputs, own, exact, double=True, leave=leave) is None
    )
    return Found(wrong.reason, wrong.message, doubtful)


def _judged(
    given: _Given,
    group: Group,
    variation: str,
    inputs: list[Any],
    own: list[torch.Tensor],
    exact: list[torch.Tensor],
    *,
    double: bool,
    leave: Leave | None = None,
) -> Difference | None:
    """Return what is wrong beside `exact`. double: that is in float64. leave: what is not demanded.

    What TF32 rounds off is taken from plain inputs first: these ones' own, which takes the reference another time, only where
    that would refuse. So it is with what another rounding of inputs of 16 bits does.
    """
    if not group.tf32 or given.finite_alone:
        wrong = given.judge(own, exact, [None] * len(own), tf32=group.tf32, leave=leave)
        if wrong is None or not double or not group.rounds_again or wrong.reason not in OF_VALUES:
            return wrong
        return given.judge(own, exact, group.roundings(variation, inputs, own, exact, given.part), tf32=False, leave=leave)
    known = group.known_roundings(variation)
    if known is not None and given.judge(own, exact, known, tf32=True, leave=leave) is None:
        return None
    roundings = group.roundings(variation, inputs, own, exact, given.part, double=double)
    return given.judge(own, exact, roundings, tf32=True, leave=leave)


def _as_exact(own: list[torch.Tensor]) -> list[torch.Tensor]:
    return [mine.double() if mine.is_floating_point() else mine for mine in own]


def baseline(message: dict[str, Any], buffers: Sequence[Buffer]) -> tuple[dict[str, Any], list[Buffer]]:
    """Time the reference itself on the last case, eager, compiled or both, as the candidate's calls are timed.

    Compiled and warmed up among others, timed alone. turn: how many of the child's files are the lock.
    """
    with giving_back(message["device"]):
        return _baseline(message), []


def _baseline(message: dict[str, Any]) -> dict[str, Any]:
    import torch._inductor.config

    torch._inductor.config.compile_threads = 1  # else it starts a pool of processes, which a sandbox bounds
    # Chosen when the worker imported it, which knew no folder that a child may write to.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(tempfile.gettempdir(), "inductor")
    _as_new()
    turns = Turns(gpu_lock_of(range(FILES_FROM, FILES_FROM + message["turn"])))
    with turns.waiting_for(then="baseline"), torch.no_grad():
        case = message["cases"][-1]
        drawn = Drawn.of(message, case["size"], case["dtype"])
        sets = [drawn.inputs(case, message["seed"] + 1 + number) for number in range(message["timed"])]
        # Once before anything is timed: libraries choose their algorithms at the first call.
        drawn.model(*sets[0])
        models = {"eager": drawn.model} if "eager" in message["baselines"] else {}
        if "compiled" in message["baselines"]:
            with contextlib.suppress(Exception):  # a reference need not compile
                compiled = torch.compile(drawn.model, fullgraph=False)
                compiled(*sets[0])
                models["compiled"] = compiled
        if message["device"] != "cpu":
            torch.cuda.synchronize()
    dice, found = random.Random(message["seed"]), {}
    with turns.waiting_for(alone=True, then=TIMING), torch.no_grad():
        for name, model in models.items():

            def call(which: int, model: Any = model) -> Any:
                return model(*sets[which])

            with contextlib.suppress(Exception) if name == "compiled" else contextlib.nullcontext():
                found[name] = {
                    heat: measure(call, len(sets), message["calls"], cold=heat == "cold", dice=dice, device=message["device"])
                    for heat in ("cold", "warm")
                }
    # What was compiled for this task would stay in a process that serves many.
    torch._dynamo.reset()
    return found


def warm() -> None:
    """Have PyTorch look up what it needs for its first product on a CPU, while the worker still sees the machine's processors."""
    torch.set_num_threads(1)
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        x = torch.ones(4, 4, dtype=dtype)
        torch.nn.functional.linear(x, x).softmax(-1)


def _as_new() -> None:
    """Set back what the reference of an earlier task may have set: this process serves many."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.set_grad_enabled(True)
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(False)


@dataclass(frozen=True)
class _Given:
    """What a candidate gave for one case.

    Attributes:
        part: what blocks of large outputs were drawn by.
        finite_alone: a case that asks for numbers, not which: a softmax of huge values turns on their last bits.
    """

    run: dict[str, Any]
    kind: str
    buffers: Sequence[Buffer]
    message: dict[str, Any]
    part: int
    finite_alone: bool

    def judge(
        self,
        owns: list[torch.Tensor],
        exacts: list[torch.Tensor],
        roundings: Sequence[Rounding | None],
        *,
        tf32: bool,
        leave: Leave | None = None,
    ) -> Difference | None:
        """Return what is wrong, or None.

        roundings: what TF32 rounds off, where products may be in it. leave: what is not demanded.
        """
        heads = self.run.get("outputs")
        given_number = len(heads) if isinstance(heads, list) else 0
        # What a list or tuple of one holds is not the tensor itself.
        if self.run.get("kind") != self.kind or given_number != len(owns):
            text = f"forward returned {self.run.get('kind')} of {given_number}, expected {self.kind} of {len(owns)}."
            return Difference("wrong-structure", text)
        assert isinstance(heads, list)
        tolerance = dict(self.message["tolerance"])
        if tf32:
            tolerance["float32"] = TF32_RELATIVE
        for number, (head, right, exact, rounding) in enumerate(zip(heads, owns, exacts, roundings, strict=True)):
            name = "The output" if self.kind == "tensor" else f"Output {number}"
            found = _metadata(head, right, name) or self._values(
                head, right, exact, rounding, name, tolerance, leave and leave.of(number)
            )
            if found is not None:
                return found
        return None

    def _values(
        self,
        head: dict[str, Any],
        right: torch.Tensor,
        exact: torch.Tensor,
        rounding: Rounding | None,
        name: str,
        tolerance: dict[str, float],
        leave: Leave | None,
    ) -> Difference | None:
        device, found = self.message["device"], None
        if is_large(right):
            of_blocks = _given(self.buffers[head["sums"]], "float64", device)
            relative = SUMS_RELATIVE * tolerance.get(head["dtype"], RELATIVE[head["dtype"]])
            found = None if self.finite_alone else sums_differ(of_blocks, right, exact, name, relative)
            right, exact = (drawn_part(some, self.part) for some in (right, exact))
        if found is None:
            given = _given(self.buffers[head["at"]], head["dtype"], device).reshape(right.shape)
            if self.finite_alone:
                found = not_finite(given, right, exact, name, leave)
            else:
                found = values_differ(given, right, exact, name, tolerance, self.message["mismatched"], rounding, leave)
        return found


def _metadata(head: dict[str, Any], right: torch.Tensor, name: str) -> Difference | None:
    given, own = (Array(one["dtype"], tuple(one["shape"]), tuple(one["stride"]), b"") for one in (head, head_of(right)))
    return metadata(given, own, name)


def _given(data: Buffer, dtype: str, device: str) -> torch.Tensor:
    """Return what was handed over, in one dimension."""
    if not len(data):
        return torch.empty(0, dtype=getattr(torch, dtype), device=device)
    return torch.frombuffer(data, dtype=getattr(torch, dtype)).to(device)


def _sensible(own: list[torch.Tensor], exact: list[torch.Tensor]) -> bool:
    """Return whether a case judges anything: not one that overflows in its dtype alone."""
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
