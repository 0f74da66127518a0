"""Replay seen from the parent: the job for the clean child, from checked plans and the judge's own inputs."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from windtunnel.verify.kernel.arrays import Array, Buffer
from windtunnel.verify.kernel.plan import Operation, Plan
from windtunnel.verify.kernel.plan.operations import work as work_of_operation
from windtunnel.verify.kernel.plan.schema import TensorValue, launches_of
from windtunnel.verify.kernel.prepared import Batch
from windtunnel.verify.kernel.record import HostForm, form_of
from windtunnel.verify.kernel.task import Task
from windtunnel.verify.kernel.tiny import LIMITS
from windtunnel.verify.sandbox import Limits, SandboxJob

ENTRY = "windtunnel.verify.kernel.child.tiny:main"


def replay_job(
    plans: Sequence[Plan],
    forms: Sequence[HostForm],
    task: Task,
    batch: Batch,
    limits: Limits = LIMITS,
    seconds: float | None = None,
) -> SandboxJob:
    """Return everything the child needs to carry the plans out on every case; no right answer is among it.

    The runs come back in the order of `tiny.in_groups`.

    limits: of the child. seconds: of CPU time, after which no other case is begun.
    """
    buffers: list[Buffer] = []

    def keep(array: Array) -> dict[str, Any]:
        buffers.append(array.data)
        return {**array.head(), "at": len(buffers) - 1}

    groups: list[dict[str, Any]] = []
    held: dict[tuple[str, str], dict[str, Any]] = {}
    for form in forms:
        group: dict[str, Any] = {"plan": len(groups), "parameters": {}, "cases": []}
        for ready in batch.ready:
            if form_of(ready) != form:
                continue
            # Cases of a group have the same parameters: they are sent once, as they may be most of the bytes.
            if ready.case.group not in held:
                pairs = zip(ready.names, ready.parameters, strict=True)
                held[ready.case.group] = {name: keep(array) for name, array in pairs}
            group["parameters"] = held[ready.case.group]
            fresh = iter(ready.inputs)
            inputs = [keep(next(fresh)) if entry is None else None for entry in ready.arguments]
            group["cases"].append({"label": ready.case.label(), "inputs": inputs})
        groups.append(group)
    message = {
        "plans": [plan.model_dump_json() for plan in plans],
        "groups": groups,
        "inplace": list(task.inplace),
        "training": task.training,
        "seconds": seconds,
        # Drawn here and now, so that nothing that was recorded before could be made for it.
        "seed": secrets.randbits(32),
    }
    return SandboxJob(ENTRY, message, buffers, limits)


def share(plan: Plan, work: int) -> float:
    """Return what part of the work a plan's own kernels do: all but what its operations of PyTorch's compute.

    work: of the reference, 0 where it was not counted: then what PyTorch computes is set against the elements that the kernels
    are given.
    """
    steps = list(zip(plan.steps, plan.times(), strict=True))
    theirs = sum(work_of_operation(step) * times for step, times in steps if isinstance(step, Operation))
    given = sum(
        value.tensor.elements * times
        for step, times in steps
        for launch in launches_of(step)
        for value in launch.arguments.values()
        if isinstance(value, TensorValue)
    )
    # Never less than what PyTorch did, or a share would be negative.
    whole = max(work, theirs + given if not work else theirs)
    return round(1 - theirs / whole, 4) if whole else 1.0
