"""A kernel that a compiler is never done with costs its own time and no more, wherever that time goes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from windtunnel.recipe import UserError
from windtunnel.verify import KernelVerifier, Task, compiler_sandbox, kernel_sandbox
from windtunnel.verify.sandbox import Outcome, Sandbox

pytest.importorskip("triton")

from windtunnel.verify.kernel.compiling import compile_job
from windtunnel.verify.kernel.record import file_forms, read_recorded, record_job
from windtunnel.verify.kernel.task import task_from_source
from windtunnel.verify.kernel.tiny import judge_compile

TASK = """\
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(128, 128)]


def get_init_inputs():
    return []
"""
KERNEL = """\
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def relu_kernel(x, y, BLOCK: tl.constexpr):
    rows, cols = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    v = tl.load(x + rows * BLOCK + cols)
    {work}
    tl.store(y + rows * BLOCK + cols, tl.maximum(v, 0.0))


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        relu_kernel[(1,)](x, y, BLOCK=128)
        return y
"""
UNROLLED = "for i in tl.static_range(100000):\n        v = tl.sin(v) + i"
# One warp holds 128 x 128 numbers in registers that it has not: the assembler moves them to and fro.
SPILLED = "for i in tl.static_range(12):\n        v = tl.dot(v, v, input_precision='ieee')"


@pytest.fixture(scope="module")
def boxes() -> Iterator[list[Sandbox]]:
    with ExitStack() as opened:
        yield [opened.enter_context(make()) for make in (kernel_sandbox, lambda: compiler_sandbox(binary=True))]


def compiled(boxes: list[Sandbox], work: str, seconds: float, *, binary: bool) -> Outcome:
    task: Task = task_from_source(TASK, name="relu")
    forms = file_forms(task, boxes[0], ["full"])
    plans, found = read_recorded(
        boxes[0].run(record_job(KERNEL.format(work=work), forms)), forms, task, lambda form: {"most_bytes": 1 << 30}
    )
    assert found is None
    return boxes[1].run(compile_job(plans, forms, 90, seconds=seconds, binary=binary))


@pytest.mark.parametrize(("work", "binary"), [(UNROLLED, False), (UNROLLED, True), (SPILLED, True)])
def test_a_kernel_has_a_time_of_its_own_to_be_compiled_in(boxes: list[Sandbox], work: str, binary: bool) -> None:
    outcome = compiled(boxes, work, 1.0, binary=binary)
    found = judge_compile(outcome)
    assert found is not None
    assert (found.stage, found.reason) == ("compile", "timeout")
    assert "relu_kernel" in found.message
    # The limit went with the kernel: the next one has its own.
    assert judge_compile(compiled(boxes, "v = v * 1.0", 60.0, binary=True)) is None


def test_a_task_says_how_long_its_kernels_may_take(boxes: list[Sandbox]) -> None:
    told = "N = 128\nTASK = {'compile_seconds': 1.0, 'sizes': {'tiny': {'N': 8}}}\n\n\nclass Model"
    source = TASK.replace("class Model", told).replace("128, 128", "N, N")
    task = task_from_source(source, name="relu")
    verdict = KernelVerifier(task, boxes[0], compiler=boxes[1]).verify(KERNEL.format(work=UNROLLED))
    assert (verdict.stage, verdict.reason) == ("compile", "timeout")
    with pytest.raises(UserError, match="compile_seconds"):
        task_from_source(TASK.replace("class Model", "TASK = {'compile_seconds': 0}\n\n\nclass Model"), name="relu")


def test_the_optimiser_is_left_out_where_no_code_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton._C.libtriton import llvm
    from triton.runtime import driver

    from windtunnel.verify.kernel.child.compile import Compiler

    monkeypatch.setattr(driver, "set_active", lambda _: None)
    own = llvm.optimize_module
    for binary in (False, True):
        with Compiler(90, binary=binary).installed():
            assert (llvm.optimize_module is own) is binary
        assert llvm.optimize_module is own
