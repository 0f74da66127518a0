"""The stages that plans go through after they are recorded: compile, tiny and long sizes; full shapes and timing on a GPU.

Where a GPU runs them, the kernels of the first form alone are compiled before the interpreter looks at them. What is wrong there
runs once on the GPU. The other forms are compiled for what is still right.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from windtunnel.verify.kernel.compiling import Compiled, Key, compile_job, read_compiled
from windtunnel.verify.kernel.gpu import GpuResult, Runs
from windtunnel.verify.kernel.long import block_of, chosen
from windtunnel.verify.kernel.plan import Plan
from windtunnel.verify.kernel.prepared import Batch, Ready
from windtunnel.verify.kernel.record import HostForm, form_of
from windtunnel.verify.kernel.replay import replay_job
from windtunnel.verify.kernel.tiny import LIMITS, Finding, errors_of, judge_compile, judge_tiny
from windtunnel.verify.sandbox import Outcome

if TYPE_CHECKING:
    from windtunnel.verify.kernel.funnel import KernelVerifier

LONG_SECONDS = 8.0  # of the CPU, for long sizes
# Where a GPU judges values, the interpreter looks for races and accesses outside of tensors, as far as it comes in this time.
GLANCE_SECONDS, GLANCE_AT_MOST = 2.0, 8.0

# Floats of fewer than 32 bits: as dtypes of buffers, in casts, constants and texts for the compiler; and what makes a dtype of
# any text, or floats of integers.
NARROW = re.compile(r"float16|float8|fp16|bf16|fp8|fp4|half|e\dm\d|int16|int8|\bdtype\(|language\.dtype\b", re.IGNORECASE)

Planned = Callable[[list[HostForm]], tuple[list[Plan], Finding | None]]


class Clock:
    """Seconds by stage."""

    def __init__(self) -> None:
        self.times: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Add what passes in the block to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(stage, time.perf_counter() - start)

    def add(self, stage: str, seconds: float) -> None:
        """Add seconds to a stage."""
        self.times[stage] = self.times.get(stage, 0.0) + seconds


@dataclass
class CandidateStages:
    """The stages of one candidate after its plans are there.

    Attributes:
        seen: variations of the inputs that the interpreter ran.
        evidence: what the stages leave.
    """

    of: KernelVerifier
    planned: Planned
    plans: list[Plan]
    forms: list[HostForm]
    full_plans: list[Plan]
    full_forms: list[HostForm]
    batch: Batch
    clock: Clock
    compiled: Compiled | None = None
    seen: set[str] = field(default_factory=set)
    evidence: dict[str, Any] = field(default_factory=lambda: {"kernels": {}, "fragile": []})

    def compile(self) -> Finding | None:
        """Compile each kernel for the GPU; where one is to run them, those of the first form to the end, and no others yet.

        Of what a model answers half is wrong, and shows it with the first form: compiling the others is most of the work.
        """
        if self.of.compiler is None:
            return None
        if self.of.gpu is None or not self.full_plans:
            return self._keep(self._made(self.plans, self.forms))
        return self._keep(self._made_for_gpu(slice(0, 1)))

    def compile_rest(self) -> Finding | None:
        """Compile the kernels of all other forms that a GPU is to run, to the end."""
        if self.of.compiler is None or len(self.full_plans) < 2:
            return None
        return self._keep(self._made_for_gpu(slice(1, None)))

    def _made_for_gpu(self, which: slice) -> Compiled | Finding:
        assert self.of.gpu is not None
        plans, forms = self.full_plans[which], self.full_forms[which]
        # Where the interpreter does not get as far, two runs of one configuration are no harm.
        counts = self.of.gpu.counts(self.of.task.variations if self.forms else ())
        return self._made(plans, forms, binary=True, wanted=[counts[form.group] for form in forms])

    def _keep(self, made: Compiled | Finding) -> Finding | None:
        if isinstance(made, Finding):
            return made
        self.compiled = made if self.compiled is None else self.compiled.and_(made)
        return None

    def _made(self, plans: list[Plan], forms: list[HostForm], **how: Any) -> Compiled | Finding:
        assert self.of.compiler is not None
        with self.clock("compile"):
            job = compile_job(plans, forms, self.of.capability, seconds=self.of.task.compile_seconds, **how)
            outcome = self.of.compiler.run(job)
        found = judge_compile(outcome)
        if found is not None:
            return found
        self.evidence["kernels"].setdefault("compiled", {}).update(outcome.message.get("kernels", {}))
        return read_compiled(outcome, plans, forms)

    def _rest(self, known: Compiled, timed: Key) -> Compiled | Finding:
        """Return what was compiled, with every other configuration of the plan that is timed."""
        at = next(at for at, form in enumerate(self.full_forms) if form.group == timed)
        made = self._made(self.full_plans[at : at + 1], self.full_forms[at : at + 1], binary=True, tried=known.tried)
        return made if isinstance(made, Finding) else known.and_(made)

    def tiny(self) -> Finding | None:
        """On the interpreter: values, races, accesses outside of tensors; only a glance where a GPU runs the plans too."""
        if not self.forms:
            self.evidence["cases"] = []
            return None
        outcome, order, found = self._replayed(self.plans, self.forms, self.batch, GLANCE_SECONDS if self.of.glances else None)
        # A kernel made for the file's own sizes may be wrong at tiny ones, and yet be right there.
        if self.of.glances and found is not None and _of_the_size(found, outcome, self._left_to_gpu()):
            self.evidence |= {"cases": [], "tiny": found.message}
            return None
        if found is None:
            self.evidence["errors"] = errors_of(outcome, self.of.task, order)
            self.evidence["kernels"]["launches"] = outcome.message.get("kernels", {})
            self.evidence["cases"] = [ready.case.label() for ready in order]
            self.seen = {ready.case.variation for ready in order if ready.case.dtype == self.of.task.dtypes[0]}
        return found

    def _left_to_gpu(self) -> set[str]:
        """Return with which values a kernel may be wrong at tiny sizes, since a GPU judges them at the file's own.

        At tiny sizes that were guessed nobody promised to be right, and which of a tuner's configurations is run with which
        values is chance.
        """
        assert self.of.gpu is not None
        return {case.variation for case in self.of.gpu.runs().cases} if self.of.task.guessed else {"plain"}

    def long(self) -> Finding | None:
        """Run the plans where one dimension is longer than any block, unless a GPU runs sizes that are; returns what is wrong."""
        if self.of.glances:
            return None
        sizes, block = self.of.long, block_of(self.plans)
        with self.clock("reference"):
            forms = sizes.forms(block)
        with self.clock("record"):
            plans, found = self.planned(forms) if forms else ([], None)
        if found is not None:
            return found
        kept = chosen(forms, plans, self.plans[0])
        if not kept:
            return None
        batch = sizes.batch([forms[number].size for number in kept])
        few = [plans[number] for number in kept], [forms[number] for number in kept]
        outcome, order, found = self._replayed(*few, batch, LONG_SECONDS)
        if found is not None and outcome.status == "timeout":
            return None  # the interpreter is slow, and a GPU runs larger sizes
        self.evidence["cases"] += [ready.case.label() for ready in order]
        return found

    def _replayed(
        self, plans: list[Plan], forms: list[HostForm], batch: Batch, seconds: float | None = None
    ) -> tuple[Outcome, list[Ready], Finding | None]:
        """Replay plans. seconds: of CPU time, after which no other case is begun."""
        task = self.of.task
        limits = replace(LIMITS, cpu_seconds=GLANCE_AT_MOST) if self.of.glances else LIMITS
        with self.clock("tiny"):
            outcome = self.of.runner.run(replay_job(plans, forms, task, batch, limits, seconds))
        with self.clock("compare"):
            order = [ready for form in forms for ready in batch.ready if form_of(ready) == form]
            if seconds is not None and outcome.finished and "wrong" not in outcome.message:
                order = order[: len(outcome.message.get("runs", ()))]
            fragile: list[str] = []
            found = judge_tiny(outcome, task, order, fragile)
            self.evidence["fragile"] += fragile
        return outcome, order, found

    def on_gpu_first(self) -> Finding | None:
        """Run one case at full shapes of what was wrong at a tiny size; returns what is wrong with it there too."""
        if self.of.gpu is None or "tiny" not in self.evidence or len(self.full_plans) < 2:
            return None
        return self._on_gpu(self.of.gpu.first_run()).finding

    def on_gpu(self) -> Finding | None:
        """Run the plans at full shapes, and time them."""
        if self.of.gpu is None:
            return None
        narrow = any(map(may_narrow, self.full_plans))
        result = self._on_gpu(self.of.gpu.runs(self.seen, alone=not self.forms, narrow=narrow))
        self.evidence["gpu"] = dict(result.evidence)
        self.evidence["fragile"] += result.fragile
        return result.finding

    def _on_gpu(self, runs: Runs) -> GpuResult:
        assert self.of.gpu is not None
        groups = {case.group for case in runs.cases}
        pairs = zip(self.full_forms, self.full_plans, strict=True)
        plans = {form.group: plan for form, plan in pairs if form.group in groups}
        with self.clock("gpu"):
            result = self.of.gpu.judge(plans, self.compiled, runs, self._rest)
        # Apart from the work: how long a candidate stood in the queue says nothing of it.
        for what, seconds in result.waits.items():
            self.clock.add(f"gpu wait for {what}", seconds)
        return result


def _of_the_size(found: Finding, outcome: Outcome, left: Collection[str]) -> bool:
    """Return whether what is wrong at a tiny size may be right at the file's own, for which a kernel may be made.

    Races are none of the size, nor is what goes wrong with other values alone. left: the values that it is judged with there.
    """
    if outcome.status == "timeout":
        return True
    return found.reason not in ("race", "infrastructure") and found.evidence.get("variation") in left


def may_narrow(plan: Plan) -> bool:
    """Return whether anything in a plan names such a float: one that does not cannot overflow where float32 does not.

    A name too many, in a comment, does no harm.
    """
    return NARROW.search(plan.model_dump_json(exclude={"order"})) is not None
