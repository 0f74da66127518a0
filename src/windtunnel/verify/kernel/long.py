"""Tiny sizes with one long dimension each: longer than any block of the candidate's kernels.

A loop over blocks that does not move on, or a grid that leaves the rest out, shows there without a GPU. A candidate's blocks are
the whole numbers among the constants of its plans. Which lengths are run is decided by the launches that its plans make there:
the longest of a few for which the interpreter has time.
"""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace

from windtunnel.recipe import UserError
from windtunnel.verify.kernel.compare import is_flat
from windtunnel.verify.kernel.guess import is_batch
from windtunnel.verify.kernel.hidden import Case
from windtunnel.verify.kernel.plan import Launch, Plan
from windtunnel.verify.kernel.prepared import Batch, Ready, ReferenceBroken, prepare
from windtunnel.verify.kernel.record import HostForm, form_of
from windtunnel.verify.kernel.task import Task
from windtunnel.verify.sandbox import Runner

# Of a candidate that names none, or a huge number that is no block.
LEAST_BLOCK, MOST_BLOCK = 64, 1024
MOST_DIMENSIONS = 6
MOST_PROGRAMS = 600  # of a plan at one of these sizes
OUT_OF_PROPORTION = 4.0  # how much faster programs may grow than the dimension, before that is no reason not to look


def block_of(plans: Sequence[Plan]) -> int:
    """Return the power of two that no constant of a kernel is above, within bounds."""
    found = LEAST_BLOCK
    for plan in plans:
        for launch in plan.launches():
            names = plan.kernels[launch.launch].constexprs
            for name in names:
                value = launch.arguments.get(name)
                if type(value) is int and value <= MOST_BLOCK:
                    found = max(found, value)
    return 1 << (found - 1).bit_length()


def programs_of(plan: Plan) -> int:
    """Return the programs of all launches; of several configurations that with the most."""

    def count(launches: Sequence[object]) -> int:
        return sum(math.prod(one.grid) for one in launches if isinstance(one, Launch))

    most = [max(map(count, step.choice)) if hasattr(step, "choice") else count([step]) for step in plan.steps]
    return sum(map(operator.mul, most, plan.times()))


def long_sizes(task: Task, block: int) -> dict[str, Mapping[str, int | float]]:
    """By name the sizes to choose from: each number that was made smaller, in turn, at several lengths, the longest first.

    No length is above the file's own: a candidate need not serve it.
    """
    tiny, full = task.sizes.get("tiny", {}), _full_numbers(task)
    found: dict[str, Mapping[str, int | float]] = {}
    names = [name for name, value in tiny.items() if type(value) is int and type(full.get(name)) is int and full[name] > value]
    for name in [name for name in names if not is_batch(name)][:MOST_DIMENSIONS]:
        most = int(full[name])
        for length in sorted({min(length, most) for length in _lengths(task, block)}, reverse=True):
            if length > tiny[name]:
                found[f"tiny_long_{name}_{length}"] = {**tiny, name: length}
    return found


def _lengths(task: Task, block: int) -> tuple[int, ...]:
    """Return lengths to try: ragged ones, but of a file whose tiny sizes were guessed.

    As KernelBench's it may count on what divides.
    """
    return (2 * block, block + block // 2) if task.sizes.get("full") == {} else (2 * block + 3, block + 3)


def _full_numbers(task: Task) -> dict[str, int | float]:
    from windtunnel.literals import numbers

    return {**numbers(task.source), **task.sizes.get("full", {})}


def dimension_of(size: str) -> str:
    """Return 'K' of 'tiny_long_K_259'."""
    return size.removeprefix("tiny_long_").rpartition("_")[0]


class LongSizes:
    """What a task's references say at long sizes, kept for all its candidates. Safe to call from several threads."""

    def __init__(self, task: Task, runner: Runner) -> None:
        self.task, self.runner = task, runner
        self._lock = threading.Lock()
        self._forms: dict[int, list[HostForm]] = {}
        self._kept: dict[str, Ready] = {}

    def forms(self, block: int) -> list[HostForm]:
        """Return the forms at the sizes to choose from: those at which the reference runs."""
        with self._lock:
            if block not in self._forms:
                self._forms[block] = [*map(form_of, self._ready(long_sizes(self.task, block)))]
            return self._forms[block]

    def batch(self, sizes: Sequence[str]) -> Batch:
        """Return inputs and right answers at sizes that were given by `forms`."""
        with self._lock:
            return Batch([self._kept[size] for size in sizes])

    def _ready(self, sizes: Mapping[str, Mapping[str, int | float]]) -> list[Ready]:
        """Return what the reference says at those sizes at which it runs."""
        new = {size: values for size, values in sizes.items() if size not in self._kept}
        if new and not self._add(new) and len(new) > 1:  # one that is too much takes the others with it
            for size, values in new.items():
                self._add({size: values})
        return [self._kept[size] for size in sizes if size in self._kept]

    def _add(self, sizes: Mapping[str, Mapping[str, int | float]]) -> bool:
        """Keep what the reference says at sizes, asked in one child; returns whether that came to its end."""
        task = replace(self.task, sizes={**self.task.sizes, **sizes}, dtypes=self.task.dtypes[:1])
        try:
            batch = prepare(task, self.runner, [Case(size, task.dtypes[0], "plain", task.training) for size in sizes])
        except (UserError, ReferenceBroken):
            return False
        self._kept |= {ready.case.size: ready for ready in batch.ready if not is_flat(ready, task)}
        return True


def chosen(forms: Sequence[HostForm], plans: Sequence[Plan], tiny: Plan) -> list[int]:
    """Return which of the forms are run: of each dimension the first for which there is time. tiny: the plan at the tiny size."""
    found: dict[str, int] = {}
    for number, (form, plan) in enumerate(zip(forms, plans, strict=True)):
        if programs_of(plan) <= max(MOST_PROGRAMS, OUT_OF_PROPORTION * programs_of(tiny)):
            found.setdefault(dimension_of(form.size), number)
    return list(found.values())
