"""A GPU that others use too: an honest candidate is not refused for what they do, and no candidate can make its own excuse."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

pytest.importorskip("triton")
from test_kernel_funnel import KERNEL, REFERENCE
from warm import kernel_box

from windtunnel.verify import GpuStages, KernelVerifier
from windtunnel.verify.kernel.gpu import FULL, PROBE
from windtunnel.verify.kernel.neighbours import CALLS, Look, excused
from windtunnel.verify.kernel.task import task_from_source
from windtunnel.verify.kernel.tiny import Finding
from windtunnel.verify.sandbox import Job, Outcome, Sandbox

TASK = task_from_source(REFERENCE + "TASK = {'sizes': {'tiny': {'ROWS': 4, 'COLS': 24}}, 'dtypes': ['float32']}", name="bias")
SOURCE = KERNEL.replace("assert x.is_cuda", "assert x.dim() == 2")
LATE = Finding("timing", "clock-disagrees", "", {"events": 1e-4, "wall": 5e-4})
CALL, WALL = 1e-4, 5e-4
FAST, SLOW = [2e-5] * CALLS, [4e-4] * CALLS


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with kernel_box() as made:
        yield made


class Machine:
    """A GPU whose calls all take as long, but on which the wall clock may see more than events do.

    late: the entries for which it does. until: their last such run.
    """

    def __init__(self, box: Sandbox, *late: str, until: int = 99) -> None:
        self.box, self.late, self.until, self.runs = box, late, until, list[str]()

    def run(self, job: Job) -> Outcome:
        """Run it, and say what its clock saw."""
        outcome = self.box.run(job)
        self.runs.append(job.entry)
        late = job.entry in self.late and self.runs.count(job.entry) <= self.until
        if job.entry == PROBE and late:
            outcome.message["wall"] = [seconds + 1e-3 for seconds in outcome.message["wall"]]
        if job.entry == FULL:  # this machine's own times are those of its other processes too
            for heat in outcome.message.get("times", {}).values():
                for name, seconds in heat.items():
                    heat[name] = [WALL if name == "wall" and late else CALL] * len(seconds)
        return outcome


def stages(machine: Machine) -> GpuStages:
    return GpuStages(TASK, machine, machine, baseline=False, device="cpu", size="tiny", index=None)


def test_who_is_late_while_nobody_else_uses_the_gpu_is_refused_after_two_more_runs(box: Sandbox) -> None:
    machine = Machine(box, FULL)
    verdict = KernelVerifier(TASK, box, gpu=stages(machine)).verify(SOURCE)
    assert (verdict.reason, verdict.reward) == ("clock-disagrees", 0.0), verdict
    assert machine.runs.count(FULL) == 3
    assert machine.runs.count(PROBE) == 4


def test_who_is_late_while_another_process_uses_the_gpu_is_neither_right_nor_wrong(box: Sandbox) -> None:
    machine = Machine(box, FULL, PROBE)
    verdict = KernelVerifier(TASK, box, gpu=stages(machine)).verify(SOURCE)
    assert verdict.infrastructure, verdict
    assert verdict.reward is None
    assert "another process uses the GPU" in verdict.message


def test_a_neighbour_that_goes_away_costs_nothing(box: Sandbox) -> None:
    found = stages(Machine(box, FULL, until=2))
    plan = found.plan()
    assert found.judge(SOURCE, replace(plan, calls=10)).finding is None


def test_wrong_values_are_never_excused(box: Sandbox) -> None:
    found = stages(Machine(box, FULL, PROBE))
    result = found.judge(SOURCE.replace("x + b, 0.0", "x, 0.0"), replace(found.plan(), calls=10))
    assert result.finding is not None
    assert result.finding.reason == "wrong-values"


def test_what_excuses() -> None:
    quiet, shared = Look(FAST, FAST, 100, 141), Look(FAST, SLOW, 100, 141)
    assert excused(LATE, [quiet, quiet], 0) is None
    assert excused(LATE, [None, None], 0) is None
    assert "GPU 0" in str(excused(LATE, [quiet, shared], 0))
    now_and_then = Look(FAST, [*FAST[:40], *SLOW[:20]])
    assert excused(LATE, [now_and_then], 0)
    assert excused(LATE, [Look(FAST, [*FAST[:55], *SLOW[:5]])], 0) is None
    early = replace(LATE, evidence={"events": 5e-4, "wall": 1e-4})
    assert excused(early, [shared, shared], 0) is None, "no neighbour makes events longer than the wall clock"
    assert excused(Finding("timing", "clock-disagrees", ""), [shared], 0) is None, "times that add up to more than its life"
    assert excused(Finding("timing", "impossible-speed", ""), [shared], 0) is None


def test_memory_that_others_hold_is_not_held_against_a_candidate() -> None:
    full = Finding("full", "gpu-memory", "")
    assert excused(full, [Look(FAST, FAST, 100 << 30, 139 << 30)], 0) is None
    assert "MiB are free" in str(excused(full, [Look(FAST, FAST, 9 << 30, 139 << 30)], 0))
