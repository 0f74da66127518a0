"""Whose fault it is: nothing that a candidate does makes its own failure one of the machinery, and no kernel goes uncompiled."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from warm import compiler_box, kernel_box

from windtunnel.verify.kernel import GpuStages, KernelVerifier, Task
from windtunnel.verify.kernel.gpu import FULL_ENTRY
from windtunnel.verify.kernel.prepared import Batch, Preparation
from windtunnel.verify.kernel.record import form_of, forms_of, read_recorded, record_job
from windtunnel.verify.kernel.replay import replay_job
from windtunnel.verify.kernel.tiny import Finding, ended, judge_compile, judge_tiny, wrong_of
from windtunnel.verify.sandbox import Outcome, Sandbox, SandboxJob
from windtunnel.verify.tasks import find

pytest.importorskip("triton")

HEAD = """\
import typing

import torch
import torch.nn as nn
import triton
import triton.language as tl

"""
KERNEL = """
@triton.jit
def bias_gelu(x_ptr, b_ptr, y_ptr, n, cols, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0).to(tl.float32) + tl.load(b_ptr + at % cols, mask=at < n, other=0.0)
    tl.store(y_ptr + at, 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476)), mask=at < n)


"""
INIT = """\
class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(cols))
"""
FORWARD = """
    def forward(self, x):
        y = torch.empty_like(x)
        bias_gelu[(triton.cdiv(x.numel(), 64),)](x, self.bias, y, x.numel(), x.shape[1], BLOCK=64)
"""
RETURN = "        return y\n"
HONEST = HEAD + KERNEL + INIT + FORWARD + RETURN
ERROR = """
class Odd(BaseException):
    def __str__(self):
        raise SystemExit


"""
# What is done in place of honest work → the reason that it is refused for. Some of it the allow-list refuses before.
CHOICES = {
    "exit at import": (HEAD + "typing.sys.exit(0)\n" + KERNEL + INIT + FORWARD + RETURN, "import-failed"),
    "exit in __init__": (HEAD + KERNEL + INIT + "        raise SystemExit\n" + FORWARD + RETURN, "construction-failed"),
    "exit in forward": (HEAD + KERNEL + INIT + FORWARD + "        typing.sys.exit(0)\n", "raised"),
    "interrupt in forward": (HEAD + KERNEL + INIT + FORWARD + "        raise KeyboardInterrupt\n", "raised"),
    "an error without words": (HEAD + ERROR + KERNEL + INIT + FORWARD + "        raise Odd\n", "raised"),
    "a tensor without memory": (
        HEAD + KERNEL + INIT + '        self.m = torch.empty(3, device="meta")\n' + FORWARD + RETURN,
        "keeps-state",
    ),
    "a parameter that shares memory": (
        HEAD + KERNEL + INIT.replace("torch.zeros(cols)", "torch.zeros(1).expand(cols)") + FORWARD + RETURN,
        "parameters-differ",
    ),
    "a state dict that raises": (
        HEAD + KERNEL + INIT + "\n    def state_dict(self, *args):\n        raise GeneratorExit\n" + FORWARD + RETURN,
        "parameters-differ",
    ),
    "an attribute that raises": (
        HEAD + KERNEL + INIT + "\n    def train(self, mode):\n        raise SystemExit\n" + FORWARD + RETURN,
        "raised",
    ),
    "an output without memory": (
        HEAD + KERNEL + INIT + FORWARD + "        y.untyped_storage().resize_(0)\n" + RETURN,
        "raised",
    ),
    "no memory": (HEAD + KERNEL + INIT + FORWARD + "        raise MemoryError\n", "raised"),
    "prints without end": (HEAD + KERNEL + INIT + FORWARD + "        print('x' * (1 << 21))\n" + RETURN, "too-much-output"),
    "many prints": (
        HEAD + KERNEL + INIT + FORWARD + "        for _ in range(1000): print('x' * 1000)\n" + RETURN,
        "too-much-output",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def task() -> Task:
    return find("bias_gelu")


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with kernel_box() as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def compiler() -> Iterator[Sandbox]:
    with compiler_box() as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def batch(task: Task, box: Sandbox) -> Batch:
    return Preparation(task, box).batch()


def slug(finding: Finding | None) -> str | None:
    return None if finding is None else finding.reason


# Of those, what the recorder says where it is something else: without a run there is nothing to keep, and no memory to lose.
RECORDED = {
    "a tensor without memory": "accepted",
    "an attribute that raises": "construction-failed",
    "an output without memory": "accepted",
}


@pytest.mark.parametrize("choice", CHOICES)
def test_a_candidate_cannot_choose_that_nothing_is_known(choice: str, task: Task, box: Sandbox) -> None:
    source, reason = CHOICES[choice]
    verdict = KernelVerifier(task, box).verify(source)
    assert verdict.reason == RECORDED.get(choice, reason), verdict
    assert verdict.message.strip()


def test_a_plan_that_is_too_long_is_not_called_print(task: Task, box: Sandbox) -> None:
    launch = next(line.strip() for line in FORWARD.splitlines() if "](" in line)
    often = FORWARD.replace(launch, f"for _ in range(70_000): {launch}")
    verdict = KernelVerifier(task, box).verify(HEAD + KERNEL + INIT + often + RETURN)
    assert (verdict.stage, verdict.reason) == ("record", "too-much-output"), verdict
    assert "launch plan is too long: it has 70,0" in verdict.message


def test_what_fails_before_a_candidate_is_loaded_is_the_machinerys(task: Task, box: Sandbox, batch: Batch) -> None:
    forms = forms_of(batch)
    job = record_job(HONEST, forms)
    plans, found = read_recorded(box.run(job), forms, task)
    assert found is None
    broken = SandboxJob(job.entry, {"source": HONEST}, job.buffers, job.limits)
    assert slug(read_recorded(box.run(broken), forms, task)[1]) == "infrastructure"
    replay = replay_job(plans, forms, task, batch)
    broken = SandboxJob(
        replay.entry, {key: value for key, value in replay.message.items() if key != "seed"}, replay.buffers, replay.limits
    )
    order = [ready for form in forms for ready in batch.ready if form_of(ready) == form]
    assert slug(judge_tiny(box.run(broken), task, order)) == "infrastructure"
    assert judge_tiny(box.run(replay), task, order) is None


def test_a_childs_word_for_it_is_not_taken() -> None:
    told = wrong_of(Outcome("finished", "", message={"wrong": {"reason": "infrastructure", "message": "x"}}), "tiny")
    assert slug(told) == "raised"


NOT_COMPILING = """
@triton.jit
def odd(y_ptr, n):
    total = 0
    for at in range(0, n):
        total = total + 0.5
    tl.store(y_ptr, total, mask=n > 60)


"""  # a compiler wants one type for total, the interpreter does not mind


def test_a_kernel_for_ragged_sizes_alone_is_compiled_too(task: Task, box: Sandbox, compiler: Sandbox) -> None:
    verifier = KernelVerifier(task, box, compiler=compiler)
    split = FORWARD.replace("bias_gelu[", "(bias_gelu if x.numel() % 16 == 0 else ragged)[")
    kernels = KERNEL + KERNEL.replace("def bias_gelu", "def ragged")
    right = verifier.verify(HEAD + kernels + INIT + split + RETURN)
    assert right.accepted, right
    assert set(right.evidence["kernels"]["compiled"]) == {"bias_gelu", "ragged"}
    odd = FORWARD + "        if x.numel() % 16 != 0:\n            odd[(1,)](y, 60)\n"
    wrong = verifier.verify(HEAD + KERNEL + NOT_COMPILING + INIT + odd + RETURN)
    assert (wrong.stage, wrong.reason) == ("compile", "compile-error")
    assert "odd" in wrong.message


@pytest.mark.parametrize("status", ["timeout", "memory", "killed", "output", "exited"])
def test_how_a_child_ended_is_said_for_its_stage(status: str) -> None:
    said = {stage: ended(Outcome(status, ""), stage) for stage in ("compile", "tiny", "full")}  # type: ignore[arg-type]
    for stage, finding in said.items():
        assert finding.stage == stage
        assert finding.reason != "infrastructure"
    if status in ("timeout", "killed"):
        assert "compile" in said["compile"].message
        assert "tensors" not in said["compile"].message
        assert "compile" not in said["tiny"].message


class Ending:
    """A runner in which every candidate's process ends in one way."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome, self.runs = outcome, list[str]()

    def run(self, job: SandboxJob) -> Outcome:
        """How it ended."""
        self.runs.append(job.entry)
        return self.outcome if job.entry == FULL_ENTRY else Outcome("finished", "", message={})


@pytest.mark.parametrize("status", ["timeout", "memory", "killed", "output", "exited"])
@pytest.mark.parametrize("phase", ["", "context", "full", "waiting", "timing", "fault: odd"])
def test_what_ends_a_process_before_a_plan_is_carried_out_is_the_machinerys(status: str, phase: str, task: Task) -> None:
    ending = Ending(Outcome(status, "did so", phase=phase, wall_seconds=90.0))  # type: ignore[arg-type]
    found = GpuStages(task, ending, ending, baseline=(), device="cpu", size="tiny", index=None).judge({}).finding
    assert found is not None
    begun = phase in ("full", "timing", "fault: odd")
    assert (found.reason == "infrastructure") is not begun, found
    assert ending.runs.count(FULL_ENTRY) == (1 if begun else 2), "it is not tried for ever"
    if phase.startswith("fault"):
        assert found.reason == "out-of-bounds"
        assert "Kernel odd faulted" in found.message


@pytest.mark.parametrize("status", ["timeout", "memory", "killed", "output", "exited"])
def test_nor_is_it_the_candidates_without_a_gpu(status: str, task: Task, batch: Batch) -> None:
    for phase in ("", "record"):
        outcome = Outcome(status, "did so", phase=phase)  # type: ignore[arg-type]
        for stage, found in (
            ("record", read_recorded(outcome, forms_of(batch), task)[1]),
            ("compile", judge_compile(outcome)),
            ("tiny", judge_tiny(outcome, task, batch.ready)),
        ):
            assert found is not None
            assert (found.stage, found.reason == "infrastructure") == (stage, not phase), found


LOST = """
import os, sys
os.dup2(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT), 3)
from windtunnel.verify.kernel.child import full

class Replayed:
    last = "strays_kernel"

def broken(bench):
    if sys.argv[2]:
        bench.replay = Replayed()
    raise RuntimeError("CUDA error: an illegal instruction was encountered")

full._Bench.run_all = broken
full._lost = lambda device: True
full.main({"device": "cpu", "turn": 0, "kernels": [], "timed": 0, "seed": 1}, [])
"""


@pytest.mark.parametrize("ran", [True, False], ids=["kernels ran", "none ran"])
def test_a_context_that_is_lost_is_laid_to_the_kernels_that_ran_in_it_whoever_finds_it(tmp_path: Path, ran: bool) -> None:
    """What a kernel overwrote far from its tensors may end the judge's own work only later."""
    command = [sys.executable, "-c", LOST, str(tmp_path / "reply"), "ran" if ran else ""]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    said = (tmp_path / "reply").read_bytes()
    assert done.returncode == 1
    # Either way the process is gone, and its dead context with it; of which nothing is known while no kernel has run.
    assert said.rstrip(b"\0") == (b"fault: strays_kernel" if ran else b"context")
