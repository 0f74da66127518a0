"""The stages that need a GPU, seen from the parent: plans at full shapes, judged in another process; then timing."""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from windtunnel.recipe import UserError
from windtunnel.verify.kernel.admission import JUDGE_BUFFERS, RUN_BUFFERS, TIMED_BUFFERS, GpuMemory, Waits
from windtunnel.verify.kernel.compiling import Compiled, Key
from windtunnel.verify.kernel.gpu_lock import FULL, TIMING, WAITING, gpu_path, opened
from windtunnel.verify.kernel.gpu_seen import SeenGPU, seen_gpu
from windtunnel.verify.kernel.hidden import WIDE, Case, full_cases, new_seed
from windtunnel.verify.kernel.plan import Plan
from windtunnel.verify.kernel.prepared import FLAT
from windtunnel.verify.kernel.task import Task
from windtunnel.verify.kernel.timing import LEAST, Samples, Work, doubt, median_with_interval, read_samples, speedup
from windtunnel.verify.kernel.tiny import Finding, ended, wrong_of
from windtunnel.verify.sandbox import Limits, MiB, Outcome, Runner, SandboxJob

FULL_ENTRY = "windtunnel.verify.kernel.child.full:main"
JUDGE = "windtunnel.verify.kernel.child.judge:main"
BASELINES = ("eager", "compiled")
BASELINE = "windtunnel.verify.kernel.child.judge:baseline"
# In all its waits together: for those who are in the room, all at the same time, then for each worker's timing (20 s) and for a
# reference's (120 s). Where it does not suffice nothing is known of the candidate, which is no refusal.
WAIT_SECONDS = 900.0
LIMITS = Limits(
    wall_seconds=60,
    cpu_seconds=120,
    memory_bytes=8192 * MiB,
    processes=16,
    threads=128,
    result_bytes=8192 * MiB,
    file_bytes=256 * MiB,
    # Who runs or is timed holds up others, and so may not for long.
    phases=((WAITING, WAIT_SECONDS), ("context", 60.0), (FULL, 30.0), (TIMING, 20.0)),
)
BASELINE_LIMITS = replace(LIMITS, wall_seconds=300, phases=((WAITING, WAIT_SECONDS), (TIMING, 120.0)))
MOST_BYTES = 64 << 30  # of a plan's buffers
# So many times as long as beside the reference: clocks are down, and a kernel need not slow down as a copy does.
SLOWED = 1.5
# Sets of inputs that calls draw from, so that what one call computed does not serve the next.
TIMED_SETS = 3
CALLS = 40

# Compiles what was not compiled of a plan's configurations, beside what was.
Rest = Callable[[Compiled, Key], Compiled | Finding]
# Plans by size and dtype.
PlanOf = Mapping[Key, Plan]


@dataclass(frozen=True)
class Runs:
    """What one candidate is run on. The last `timed` cases are the same case with other inputs, and are timed.

    alone: nothing was run before, so that it is not known whether a constant would be right.
    """

    cases: tuple[Case, ...]
    seed: int
    timed: int = TIMED_SETS
    calls: int = CALLS
    alone: bool = False


@dataclass(frozen=True)
class GpuResult:
    """finding: what is wrong, or None. evidence: times and speed-ups, plain JSON. waits: seconds by what was waited for.

    fragile: what is wrong with values alone with which the reference itself is of no use, in words.
    """

    finding: Finding | None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    fragile: tuple[str, ...] = ()
    waits: Mapping[str, float] = field(default_factory=dict)


class GpuStages:
    """Runs full and timing for one task. device 'cpu' goes through the same motions on the interpreter, for tests.

    Safe to call from several threads when the runners are. Several plans share the GPU, except while one is timed: then all
    others wait, in all processes of this machine that come through here. clock: False leaves timing out. baseline: which of the
    reference's own times are taken, and with them the speed-up over each; compiling it takes many seconds a task. index: the
    GPU's number among those that this process may use, whose turns it takes; None takes none. limits: of one candidate's runs,
    else `LIMITS`. calls: how many cold ones are timed at most, not fewer than ten. memory: to be shared with the stages of other
    tasks on the same GPU; None: its own.
    """

    def __init__(
        self,
        task: Task,
        runner: Runner,
        trusted: Runner,
        *,
        clock: bool = True,
        baseline: Collection[str] = BASELINES,
        device: str = "cuda",
        size: str = "full",
        index: int | None = 0,
        limits: Limits | None = None,
        calls: int = CALLS,
        memory: GpuMemory | None = None,
    ) -> None:
        assert calls >= LEAST, f"{calls} calls: fewer than {LEAST} are not believed"
        self.calls = calls
        self.task, self.runner, self.trusted, self.device, self.size = task, runner, trusted, device, size
        self.clock, self.limits, self.index = clock, limits or LIMITS, index
        # By the number that all processes of the machine know it by, whatever CUDA calls it in this one.
        self.use = None if index is None else gpu_path((seen_gpu(index) or SeenGPU(index)).number)
        self.memory = memory or GpuMemory.of(index)
        self.quick = device != "cpu"  # what the interpreter is slow at had better be left to this
        self._lock = threading.Lock()
        self._flops: dict[str, int] = {}
        self._baselines = [name for name in BASELINES if name in baseline]
        self._baseline: dict[str, dict[str, Samples]] | None = None if self._baselines else {}

    def runs(self, seen: Collection[str] = (), *, alone: bool = False, narrow: bool = True) -> Runs:
        """Draw fresh seeds for every case of the task, then the timed ones.

        Args:
            seen: variations that the interpreter ran, of which only the first are run here too.
            alone: nothing was run there.
            narrow: the plans may compute in floats of fewer than 32 bits, whose range is looked at.
        """
        first = self._first()
        cases = [case if self.size == "full" else _renamed(case) for case in full_cases(self.task, seen)]
        cases = [case for case in cases if narrow or case.variation not in WIDE]
        # Cases of one group run one after the other; the timed ones are of the last.
        timed = TIMED_SETS if self.clock else 0
        return Runs(
            (*sorted(cases, key=lambda case: case.group == first.group), *[first] * timed), new_seed(), timed, self.calls, alone
        )

    def first_run(self) -> Runs:
        """Return a run of the first case alone, which nobody times."""
        return Runs((self._first(),), new_seed(), 0, self.calls)

    def _first(self) -> Case:
        return Case(self.size, self.task.dtypes[0], "plain", self.task.training)

    def sizes(self) -> list[str]:
        """Return the sizes that a plan is needed for."""
        return list(dict.fromkeys(case.size for case in self.runs().cases))

    def counts(self, seen: Collection[str] = ()) -> Counter[Key]:
        """Return the runs that a plan of each size and dtype has before anything is timed: so many configurations are run.

        seen: variations that the interpreter will have run by then.
        """
        runs = self.runs(seen)
        return Counter(case.group for case in runs.cases[: len(runs.cases) - runs.timed])

    def judge(
        self, plans: PlanOf, compiled: Compiled | None = None, runs: Runs | None = None, rest: Rest | None = None
    ) -> GpuResult:
        """Run full shapes, then take the times where they are wanted.

        Of clocks that went down while it was timed nothing is known but that: it is timed once more.

        Args:
            plans: of a case.
            compiled: what was compiled before.
            runs: seeds and cases; None: fresh ones.
            rest: compiles what the clock needs beside; only once the values are right.

        Raises:
            UserError: the files of the GPU's lock cannot be opened, or a constant would be right.
        """
        waits = Waits(self.memory)
        result = self._staged(plans, compiled or Compiled(), runs or self.runs(), rest, waits)
        return replace(result, waits=waits.seconds)

    def _staged(self, plans: PlanOf, compiled: Compiled, runs: Runs, rest: Rest | None, waits: Waits) -> GpuResult:
        timed = runs.cases[-1].group
        if not runs.timed or rest is None or not compiled.lacks(timed, plans[timed]):
            return self._attempts(plans, compiled, runs, waits)
        # Values first: every other configuration is compiled for a kernel alone that is right.
        first = self._attempts(plans, compiled, replace(runs, cases=runs.cases[: -runs.timed], timed=0), waits)
        if first.finding is not None:
            return first
        whole = rest(compiled, timed)
        if isinstance(whole, Finding):
            return GpuResult(whole)
        second = self._attempts(plans, whole, replace(runs, cases=runs.cases[-runs.timed :], seed=new_seed()), waits)
        return replace(second, fragile=first.fragile + second.fragile)

    def _attempts(self, plans: PlanOf, compiled: Compiled, runs: Runs, waits: Waits) -> GpuResult:
        if runs.timed:
            self._measured_baseline(runs, plans, waits)
        result = self._judge(plans, compiled, runs, waits)
        # Once more, with another seed: a neighbour on the GPU may have been what was wrong.
        if result.finding is not None and result.finding.reason in ("disturbed", "infrastructure"):
            result = self._judge(plans, compiled, replace(runs, seed=new_seed()), waits, again=True)
        return result

    def _judge(self, plans: PlanOf, compiled: Compiled, runs: Runs, waits: Waits, *, again: bool = False) -> GpuResult:
        with opened(self.use) as use:
            message = self._message(runs) | {
                "plans": {f"{size} {dtype}": plan.model_dump_json() for (size, dtype), plan in plans.items()},
                "kernels": [list(file) for file in compiled.files],
                "among": {" ".join(key): [[step, list(own)] for step, own in n.items()] for key, n in compiled.among.items()},
                "turn": len(use),
            }
            job = SandboxJob(FULL_ENTRY, message, compiled.buffers, limits=self.limits, files=use, keep=True)
            buffers = TIMED_BUFFERS if runs.timed else RUN_BUFFERS
            outcome = self.runner.run(waits.admitted(job, self._memory(buffers, plans, runs, again=again)))
        waits.add_turn(outcome)
        try:
            return self._result(plans, runs, outcome, waits, again=again)
        finally:
            # Gigabytes of outputs: they go as soon as they are judged.
            if outcome.kept is not None:
                outcome.kept.close()

    def _result(self, plans: PlanOf, runs: Runs, outcome: Outcome, waits: Waits, *, again: bool) -> GpuResult:
        if not outcome.finished:
            return GpuResult(_without_answer(outcome))
        stage = "timing" if outcome.phase == TIMING else "full"
        finding = wrong_of(outcome, stage)
        if finding is not None and outcome.message.get("others"):
            return GpuResult(Finding(stage, "infrastructure", "Other processes hold the GPU's memory. Judge this answer later."))
        done = outcome.message["runs"]
        # Wrong values explain more than what the clock saw of them.
        if finding is not None and not (len(done) == len(runs.cases) and stage == "timing"):
            return GpuResult(finding)
        judged = self._judged(plans, runs, outcome, waits, again=again)
        if isinstance(judged, GpuResult):
            return judged
        if finding is not None:
            return GpuResult(finding)
        work, spent, fragile = judged
        evidence: dict[str, Any] = {"device": str(outcome.message.get("device")), "launchers": outcome.message["launchers"]}
        evidence["seconds"] = {**_seconds(outcome), "judge": spent}
        if not runs.timed:
            return GpuResult(None, evidence, fragile)
        timed = self._timed(outcome, work, self._measured_baseline(runs, plans, waits), again=again)
        return replace(timed, evidence={**timed.evidence, **evidence}, fragile=fragile) if timed.finding is None else timed

    def _memory(self, buffers: int, plans: PlanOf, runs: Runs, *, again: bool) -> int:
        """Return the bytes of the GPU to wait for: all of them for one that failed before, since memory may be what it lacked."""
        return self.memory.capacity if again else buffers * _most(plans, runs)

    def _message(self, runs: Runs) -> dict[str, Any]:
        return {
            "sources": {case.size: self.task.at(case.size) for case in runs.cases},
            "cases": [{**case.as_json(), "label": case.label()} for case in runs.cases],
            "seed": runs.seed,
            "fixed": list(self.task.fixed),
            "device": self.device,
            "inplace": list(self.task.inplace),
            "training": self.task.training,
            "timed": runs.timed,
            "calls": runs.calls,
        }

    def _judged(
        self, plans: PlanOf, runs: Runs, outcome: Outcome, waits: Waits, *, again: bool
    ) -> tuple[Work, float, tuple[str, ...]] | GpuResult:
        """Have another trusted child compare, and return what it says of the work, its seconds, and what is fragile.

        The outputs go to it in the file they lie in.
        """
        assert outcome.kept is not None
        with opened(self.use) as use:
            message = self._message(runs) | {
                "runs": outcome.message["runs"],
                "spans": outcome.kept.spans,
                "turn": len(use),
                "tolerance": dict(self.task.tolerance),
                "mismatched": self.task.mismatched,
                "tf32": self.task.tf32,
                "flops": dict(self._flops),
                "alone": runs.alone,
            }
            job = SandboxJob(JUDGE, message, limits=LIMITS, files=(outcome.kept.fd, *use))
            judged = self.trusted.run(waits.admitted(job, self._memory(JUDGE_BUFFERS, plans, runs, again=again)))
        waits.add_turn(judged)
        if not judged.finished:
            return GpuResult(Finding("full", "infrastructure", str(judged.message.get("error", judged.detail))))
        if judged.message.get("flat"):
            raise UserError(FLAT.format(name=self.task.name), "choose inputs or sizes with which the output varies")
        wrong = wrong_of(judged, "full")
        self._flops.update(judged.message["flops"])  # of the task, whoever's outputs these were
        if wrong is not None:
            return GpuResult(wrong)
        return Work(**judged.message["work"]), judged.wall_seconds, tuple(judged.message["fragile"])

    def _timed(self, outcome: Outcome, work: Work, baseline: Mapping[str, Mapping[str, Samples]], *, again: bool) -> GpuResult:
        times = outcome.message["times"]
        samples = {heat: read_samples(times.get(heat)) for heat in ("cold", "warm")}
        cold, warm = samples["cold"], samples["warm"]
        if cold is None or warm is None:
            return GpuResult(Finding("timing", "infrastructure", "the times did not come."))
        gpu = str(outcome.message.get("device"))
        doubted = doubt(cold, work, gpu)
        if doubted is not None:
            return GpuResult(Finding("timing", doubted.reason, doubted.message, doubted.evidence))
        if not again and _slowed(cold, baseline):
            return GpuResult(Finding("timing", "disturbed", "The GPU was slower than when the reference was timed."))
        evidence: dict[str, Any] = {heat: asdict(median_with_interval(s.events)) for heat, s in (("cold", cold), ("warm", warm))}
        evidence["speedup"] = {name: speedup(cold, heats["cold"]) for name, heats in baseline.items()}
        return GpuResult(None, evidence)

    def _measured_baseline(self, runs: Runs, plans: PlanOf, waits: Waits) -> dict[str, dict[str, Samples]]:
        """Return the reference's own times, taken once, alone on the GPU."""
        # The first answer measures, the others wait: two at once would measure each other.
        with self._lock:
            if self._baseline is None:
                with opened(self.use) as use:
                    message = self._message(runs) | {"seed": secrets.randbits(62), "turn": len(use), "baselines": self._baselines}
                    job = SandboxJob(BASELINE, message, limits=BASELINE_LIMITS, files=use)
                    outcome = self.trusted.run(waits.admitted(job, TIMED_BUFFERS * _most(plans, runs)))
                waits.add_turn(outcome)
                self._baseline = {}
                for name, heats in outcome.message.items() if outcome.finished else ():
                    read = {heat: read_samples(value) for heat, value in heats.items()}
                    if all(read.values()):
                        self._baseline[name] = {heat: value for heat, value in read.items() if value is not None}
            return self._baseline


def _most(plans: PlanOf, runs: Runs) -> int:
    """Return the bytes of the buffers of the largest plan that runs."""
    groups = {case.group for case in runs.cases}
    return max((sum(plan.buffers) for key, plan in plans.items() if key in groups), default=0)


def _without_answer(outcome: Outcome) -> Finding:
    """Return how the process of the runs ended: by the plan's doing from the phase on in which it is carried out."""
    stage = "timing" if outcome.phase == TIMING else "full"
    phase, _, kernel = outcome.phase.partition(":")
    if phase == "fault":
        text = f"Kernel{kernel} faulted on the GPU: it read or wrote where no memory is. Mask its accesses."
        return Finding(stage, "out-of-bounds", text)
    if phase in (FULL, TIMING) and outcome.status != "infrastructure":
        if outcome.status == "raised":
            return Finding(stage, "infrastructure", str(outcome.message.get("error", outcome.detail)))
        return ended(outcome, stage)
    text = f"nothing of the candidate had run yet, when the process {outcome.detail or 'ended'}. Judge this answer again."
    return Finding(stage, "infrastructure", text)


def _slowed(samples: Samples, baseline: Mapping[str, Mapping[str, Samples]]) -> bool:
    """Return whether the copy between the calls took much longer than between those of the baseline."""
    then = [median_with_interval(heats["cold"].probe).median for heats in baseline.values()]
    return bool(then) and median_with_interval(samples.probe).median > SLOWED * min(then)


def _seconds(outcome: Outcome) -> dict[str, float]:
    """Return what the child's parts took; 'process' is what its worker saw."""
    return {**outcome.message.get("seconds", {}), "process": outcome.wall_seconds, "cpu": outcome.cpu_seconds}


def _renamed(case: Case) -> Case:
    """Return a full case at the tiny sizes, for machines without a GPU."""
    return Case(case.size.replace("full", "tiny"), case.dtype, case.variation, case.training)
