"""The stages that need a GPU, seen from the parent: full shapes with hidden variations, judged elsewhere; then timing."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.verify.kernel.hidden import Case, full_cases, new_seed
from windtunnel.verify.kernel.roofline import Work
from windtunnel.verify.kernel.task import Task
from windtunnel.verify.kernel.timing import Samples, doubt, median_with_interval, read_samples, speedup
from windtunnel.verify.kernel.tiny import UNMOVED_AT_MOST, Finding, ended, outputs_of, wrong_of
from windtunnel.verify.sandbox import Job, Limits, MiB, Outcome, Runner, Sandbox

FULL = "windtunnel.verify.kernel.child_full:main"
JUDGE = "windtunnel.verify.kernel.child_judge:main"
BASELINE = "windtunnel.verify.kernel.child_judge:baseline"
LIMITS = Limits(wall_seconds=120, cpu_seconds=120, memory_bytes=16384 * MiB, processes=16, threads=128, result_bytes=4096 * MiB)
TIMED_SETS = 3
CALLS = 60
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
    devices = (f"/dev/nvidia{index}", *NVIDIA[1:])
    return Sandbox(
        preload=("torch", "triton", "windtunnel.verify.kernel.child_full", "windtunnel.verify.kernel.child_gpu"), devices=devices
    )


def reference_sandbox(index: int = 0) -> Sandbox:
    """The same for the reference and the comparison. No candidate ever runs in it. A context manager."""
    devices = (f"/dev/nvidia{index}", *NVIDIA[1:])
    return Sandbox(preload=("torch", "windtunnel.verify.kernel.child_judge"), devices=devices)


class GpuStages:
    """Runs full and timing for one task. device 'cpu' goes through the same motions on the interpreter, for tests.

    clock: False leaves timing out. Several candidates may then share the GPU; with a clock `runner` must have one worker, and
    nothing else may use the GPU. baseline: False leaves out the reference's own times, and with them the speed-up: taking them
    needs torch.compile, many seconds a task.
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
    ) -> None:
        self.task, self.runner, self.trusted, self.device, self.size = task, runner, trusted, device, size
        self.clock = clock
        self._baseline: dict[str, dict[str, Samples]] | None = None if baseline else {}

    def judge(self, source: str, plan: Plan | None = None) -> GpuResult:
        """Full shapes, then the clock where it is wanted."""
        plan = plan or self.plan()
        outcome = self.runner.run(Job(FULL, self._message(plan, source), limits=LIMITS))
        if not outcome.finished:
            return GpuResult(ended(outcome, "full"))
        finding = wrong_of(outcome, "timing" if outcome.phase == "timing" else "full")
        runs = outcome.message.get("runs")
        whole = isinstance(runs, list) and len(runs) == len(plan.cases)
        if finding is None and not whole:
            finding = Finding("full", "no-answer", "The candidate's process did not report every case.")
        # Wrong values explain more than what the clock saw of them.
        if finding is not None and not (whole and finding.stage == "timing"):
            return GpuResult(finding)
        share = _unmoved(outcome)
        if share > UNMOVED_AT_MOST:
            text = f"With every kernel knocked out, {share:.0%} of the output is still there: it does not come from a kernel."
            return GpuResult(Finding("full", "output-not-from-kernel", text))
        judged = self._judged(plan, outcome)
        if isinstance(judged, Finding):
            return GpuResult(judged)
        if finding is not None:
            return GpuResult(finding)
        if not plan.timed:
            return GpuResult(None, {"device": str(outcome.message.get("device"))})
        return self._timed(plan, outcome, judged)

    def plan(self) -> Plan:
        """Fresh seeds; every case of the task, then the timed ones."""
        first = Case(self.size, self.task.dtypes[0], "plain")
        cases = [case if self.size == "full" else _renamed(case) for case in full_cases(self.task)]
        # Cases of one group run one after the other, in the order of their numbers.
        timed = TIMED_SETS if self.clock else 0
        return Plan((*sorted(cases, key=lambda case: case.group != first.group), *[first] * timed), new_seed(), timed)

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

    def _judged(self, plan: Plan, outcome: Outcome) -> Work | Finding:
        """The comparison, by a trusted child that starts after the candidate's has ended."""
        runs = sorted(outcome.message["runs"], key=lambda run: int(run.get("number", 0)))
        message = self._message(plan) | {
            "runs": runs,
            "tolerance": dict(self.task.tolerance),
            "mismatched": self.task.mismatched,
            "tf32": self.task.tf32,
        }
        judged = self.trusted.run(Job(JUDGE, message, outcome.buffers, LIMITS))
        if not judged.finished:
            return Finding("full", "infrastructure", str(judged.message.get("error", judged.detail)))
        return wrong_of(judged, "full") or Work(**judged.message["work"])

    def _timed(self, plan: Plan, outcome: Outcome, work: Work) -> GpuResult:
        times = outcome.message.get("times")
        samples = {heat: read_samples(times.get(heat)) if isinstance(times, dict) else None for heat in ("cold", "warm")}
        cold, warm = samples["cold"], samples["warm"]
        if cold is None or warm is None:
            return GpuResult(Finding("timing", "no-answer", "The candidate's process did not report its times."))
        gpu = str(outcome.message.get("device"))
        doubted = doubt(cold, work, gpu, outcome.wall_seconds)
        if doubted is not None:
            return GpuResult(Finding("timing", doubted.reason, doubted.message))
        baseline = self._measured_baseline(plan)
        evidence: dict[str, Any] = {heat: asdict(median_with_interval(s.events)) for heat, s in (("cold", cold), ("warm", warm))}
        evidence["device"] = gpu
        evidence["speedup"] = {name: speedup(cold, heats["cold"]) for name, heats in baseline.items()}
        return GpuResult(None, evidence)

    def _measured_baseline(self, plan: Plan) -> dict[str, dict[str, Samples]]:
        """The reference's own times, taken once and before any candidate could slow it down."""
        if self._baseline is None:
            message = self._message(plan) | {"seed": secrets.randbits(62)}
            outcome = self.trusted.run(Job(BASELINE, message, limits=LIMITS))
            self._baseline = {}
            for name, heats in outcome.message.items() if outcome.finished else ():
                read = {heat: read_samples(value) for heat, value in heats.items()}
                if all(read.values()):
                    self._baseline[name] = {heat: value for heat, value in read.items() if value is not None}
        return self._baseline


def _unmoved(outcome: Outcome) -> float:
    """Share of finite numbers in what forward returned with its kernels knocked out."""
    knocked = outcome.message.get("knocked")
    arrays = outputs_of(knocked, outcome.buffers) if isinstance(knocked, dict) else None
    finite = [np.isfinite(array.values()) for array in arrays or () if array.floating]
    return float(np.mean([part.mean() for part in finite])) if finite else 0.0


def _renamed(case: Case) -> Case:
    """A full case at the tiny sizes, for machines without a GPU."""
    return Case(case.size.replace("full", "tiny"), case.dtype, case.variation, case.training)
