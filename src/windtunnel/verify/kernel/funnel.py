"""Judges candidates for one task: records their plans, then takes them through the stages, the cheap ones first."""

from __future__ import annotations

import ast
import contextlib
import threading
from collections.abc import Mapping

from windtunnel.verify.code.fences import source_of
from windtunnel.verify.kernel.gpu import MOST_BYTES as MOST_GPU_BYTES
from windtunnel.verify.kernel.gpu import GpuStages
from windtunnel.verify.kernel.hidden import interpreted
from windtunnel.verify.kernel.long import LongSizes
from windtunnel.verify.kernel.plan import Plan, Recording
from windtunnel.verify.kernel.plan.bombs import too_much
from windtunnel.verify.kernel.plan.check import CheckedKernels, PlanRefused, check_plan, read_recording
from windtunnel.verify.kernel.prepared import Batch, NoTinySize, Preparation, ReferenceBroken
from windtunnel.verify.kernel.record import HostForm, file_forms, forms_of, read_recorded, record_job
from windtunnel.verify.kernel.replay import share
from windtunnel.verify.kernel.stages import CandidateStages, Clock, Planned
from windtunnel.verify.kernel.task import Task, with_far_inputs
from windtunnel.verify.kernel.tiny import POLICY, Finding
from windtunnel.verify.sandbox import Runner
from windtunnel.verify.types import Verdict, accept, broken, refuse

MARK = "\ufeff"  # a byte order mark
RAISED = ("raised", "construction-failed")
MOST_BYTES, MOST_PROGRAMS = 1 << 30, 65_536  # of a plan at a tiny size
HALF = "the correctness half: the interpreter ran it; full shapes and timing need a GPU"
# Compiled for where there is no GPU to ask: what TARGET pretends too.
HOPPER = 90


def candidate_of(answer: str) -> str:
    """Return the candidate in an answer: all of it where it is Python, else the last block of Python that defines ModelNew."""
    text = answer.removeprefix(MARK)
    if "```" not in text and "~~~" not in text:
        return text
    # Parsing costs the judge its own memory and stack.
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
        # Many answers to one task come at once: what is asked of its reference is asked by the first, and the others wait.
        self._lock = threading.Lock()
        self._full: list[HostForm] | None = None
        self._long: LongSizes | None = None

    def anew(self) -> KernelVerifier:
        """Return the same with hidden inputs of its own, far ones too, drawn when it judges first: for a second opinion."""
        made = KernelVerifier(
            with_far_inputs(self.task),
            self.runner,
            self.preparation.runner,
            compiler=self.compiler,
            capability=self.capability,
            gpu=self.gpu,
        )
        made.preparation = Preparation(with_far_inputs(self.preparation.task), self.preparation.runner, uses=1)
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
        clock = Clock()
        try:
            with clock("reference"):
                batch = self._batch()
                full = self._full_forms()
        except ReferenceBroken as error:
            return _reference_broken(error, clock)
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
        judging = CandidateStages(self, planned, plans[: len(forms)], forms, plans[len(forms) :], full, batch, clock)
        if only_full is not None:
            judging.evidence["tiny"] = only_full.message
        # The cheap ones first: most answers are wrong, and most of these at once.
        for stage in (judging.compile, judging.tiny, judging.long, judging.on_gpu_first, judging.compile_rest, judging.on_gpu):
            try:
                found = stage()
            except ReferenceBroken as error:  # it is asked again where values are wrong
                return _reference_broken(error, clock)
            if found is not None:
                return _refused(found, clock)
        evidence = judging.evidence | {
            "dropped": dict(batch.dropped),
            "share": share(plans[0], batch.ready[0].work if forms else 0),
            "left": self._left(),
        }
        # Where PyTorch may compute beside, only the part that kernels do is paid for.
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


def _reference_broken(error: ReferenceBroken, clock: Clock) -> Verdict:
    return broken("tiny", f"the reference could not be run: {error}", times=clock.times)


def _refused(found: Finding, clock: Clock) -> Verdict:
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
