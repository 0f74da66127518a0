"""The compile stage seen from the parent: which configurations of tuned kernels are compiled, and what the compiler made.

Compiling is most of what a candidate costs, and a tuned kernel may have a hundred configurations, of which as many run as there
are cases. So that many are drawn, by the operating system's dice, and no others compiled; those that are to be timed later.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from windtunnel.verify.kernel.plan import Choice, Launch, Plan
from windtunnel.verify.kernel.record import HostForm
from windtunnel.verify.kernel.tiny import LIMITS
from windtunnel.verify.sandbox import MiB, Outcome, SandboxJob

COMPILE_ENTRY = "windtunnel.verify.kernel.child.compile:main"
# ptxas is another program.
BINARY_LIMITS = replace(
    LIMITS, wall_seconds=240, cpu_seconds=120, processes=16, threads=128, file_bytes=256 * MiB, idle_seconds=0
)

# Number of a step with a choice → some of its configurations.
Numbers = Mapping[int, tuple[int, ...]]
# Size and dtype of a plan.
Key = tuple[str, str]


@dataclass(frozen=True)
class Compiled:
    """What the compiler made of a candidate's plans.

    Attributes:
        files: key and name of each, with its bytes in buffers.
        among: the configurations that were made and that the GPU has room for, the ones to run.
        tried: those, and the ones that it has none for.
    """

    files: Sequence[Sequence[str]] = ()
    buffers: Sequence[bytes] = ()
    among: Mapping[Key, Numbers] = field(default_factory=dict)
    tried: Mapping[Key, Numbers] = field(default_factory=dict)

    def lacks(self, key: Key, plan: Plan) -> bool:
        """Return whether a plan has configurations that nobody tried to compile. Where nothing was compiled, none is missed."""
        return key in self.tried and bool(drawn_orders(plan, self.tried[key]))

    def and_(self, later: Compiled) -> Compiled:
        """Return this with what was made later."""
        both = {name: _united(getattr(self, name), getattr(later, name)) for name in ("among", "tried")}
        return Compiled([*self.files, *later.files], [*self.buffers, *later.buffers], **both)


def drawn_orders(plan: Plan, tried: Numbers | None = None) -> dict[int, list[int]]:
    """Return in which order to try each choice's configurations, at random, without those that were tried.

    Ones alike come last, and choices of the same kernel have the same order, since what was compiled for one serves the other. A
    choice that was tried to its end is left out.
    """
    # Not a seeded one: a candidate that could foretell the draw would make one configuration right.
    dice, known = random.SystemRandom(), dict[tuple[int, int], list[int]]()
    orders = {}
    for number, step in enumerate(plan.steps):
        if not isinstance(step, Choice):
            continue
        kernel = next((inner.launch for one in step.choice for inner in one if isinstance(inner, Launch)), -1)
        count = len(step.choice)
        order = _unlike_first(known.setdefault((kernel, count), dice.sample(range(count), count)), step)
        left = [at for at in order if at not in (tried or {}).get(number, ())]
        if left or tried is None:
            orders[number] = left
    return orders


def _unlike_first(order: Sequence[int], step: Choice) -> list[int]:
    seen: dict[tuple[str, ...], int] = {}
    for at in order:
        seen.setdefault(tuple(inner.model_dump_json() for inner in step.choice[at]), at)
    # Configurations that differ in nothing would be compiled and run twice, and others not at all.
    firsts = set(seen.values())
    return sorted(order, key=lambda at: at not in firsts)


def compile_job(
    plans: Sequence[Plan],
    forms: Sequence[HostForm],
    capability: int,
    *,
    seconds: float | None = None,
    binary: bool = False,
    wanted: Sequence[int] | None = None,
    tried: Mapping[Key, Numbers] | None = None,
) -> SandboxJob:
    """Return everything the compiling child needs: plans, of which it compiles each kernel for a GPU.

    Args:
        plans: of one candidate.
        forms: of the plans, in order.
        capability: of the GPU, 90 for Hopper.
        seconds: of the CPU, for each kernel; None: as many as all may take.
        binary: whether to go on to the end, as a GPU runs it.
        wanted: of each plan's choices how many configurations, one where this is None.
        tried: those that were tried before, after which all others are wanted, and none needed.
    """
    orders = [drawn_orders(plan, (tried or {}).get(form.group)) for plan, form in zip(plans, forms, strict=True)]
    message: dict[str, Any] = {
        "plans": [plan.model_dump_json() for plan in plans],
        "dtypes": [form.dtype for form in forms],
        "labels": [form.label() for form in forms],
        "capability": capability,
        "orders": [[[step, order] for step, order in one.items()] for one in orders],
        "wanted": list(wanted or [1] * len(plans)),
        "others": tried is not None,
        "binary": binary,
        "kernel_seconds": seconds,
    }
    return SandboxJob(COMPILE_ENTRY, message, (), BINARY_LIMITS if binary else LIMITS)


def read_compiled(outcome: Outcome, plans: Sequence[Plan], forms: Sequence[HostForm]) -> Compiled:
    """Return what a child that came to its end made.

    Of what it says of configurations nothing is believed but numbers that exist.
    """
    among: dict[Key, dict[int, tuple[int, ...]]] = {}
    tried: dict[Key, dict[int, tuple[int, ...]]] = {}
    said = outcome.message.get("configurations", ())
    for plan, form, own in zip(plans, forms, said, strict=False):
        key = form.group
        among[key], tried[key] = {}, {}
        for number, fits, misfits in own:
            step = plan.steps[number]
            assert isinstance(step, Choice), f"step {number} is no choice"
            exist = set(range(len(step.choice)))
            among[key][number] = tuple(sorted(exist & set(fits)))
            tried[key][number] = tuple(sorted(exist & {*fits, *misfits}))
    return Compiled(outcome.message.get("files", ()), outcome.buffers, among, tried)


def _united(one: Mapping[Key, Numbers], other: Mapping[Key, Numbers]) -> dict[Key, Numbers]:
    found = dict(one)
    for key, numbers in other.items():
        known = found.get(key, {})
        found[key] = {
            number: tuple(sorted({*known.get(number, ()), *numbers.get(number, ())})) for number in {**known, **numbers}
        }
    return found
