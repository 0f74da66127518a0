"""A candidate's way through the stages, the cheap ones first: record, compile, tiny; full and timing on a GPU.

Where a GPU runs it, the kernels of the first form alone are compiled before the interpreter looks at it. What is wrong there runs
once on the GPU. The other forms are compiled for what is still right.
"""

from __future__ import annotations

import ast
import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from windtunnel.verify.code.fences import source_of
from windtunnel.verify.kernel.answer import STAGES
from windtunnel.verify.kernel.compiling import Compiled, Key, compile_job, read_compiled
from windtunnel.verify.kernel.gpu import MOST_BYTES as MOST_GPU_BYTES
from windtunnel.verify.kernel.gpu import GpuResult, GpuStages, Runs, has_gpu
from windtunnel.verify.kernel.hidden import interpreted
from windtunnel.verify.kernel.long import LongSizes, block_of, chosen
from windtunnel.verify.kernel.plan import Plan, Recording
from windtunnel.verify.kernel.plan.bombs import too_much
from windtunnel.verify.kernel.plan.check import CheckedKernels, PlanRefused, check_plan, read_recording
from windtunnel.verify.kernel.plan.narrow import may_narrow
from windtunnel.verify.kernel.prepared import Batch, NoTinySize, Preparation, Ready, ReferenceBroken
from windtunnel.verify.kernel.record import HostForm, file_forms, form_of, forms_of, read_recorded, record_job
from windtunnel.verify.kernel.replay import replay_job, share
from windtunnel.verify.kernel.task import Task
from windtunnel.verify.kernel.tiny import LIMITS, POLICY, Finding, errors_of, judge_compile, judge_tiny
from windtunnel.verify.sandbox import Outcome, Runner, Sandbox
from windtunnel.verify.types import Verdict, accept, broken, refuse

PRELOAD = (
    "torch",
    "triton",
    "triton.language",
    "triton.runtime.interpreter",
    "windtunnel.verify.kernel.child.record",
    "windtunnel.verify.kernel.child.tiny",
    "windtunnel.verify.kernel.child.reference",
    "windtunnel.verify.kernel.child.warm",
)
MARK = "\ufeff"  # a byte order mark
LONG_SECONDS = 8.0  # of the CPU, for long sizes
# Where a GPU judges values, the interpreter looks for races and accesses outside of tensors, as far as it comes in this time.
GLANCE_SECONDS, GLANCE_AT_MOST = 2.0, 8.0
RAISED = ("raised", "construction-failed")
MOST_BYTES, MOST_PROGRAMS = 1 << 30, 65_536  # of a plan at a tiny size
HALF = "the correctness half: the interpreter ran it; full shapes and timing need a GPU"


COMPILER_PRELOAD = (
    "torch",
    "triton",
    "triton.language",
    "windtunnel.verify.kernel.child.compile",
    "windtunnel.verify.kernel.child.record",
    "windtunnel.verify.kernel.child.warm_compile",
)
HOPPER = 90


def compiler_sandbox(*, binary: bool | None = None) -> Sandbox:
    """Return a warm worker with Triton's compiler loaded, which needs no GPU. A context manager.

    Args:
        binary: whether it is warm for what a GPU runs too, which it can also compile without, half a second slower each time;
            None: where this machine has one.
    """
    to_the_end = ("windtunnel.verify.kernel.child.warm_compile:to_the_end",)
    return Sandbox(preload=COMPILER_PRELOAD + (to_the_end if binary or (binary is None and has_gpu()) else ()))


def kernel_sandbox() -> Sandbox:
    """Return a warm worker with torch and Triton's interpreter loaded. A context manager."""
    return Sandbox(preload=PRELOAD, environment={"TRITON_INTERPRET": "1"})


def candidate_of(answer: str) -> str:
    """Return the candidate in an answer: all of it where it is Python, else the last block of Python that defines ModelNew."""
    text = answer.removeprefix(MARK)
    if "```" not in text and "~~~" not in text:
        return text
    if too_much(text) is None:
        with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            ast.parse(text)
            return text
    return source_of(text, "ModelNew")


def limits_of(form: HostForm) -> Mapping[str, int]:
    """Return what a plan of this form may ask for."""
    if form.size.startswith("tiny_long"):
        return {"most_bytes": MOST_BYTES}
    if form.size.startswith("tiny"):
        return {"most_bytes": MOST_BYTES, "most_programs": MOST_PROGRAMS}
    return {"most_bytes": MOST_GPU_BYTES}


Planned = Callable[[list[HostForm]], tuple[list[Plan], Finding | None]]


class KernelVerifier:
    """Judges candidates for one task. Safe to call from several threads at once when the runner is.

    runner: runs candidates on the interpreter (`kernel_sandbox`). trusted: runs the reference, by default the same workers
    in other children. compiler: compiles kernels for a GPU of this capability (`compiler_sandbox`); without it that part of
    the compile stage is left out. gpu: runs full shapes and timing (`gpu.GpuStages`); without it the verdict is the
    correctness half.
    """

    def __init__(
        self,
        task: Task,
        runner: Runner,
        trusted: Runner | None = None,
        *,
        compiler: Runner | None = None,
        capability: int = HOPPER,
        gpu: GpuStages | None = None,
    ) -> None:
        self.task, self.runner, self.compiler, self.capability, self.gpu = task, runner, compiler, capability, gpu
        self.preparation = Preparation(task, trusted or runner)
        self._lock = threading.Lock()
        self._full: list[HostForm] | None = None
        self._long: LongSizes | None = None

    def anew(self) -> KernelVerifier:
        """Return the same with hidden inputs of its own, drawn when it judges first: for a second opinion."""
        made = KernelVerifier(
            self.task, self.runner, self.preparation.runner, compiler=self.compiler, capability=self.capability, gpu=self.gpu
        )
        made.preparation = Preparation(self.preparation.task, self.preparation.runner, uses=1)
        return made

    def prepare(self) -> None:
        """Run the reference now, at tiny sizes. Raises UserError where the task cannot be used, which verify would do later."""
        self._batch()
        self._full_forms()

    def verify(self, answer: str) -> Verdict:
        """Judge one candidate. Raises UserError only where the task itself cannot be used."""
        source, checked = candidate_of(answer), CheckedKernels()

        def recorded(forms: list[HostForm]) -> tuple[list[Plan], Finding | None]:
            return read_recorded(self.runner.run(record_job(source, forms)), forms, self.task, limits_of, checked)

        return self._verdict(recorded)

    def verify_plans(self, recording: Recording) -> Verdict:
        """Judge plans that were recorded before, without the candidate."""

        def read(forms: list[HostForm]) -> tuple[list[Plan], Finding | None]:
            checked = CheckedKernels()
            held = {(one.form.size, one.form.dtype, one.form.training): one.plan for one in recording.plans}
            plans: list[Plan] = []
            for form in forms:
                plan = held.get((form.size, form.dtype, form.training))
                if plan is None:
                    return plans, Finding("record", "no-plan", f"The recording holds no plan for {form.label()}. Record it anew.")
                try:
                    check_plan(plan, form.allowed(self.task, **limits_of(form)), checked)
                except PlanRefused as error:
                    return plans, Finding("record", error.reason, f"{error.message} ({form.label()})")
                plans.append(plan)
            return plans, None

        return self._verdict(read)

    def _verdict(self, planned: Planned) -> Verdict:
        """Judge plans. planned: gives a checked plan for each form, or what is wrong."""
        clock = _Clock()
        try:
            with clock("reference"):
                batch = self._batch()
                full = self._full_forms()
        except ReferenceBroken as error:
            return broken("tiny", f"the reference could not be run: {error}", times=clock.times)
        forms = forms_of(batch)
        with clock("record"):
            plans, found = planned([*forms, *full])
            only_full = (
                found if self.gpu is not None and self.gpu.quick and found is not None and found.reason in RAISED else None
            )
            if only_full is not None:  # host code too may be made for the file's own sizes
                forms, (plans, found) = [], planned(full)
        if found is not None:
            return _refused(found, clock)
        judging = _Judging(self, planned, plans[: len(forms)], forms, plans[len(forms) :], full, batch, clock)
        if only_full is not None:
            judging.evidence["tiny"] = only_full.message
        for stage in (judging.compile, judging.tiny, judging.long, judging.on_gpu_first, judging.compile_rest, judging.on_gpu):
            found = stage()
            if found is not None:
                return _refused(found, clock)
        evidence = judging.evidence | {
            "dropped": dict(batch.dropped),
            "share": share(plans[0], batch.ready[0].work if forms else 0),
            "left": self._left(),
        }
        reward = evidence["share"] if self.task.operations == "any" else 1.0
        if self.gpu is None:
            words, stage_ = f"Right on every case of {HALF}.", "tiny"
        elif self.gpu.clock:
            words, stage_ = "Right on every case, at full shapes too, and timed.", "timing"
        else:
            words, stage_ = "Right on every case, at full shapes too.", "full"
        return accept(stage_, words, reward=reward, times=clock.times, evidence=evidence)

    def _batch(self) -> Batch:
        """Return the cases for the interpreter: none of a task that only a GPU can run."""
        try:
            return self.preparation.batch()
        except NoTinySize as error:
            if not self.glances:
                raise
            return Batch((), {"tiny": error.message})

    @property
    def glances(self) -> bool:
        """Whether the interpreter only has a glance, since a GPU runs the plans too."""
        return self.gpu is not None and self.gpu.quick

    @property
    def long(self) -> LongSizes:
        """What the references say at long sizes. Once the task is settled."""
        with self._lock:
            if self._long is None:
                self._long = LongSizes(self.preparation.task, self.preparation.runner)
            return self._long

    def _full_forms(self) -> list[HostForm]:
        """Return the forms of what a GPU runs, asked of the reference once."""
        if self.gpu is None:
            return []
        with self._lock:
            if self._full is None:
                self._full = file_forms(self.task, self.preparation.runner, self.gpu.sizes())
            return self._full

    def _left(self) -> list[str]:
        """Return what this verdict does not cover."""
        if self.gpu is not None:
            return [] if self.gpu.clock else ["timing"]
        left = ["full shapes", "timing"] if self.compiler is not None else ["compile for a GPU", "full shapes", "timing"]
        return left + [dtype for dtype in self.task.dtypes if dtype not in interpreted(self.task)]


@dataclass
class _Judging:
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
    clock: _Clock
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
        return self._made(plans, forms, binary=True, wanted=[counts[form.size, form.dtype] for form in forms])

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
        at = next(at for at, form in enumerate(self.full_forms) if (form.size, form.dtype) == timed)
        made = self._made(self.full_plans[at : at + 1], self.full_forms[at : at + 1], binary=True, tried=known.tried)
        return made if isinstance(made, Finding) else known.and_(made)

    def tiny(self) -> Finding | None:
        """On the interpreter: values, races, accesses outside of tensors; only a glance where a GPU runs the plans too."""
        if not self.forms:
            self.evidence["cases"] = []
            return None
        outcome, order, found = self._replayed(self.plans, self.forms, self.batch, GLANCE_SECONDS if self.of.glances else None)
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
        keys = [(form.size, form.dtype) for form in self.full_forms]
        plans = {key: plan for key, plan in zip(keys, self.full_plans, strict=True) if key in groups}
        with self.clock("gpu"):
            result = self.of.gpu.judge(plans, self.compiled, runs, self._rest)
        for what, seconds in result.waits.items():
            self.clock.times[f"gpu wait for {what}"] = self.clock.times.get(f"gpu wait for {what}", 0.0) + seconds
        return result


def _of_the_size(found: Finding, outcome: Outcome, left: Collection[str]) -> bool:
    """Return whether what is wrong at a tiny size may be right at the file's own, for which a kernel may be made.

    Races are none of the size, nor is what goes wrong with other values alone. left: the values that it is judged with there.
    """
    if outcome.status == "timeout":
        return True
    return found.reason not in ("race", "infrastructure") and found.evidence.get("variation") in left


def _refused(found: Finding, clock: _Clock) -> Verdict:
    if found.reason == "infrastructure":
        return broken(found.stage, found.message, times=clock.times)
    kind = "out of policy" if found.reason in POLICY else "wrong"
    return refuse(found.stage, found.reason, found.message, times=clock.times, evidence={**found.evidence, "kind": kind})


def judge_recording(text: str, verifier: KernelVerifier) -> Verdict:
    """Judge a file of plans, whoever wrote it."""
    try:
        return verifier.verify_plans(read_recording(text))
    except PlanRefused as error:
        return refuse("record", error.reason, error.message)


class _Clock:
    """Seconds by stage."""

    def __init__(self) -> None:
        self.times: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.times[stage] = self.times.get(stage, 0.0) + time.perf_counter() - start


def stage_states(verdict: Verdict) -> list[tuple[str, str]]:
    """Return (stage, 'passed' | 'refused' | 'failed' | 'not run') for every stage, for people."""
    at = STAGES.index(verdict.stage) if verdict.stage in STAGES else 0
    states = []
    for number, stage in enumerate(STAGES):
        if number < at:
            states.append((stage, "passed"))
        elif number > at:
            states.append((stage, "not run"))
        else:
            states.append((stage, "passed" if verdict.accepted else "failed" if verdict.infrastructure else "refused"))
    return states
