"""Why a workload cannot run on a rig, with the arithmetic."""

from __future__ import annotations

import math

from windtunnel.rig import Rig

from .ledger import Memory
from .memory import static_bytes
from .search import Candidate
from .totals import Totals
from .workload import Workload

GB = 1e9
TB = 1e12


def impossible(work: Workload) -> str | None:
    """What no rig can do: train weights that are held in less than 16 bits."""
    if work.adapter is not None or work.weights == "bf16":
        return None
    step = {"fp8": "1/16 of a weight", "int8": "1/127 of a row's largest", "int4": "1/7 of a group's largest"}[work.weights]
    return (
        f"model.weights: {work.weights} with model.adapter: null asks for all weights to be trained in {work.weights}, which is"
        f" not a thing: neighbouring {work.weights} values lie about {step} apart, an update at a fine-tuning learning rate is a"
        " thousandth of that and is rounded away. 8- and 4-bit weights are for frozen models under an adapter;"
        " optimizer states can be int8 (states: int8)"
    )


def memory_reason(sums: Totals, candidate: Candidate, rig: Rig) -> str:
    """The states against the rig's memory, then the rank that needs most, component by component."""
    work = sums.work
    ranks, limit = candidate.layout.ranks, candidate.limit_gib
    count = f"{work.shape.name} has {work.shape.parameters / 1e9:,.1f} B parameters"
    if work.adapter is None:
        held = static_bytes(sums, 1)
        each = sum(held.values()) / sums.trained
        states = f"full fine-tuning holds {_bytes(sum(held.values()))} of weights and optimizer states ({each:.3g} B each)"
    else:
        states = f"its frozen weights in {work.weights} are {_bytes(sums.frozen)}"
    # Rounded down: a rig never has more than is said.
    usable = f"{rig.name} has {_bytes(ranks * limit * 2**30, down=True)} that may be used"
    needs = f"each rank needs {candidate.peak_gib:,.1f} GiB ({parts(candidate.memory)}) in the leanest layout"
    reason = f"{count}; {states}, {usable}; {needs}; the limit is {limit:.1f} GiB"
    if candidate.host_gib > candidate.host_limit_gib:
        reason += f"; states in CPU memory need {candidate.host_gib:,.0f} GiB a node, {candidate.host_limit_gib:,.0f} may be used"
    return reason


def parts(memory: Memory) -> str:
    """Components of at least 0.05 GiB, the largest first."""
    ordered = sorted(memory.components.items(), key=lambda item: -item[1])
    return " + ".join(f"{name.replace('_', ' ')} {gib:,.1f}" for name, gib in ordered if gib >= 0.05)


def _bytes(size: float, down: bool = False) -> str:
    number, unit = (size / TB, "TB") if size >= TB / 2 else (size / GB, "GB")
    digits = 2 if unit == "TB" else 1
    if down:
        number = math.floor(number * 10**digits) / 10**digits
    return f"{number:,.{digits}f} {unit}"
