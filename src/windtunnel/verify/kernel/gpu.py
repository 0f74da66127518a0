"""The stages that need a GPU, seen from the parent: full shapes with hidden variations, judged elsewhere; then timing."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from windtunnel.verify.kernel.hidden import Case, full_cases, new_seed
from windtunnel.verify.kernel.neighbours import CALLS as PROBE_CALLS
from windtunnel.verify.kernel.neighbours import Look, excused, read_look
from windtunnel.verify.kernel.roofline import Work
from windtunnel.verify.kernel.task import Task
from windtunnel.verify.kernel.timing import LEAST, Samples, doubt, median_with_interval, read_samples, speedup
from windtunnel.verify.kernel.tiny import UNMOVED_AT_MOST, Finding, ended, wrong_of
from windtunnel.verify.kernel.turns import gpu_path, in_turn, opened, places, turns_of
from windtunnel.verify.sandbox import Job, Limits, MiB, Outcome, Runner, Sandbox

FULL = "windtunnel.verify.kernel.child_full:main"
JUDGE = "windtunnel.verify.kernel.child_judge:main"
BASELINE = "windtunnel.verify.kernel.child_judge:baseline"
PROBE = "windtunnel.verify.kernel.child_probe:main"
LIMITS = Limits(
    wall_seconds=60,
    cpu_seconds=90,
    memory_bytes=8192 * MiB,
    processes=16,
    threads=128,
    result_bytes=4096 * MiB,
    file_bytes=256 * MiB,
    # Who runs or is timed holds up others, and so may not for long; who waits does so for at most as many as there are workers.
    phases=(("waiting", 300.0), ("full", 45.0), ("timing", 20.0)),
)
BASELINE_LIMITS = replace(LIMITS, wall_seconds=300, phases=(("waiting", 300.0), ("timing", 120.0)))
# May be the neighbours' doing: clocks, and memory.
DISTURBED = ("disturbed", "clock-disagrees", "gpu-memory", "infrastructure")
# May be the doing of processes that are none of ours, and come and go.
BY_OTHERS = ("clock-disagrees", "gpu-memory")
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
    """finding: what is wrong, or None. evidence: times and speed-ups, plain JSON."""

    finding: Finding | None
    evidence: Mapping[str, Any] = field(default_factory=dict)


def has_gpu(index: int = 0) -> bool:
    """Whether this machine has an NVIDIA GPU of that number."""
    return Path(f"/dev/nvidia{index}").exists()


def gpu_sandbox(index: int = 0) -> Sandbox:
    """A warm worker for a GPU. Its children start CUDA themselves, since CUDA does not survive a fork. A context manager."""
    modules = (*TORCH, "triton", "windtunnel.verify.kernel.child_full", "windtunnel.verify.kernel.child_gpu")
    preload = (*modules, "windtunnel.verify.kernel.child_warm_gpu:warm")
    return Sandbox(preload=preload, environment=ONE_QUEUE | BINARIES_ONLY, devices=_devices(index))


def reference_sandbox(index: int = 0) -> Sandbox:
    """The same for the reference and the comparison. No candidate ever runs in it, so one child with one CUDA context serves all.
    A context manager."""
    preload = (*TORCH, "windtunnel.verify.kernel.child_judge:warm", "windtunnel.verify.kernel.child_probe")
    return Sandbox(preload=preload, environment=ONE_QUEUE, devices=_devices(index), lasting=True)


def _devices(index: int) -> tuple[str, ...]:
    return (f"/dev/nvidia{index}", *NVIDIA[1:])


class GpuStages:
    """Runs full and timing for one task. device 'cpu' goes through the same motions on the interpreter, for tests.

    Safe to call from several threads when the runners are. Several candidates share the GPU, except while one is timed: then
    all others wait, in all processes of this machine that come through here. clock: False leaves timing out. baseline: False
    leaves out the reference's own times, and with them the speed-up: taking them needs torch.compile, many seconds a task.
    index: the GPU's number, whose turns it takes; None takes none. limits: of one candidate's process. calls: how many are
    timed at most, cold and warm each; not fewer than ten.
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
        use the GPU and are none of ours is done twice more so, and not held against the candidate where they are seen.
        """
        plan = plan or self.plan()
        if self.clock:
            self._measured_baseline(plan)
        result = self._judge(source, plan)
        for reasons in (DISTURBED, BY_OTHERS):
            if result.finding is not None and result.finding.reason in reasons:
                result = self._judge(source, replace(plan, seed=new_seed()), alone=True)
        return result

    def _judge(self, source: str, plan: Plan, *, alone: bool = False) -> GpuResult:
        looks: list[Look | None] = []
        with (
            opened(self.use) as use,
            opened(self.candidates) as candidates,
            places(self.contexts) as free,
            in_turn(turns_of(candidates), alone=alone),
        ):
            message = self._message(plan, source) | {"turn": len(use), "places": len(free)}
            looks += [self._look(use)] if alone else []
            outcome = self.runner.run(Job(FULL, message, limits=self.limits, files=(*use, *free), keep=True))
            looks += [self._look(use)] if alone else []
        try:
            result = self._result(plan, outcome, alone=alone)
        finally:
            if outcome.kept is not None:
                outcome.kept.close()
        excuse = None if result.finding is None else excused(result.finding, looks, self.index)
        if result.finding is None or excuse is None:
            return result
        return GpuResult(Finding(result.finding.stage, "infrastructure", excuse))

    def _look(self, use: Sequence[int]) -> Look | None:
        """Whether others use the GPU, seen by a trusted child."""
        message = {"device": self.device, "calls": PROBE_CALLS, "turn": len(use)}
        return read_look(self.trusted.run(Job(PROBE, message, limits=LIMITS, files=use)))

    def _result(self, plan: Plan, outcome: Outcome, *, alone: bool) -> GpuResult:
        stage = "timing" if outcome.phase == "timing" else "full"
        if not outcome.finished:
            return GpuResult(ended(outcome, stage))
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
        if isinstance(judged, Finding):
            return GpuResult(judged)
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

    def _judged(self, plan: Plan, outcome: Outcome, runs: list[dict[str, Any]]) -> Work | Finding:
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
        if not judged.finished:
            return Finding("full", "infrastructure", str(judged.message.get("error", judged.detail)))
        return wrong_of(judged, "full") or Work(**judged.message["work"])

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
