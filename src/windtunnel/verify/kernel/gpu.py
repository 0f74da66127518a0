"""The stages that need a GPU, seen from the parent: full shapes with hidden variations, judged elsewhere; then timing."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from windtunnel.verify.kernel.child.turn import CONTEXT, FIRST_WAIT, TIMING, WAITING
from windtunnel.verify.kernel.gpu_lock import Late, gpu_lock_of, gpu_path, holding, opened, places
from windtunnel.verify.kernel.hidden import Case, full_cases, new_seed
from windtunnel.verify.kernel.neighbours import CALLS as PROBE_CALLS
from windtunnel.verify.kernel.neighbours import excused, read_look
from windtunnel.verify.kernel.roofline import Work
from windtunnel.verify.kernel.task import Task
from windtunnel.verify.kernel.timing import LEAST, Samples, doubt, median_with_interval, read_samples, speedup
from windtunnel.verify.kernel.tiny import UNMOVED_AT_MOST, Finding, ended, wrong_of
from windtunnel.verify.sandbox import Job, Limits, MiB, Outcome, Runner, Sandbox

FULL = "windtunnel.verify.kernel.child.full:main"
JUDGE = "windtunnel.verify.kernel.child.judge:main"
BASELINE = "windtunnel.verify.kernel.child.judge:baseline"
PROBE = "windtunnel.verify.kernel.child.probe:main"
# In all its waits together. Who waits does so for those who are in the room, all at the same time (300 s at most, for a reference
# that is compiled), then for each worker's timing (20 s: 320 s with 16 of them) and for a reference's (120 s). With more workers
# or several tasks at once it may not suffice; then nothing is known of the candidate, which is no refusal.
WAIT_SECONDS = 900.0
LIMITS = Limits(
    wall_seconds=60,
    cpu_seconds=90,
    memory_bytes=8192 * MiB,
    processes=16,
    threads=128,
    result_bytes=4096 * MiB,
    file_bytes=256 * MiB,
    # Who runs or is timed holds up others, and so may not for long.
    phases=((WAITING, WAIT_SECONDS), (CONTEXT, 60.0), ("full", 45.0), (TIMING, 20.0)),
)
BASELINE_LIMITS = replace(LIMITS, wall_seconds=300, phases=((WAITING, WAIT_SECONDS), (TIMING, 120.0)))
# May be the neighbours' doing: clocks, and memory.
DISTURBED = ("disturbed", "clock-disagrees", "gpu-memory", "infrastructure")
# May be the doing of processes that are none of ours, and come and go.
BY_OTHERS = ("clock-disagrees", "gpu-memory")
# Phases before the candidate is loaded.
UNBEGUN = ("", FIRST_WAIT, CONTEXT)
SLOWED = 1.5
TIMED_SETS = 3
CALLS = 40
# Watching PyTorch's calls and counting its operations import the second one, a second of work.
TORCH = ("torch", "torch._dynamo")
# Each work queue of a context, and each for copies, is made and taken down with it, under one lock of the driver's for all
# processes. Candidates use one stream, so one of each does; benchmarks/verify_contexts.py says what the others cost. The scale is
# that of the room for launches which the GPU has not begun yet: hundreds, of which a timed call, waited for, has a few.
ONE_QUEUE = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    "CUDA_DEVICE_MAX_COPY_CONNECTIONS": "1",
    "CUDA_SCALE_LAUNCH_QUEUES": "0.25x",
}
# Of what a compiler makes only the binary is read again, and of the files that are written each takes a while.
BINARIES_ONLY = {"TRITON_STORE_BINARY_ONLY": "1"}
NVIDIA = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")


@dataclass(frozen=True)
class Plan:
    """What one candidate is run on. The last `timed` cases are the same case with other inputs, and are timed."""

    cases: tuple[Case, ...]
    seed: int
    timed: int = TIMED_SETS
    calls: int = CALLS


@dataclass(frozen=True)
class GpuResult:
    """finding: what is wrong, or None. evidence: times and speed-ups, plain JSON. waited: in vain, for those who hold the GPU."""

    finding: Finding | None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    waited: bool = False


def has_gpu(index: int = 0) -> bool:
    """Whether this machine has an NVIDIA GPU of that number."""
    return Path(f"/dev/nvidia{index}").exists()


def gpu_sandbox(index: int = 0) -> Sandbox:
    """A warm worker for a GPU. Its children start CUDA themselves, since CUDA does not survive a fork. A context manager."""
    modules = (*TORCH, "triton", "windtunnel.verify.kernel.child.full", "windtunnel.verify.kernel.child.gpu")
    preload = (*modules, "windtunnel.verify.kernel.child.warm_gpu:warm")
    return Sandbox(preload=preload, environment=ONE_QUEUE | BINARIES_ONLY, devices=_devices(index))


def reference_sandbox(index: int = 0) -> Sandbox:
    """The same for the reference and the comparison. No candidate ever runs in it, so one child with one CUDA context serves all.
    A context manager."""
    preload = (*TORCH, "windtunnel.verify.kernel.child.judge:warm", "windtunnel.verify.kernel.child.probe")
    return Sandbox(preload=preload, environment=ONE_QUEUE, devices=_devices(index), lasting=True)


def _devices(index: int) -> tuple[str, ...]:
    return (f"/dev/nvidia{index}", *NVIDIA[1:])


class GpuStages:
    """Runs full and timing for one task. device 'cpu' goes through the same motions on the interpreter, for tests.

    Safe to call from several threads when the runners are. Several candidates share the GPU, except while one is timed: then
    all others wait, in all processes of this machine that come through here. clock: False leaves timing out. baseline: False
    leaves out the reference's own times, and with them the speed-up: taking them needs torch.compile, many seconds a task.
    index: the GPU's number, whose turns it takes; None takes none. limits: of one candidate's process; its phase 'waiting' also
    says how long it may not even begin. calls: how many cold ones are timed at most, not fewer than ten.
    """

    def __init__(
        self,
        task: Task,
        runner: Runner,
        trusted: Runner,
        *,
        clock: bool = True,
        baseline: bool = True,
        device: str = "cuda",
        size: str = "full",
        index: int | None = 0,
        limits: Limits = LIMITS,
        calls: int = CALLS,
    ) -> None:
        assert calls >= LEAST, f"{calls} calls: fewer than {LEAST} are not believed"
        self.calls = calls
        self.task, self.runner, self.trusted, self.device, self.size = task, runner, trusted, device, size
        self.clock, self.limits, self.index = clock, limits, index
        kinds = ("use", "candidates", "contexts")
        self.use, self.candidates, self.contexts = (None if index is None else gpu_path(index, kind) for kind in kinds)
        self._lock = threading.Lock()
        self._baseline: dict[str, dict[str, Samples]] | None = None if baseline else {}

    def judge(self, source: str, plan: Plan | None = None) -> GpuResult:
        """Full shapes, then the clock where it is wanted.

        What may be the neighbours' doing is done once more while no other candidate lives. What may be the doing of those who
        use the GPU and are none of ours is done twice more so, and not held against the candidate where they are seen. Who has
        waited in vain has waited long enough: that is not done again here.

        Raises UserError where the files of the GPU's locks cannot be opened.
        """
        plan = plan or self.plan()
        if self.clock:
            self._measured_baseline(plan)
        result = self._judge(source, plan)
        for reasons in (DISTURBED, BY_OTHERS):
            if result.finding is not None and result.finding.reason in reasons and not result.waited:
                result = self._judge(source, replace(plan, seed=new_seed()), alone=True)
        return result

    def _judge(self, source: str, plan: Plan, *, alone: bool = False) -> GpuResult:
        try:
            outcome, looks = self._run(source, plan, alone=alone)
        except Late as late:
            return _in_vain(f"no candidate could begin on {self._gpu}", late.seconds, late.path)
        try:
            result = self._result(plan, outcome, alone=alone)
        finally:
            if outcome.kept is not None:
                outcome.kept.close()
        if result.finding is None or result.finding.reason == "infrastructure":
            return result
        excuse = excused(result.finding, [read_look(look) for look in looks], self.index)
        if excuse is not None:
            return GpuResult(Finding(result.finding.stage, "infrastructure", excuse))
        if result.finding.reason in BY_OTHERS and any(_waited_out(look, LIMITS) for look in looks):
            return self._kept_waiting(f"whether others use {self._gpu} could not be seen", LIMITS)
        return result

    def _run(self, source: str, plan: Plan, *, alone: bool) -> tuple[Outcome, list[Outcome]]:
        """The candidate's process, and what was seen around it where it is alone. Raises Late where others never let it begin."""
        looks: list[Outcome] = []
        with (
            opened(self.use) as use,
            opened(self.candidates) as candidates,
            places(self.contexts) as free,
            holding(gpu_lock_of(candidates, _waiting(self.limits)), alone=alone),
        ):
            message = self._message(plan, source) | {"turn": len(use), "places": len(free)}
            looks += [self._look(use)] if alone else []
            if any(_waited_out(look, LIMITS) for look in looks):
                raise Late(f"{self.use}.*", _waiting(LIMITS))
            outcome = self.runner.run(Job(FULL, message, limits=self.limits, files=(*use, *free), keep=True))
            looks += [self._look(use)] if alone else []
        return outcome, looks

    def _look(self, use: Sequence[int]) -> Outcome:
        """Whether others use the GPU, seen by a trusted child."""
        message = {"device": self.device, "calls": PROBE_CALLS, "turn": len(use)}
        return self.trusted.run(Job(PROBE, message, limits=LIMITS, files=use))

    @property
    def _gpu(self) -> str:
        return "the GPU" if self.index is None else f"GPU {self.index}"

    def _kept_waiting(self, what: str, limits: Limits) -> GpuResult:
        """A child waited in vain. Which of its locks for, it did not live to say."""
        files = " or ".join(f"{path}.*" for path in (self.use, self.contexts) if path is not None)
        return _in_vain(what, _waiting(limits), files)

    def _ended(self, outcome: Outcome, stage: str) -> GpuResult:
        """How the candidate's process ended without an answer. What ended it before it had loaded the candidate, or while others
        kept it waiting, is not the candidate's doing.

        The phase is the child's own word. Who could lie about it would gain that nothing is known, and so no reward.
        """
        if _waited_out(outcome, self.limits):
            return self._kept_waiting(f"the candidate's process had no turn on {self._gpu}", self.limits)
        if outcome.phase in UNBEGUN and outcome.status not in ("infrastructure", "raised"):
            text = (
                "nothing of the candidate had run yet (it waited for its turn, or inputs were drawn on the GPU), when its process"
            )
            return GpuResult(Finding(stage, "infrastructure", f"{text} {outcome.detail or 'ended'}. Judge this answer again."))
        return GpuResult(ended(outcome, stage))

    def _result(self, plan: Plan, outcome: Outcome, *, alone: bool) -> GpuResult:
        stage = "timing" if outcome.phase == "timing" else "full"
        if not outcome.finished:
            return self._ended(outcome, stage)
        finding = wrong_of(outcome, stage)
        runs = _runs(outcome)
        whole = runs is not None and len(runs) == len(plan.cases)
        if finding is None and not whole:
            finding = Finding("full", "no-answer", "The candidate's process did not report every case.")
        # Wrong values explain more than what the clock saw of them.
        if runs is None or (finding is not None and not (whole and finding.stage == "timing")):
            return GpuResult(finding)
        unmoved = outcome.message.get("unmoved", 0.0)
        if type(unmoved) is not float:
            return GpuResult(Finding("full", "no-answer", "The candidate's process did not report the run without kernels."))
        if not unmoved <= UNMOVED_AT_MOST:
            text = f"With every kernel knocked out, {unmoved:.0%} of the output is still there: it does not come from a kernel."
            return GpuResult(Finding("full", "output-not-from-kernel", text))
        judged = self._judged(plan, outcome, runs)
        if isinstance(judged, GpuResult):
            return judged
        if finding is not None:
            return GpuResult(finding)
        if not plan.timed:
            return GpuResult(None, {"device": str(outcome.message.get("device")), "seconds": _seconds(outcome)})
        return self._timed(plan, outcome, judged, alone=alone)

    def plan(self) -> Plan:
        """Fresh seeds; every case of the task, then the timed ones."""
        first = Case(self.size, self.task.dtypes[0], "plain")
        cases = [case if self.size == "full" else _renamed(case) for case in full_cases(self.task)]
        # Cases of one group run one after the other, in the order of their numbers.
        timed = TIMED_SETS if self.clock else 0
        return Plan((*sorted(cases, key=lambda case: case.group != first.group), *[first] * timed), new_seed(), timed, self.calls)

    def _message(self, plan: Plan, source: str = "") -> dict[str, Any]:
        return {
            "source": source,
            "sources": {case.size: self.task.at(case.size) for case in plan.cases},
            "cases": [{**case.as_json(), "label": case.label()} for case in plan.cases],
            "seed": plan.seed,
            "fixed": list(self.task.fixed),
            "device": self.device,
            "inplace": list(self.task.inplace),
            "host_copies": self.task.host_copies,
            "timed": plan.timed,
            "calls": plan.calls,
        }

    def _judged(self, plan: Plan, outcome: Outcome, runs: list[dict[str, Any]]) -> Work | GpuResult:
        """The comparison, by a trusted child, after the candidate's has ended. The outputs go to it in the file they lie in."""
        assert outcome.kept is not None
        with opened(self.use) as use:
            message = self._message(plan) | {
                "runs": runs,
                "spans": outcome.kept.spans,
                "turn": len(use),
                "tolerance": dict(self.task.tolerance),
                "mismatched": self.task.mismatched,
                "tf32": self.task.tf32,
            }
            judged = self.trusted.run(Job(JUDGE, message, limits=LIMITS, files=(outcome.kept.fd, *use)))
        if _waited_out(judged, LIMITS):
            return self._kept_waiting(f"the comparison had no turn on {self._gpu}", LIMITS)
        if not judged.finished:
            return GpuResult(Finding("full", "infrastructure", str(judged.message.get("error", judged.detail))))
        wrong = wrong_of(judged, "full")
        return Work(**judged.message["work"]) if wrong is None else GpuResult(wrong)

    def _timed(self, plan: Plan, outcome: Outcome, work: Work, *, alone: bool) -> GpuResult:
        times = outcome.message.get("times")
        samples = {heat: read_samples(times.get(heat)) if isinstance(times, dict) else None for heat in ("cold", "warm")}
        cold, warm = samples["cold"], samples["warm"]
        if cold is None or warm is None:
            return GpuResult(Finding("timing", "no-answer", "The candidate's process did not report its times."))
        gpu = str(outcome.message.get("device"))
        doubted = doubt(cold, work, gpu, outcome.wall_seconds)
        if doubted is not None:
            return GpuResult(Finding("timing", doubted.reason, doubted.message, doubted.evidence))
        baseline = self._measured_baseline(plan)
        if not alone and _slowed(cold, baseline):
            return GpuResult(Finding("timing", "disturbed", "The GPU was slower than when the reference was timed."))
        evidence: dict[str, Any] = {heat: asdict(median_with_interval(s.events)) for heat, s in (("cold", cold), ("warm", warm))}
        evidence["alone"] = asdict(median_with_interval(cold.plain))  # a cold call on an idle GPU, the host's launching included
        evidence["device"], evidence["seconds"] = gpu, _seconds(outcome)
        evidence["speedup"] = {name: speedup(cold, heats["cold"]) for name, heats in baseline.items()}
        return GpuResult(None, evidence)

    def _measured_baseline(self, plan: Plan) -> dict[str, dict[str, Samples]]:
        """The reference's own times, taken once, while no process that holds a candidate lives and could slow it down."""
        with self._lock:
            if self._baseline is None:
                with opened(self.use) as use, opened(self.candidates) as candidates:
                    message = self._message(plan) | {"seed": secrets.randbits(62), "turn": len(use)}
                    outcome = self.trusted.run(Job(BASELINE, message, limits=BASELINE_LIMITS, files=(*use, *candidates)))
                self._baseline = {}
                for name, heats in outcome.message.items() if outcome.finished else ():
                    read = {heat: read_samples(value) for heat, value in heats.items()}
                    if all(read.values()):
                        self._baseline[name] = {heat: value for heat, value in read.items() if value is not None}
            return self._baseline


def _waiting(limits: Limits) -> float:
    """Seconds that a child may wait."""
    return dict(limits.phases).get(WAITING, limits.wall_seconds)


def _waited_out(outcome: Outcome, limits: Limits) -> bool:
    """Whether a child was ended because it had waited too long. Who spends CPU time meanwhile is ended for that, and sooner."""
    return outcome.status == "timeout" and outcome.phase in (WAITING, FIRST_WAIT) and outcome.wall_seconds >= _waiting(limits)


def _in_vain(what: str, seconds: float, files: str) -> GpuResult:
    text = (
        f"{what} within {seconds:g} s: others hold the lock {files}. `lslocks` names them; a process that was stopped (Ctrl-Z) "
        "holds it until it goes on or is ended. Then judge this answer again."
    )
    return GpuResult(Finding("full", "infrastructure", text), waited=True)


def _slowed(samples: Samples, baseline: Mapping[str, Mapping[str, Samples]]) -> bool:
    """Whether the copy between the calls took much longer than between those of the baseline."""
    then = [median_with_interval(heats["cold"].probe).median for heats in baseline.values()]
    return bool(then) and median_with_interval(samples.probe).median > SLOWED * min(then)


def _seconds(outcome: Outcome) -> dict[str, float]:
    """What the child's parts took, by its own account, which nothing depends on; 'process' is what its worker saw."""
    told = outcome.message.get("seconds")
    parts = {str(k)[:20]: v for k, v in told.items() if type(v) is float} if isinstance(told, dict) else {}
    return {**dict(list(parts.items())[:8]), "process": outcome.wall_seconds, "cpu": outcome.cpu_seconds}


def _runs(outcome: Outcome) -> list[dict[str, Any]] | None:
    """What the child says of its runs, in the order of their numbers; None where it is not of that form."""
    runs = outcome.message.get("runs")
    if not isinstance(runs, list) or not all(isinstance(run, dict) and type(run.get("number")) is int for run in runs):
        return None
    return sorted(runs, key=lambda run: int(run["number"]))


def _renamed(case: Case) -> Case:
    """A full case at the tiny sizes, for machines without a GPU."""
    return Case(case.size.replace("full", "tiny"), case.dtype, case.variation, case.training)
