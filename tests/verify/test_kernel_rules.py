"""What a kernel is judged by: long sizes, the scale of a tolerance, the mode of norms, kinds of refusal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from test_kernel_funnel import KERNEL, REFERENCE
from warm import kernel_box

from windtunnel.recipe import UserError
from windtunnel.verify import find_task
from windtunnel.verify.kernel import GpuStages, KernelVerifier
from windtunnel.verify.kernel.compare import robust_scale
from windtunnel.verify.kernel.gpu import LIMITS
from windtunnel.verify.kernel.hidden import HIDDEN_ELSEWHERE, full_cases, tiny_cases
from windtunnel.verify.kernel.long import LongSizes, block_of, dimension_of, long_sizes
from windtunnel.verify.kernel.prepared import NoTinySize, Preparation
from windtunnel.verify.kernel.task import Task, task_from_source
from windtunnel.verify.sandbox import MiB, Outcome, Sandbox, SandboxJob

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

SIZES = "TASK = {'sizes': {'tiny': {'ROWS': 4, 'COLS': 24}}, 'dtypes': ['float32']}"
NORM = """
import torch
import torch.nn as nn

ROWS, COLS = 64, 32


class Model(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.BatchNorm1d(cols)

    def forward(self, x):
        return torch.relu(self.norm(x))


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return [COLS]
"""
RELU = """
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def relu(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.maximum(tl.load(x + at, mask=at < n, other=0.0), 0.0), mask=at < n)


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.BatchNorm1d(cols)

    def forward(self, x):
        x = NORMED
        y = torch.empty_like(x)
        relu[(triton.cdiv(x.numel(), 128),)](x, y, x.numel(), BLOCK=128)
        return y
"""
NORMED = {
    "PyTorch's": "self.norm(x)",
    "by what was kept": "torch.addcmul(self.norm.bias, x - self.norm.running_mean, self.norm.weight * torch.rsqrt("
    "self.norm.running_var + 1e-5))",
}


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with kernel_box() as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def bias() -> Task:
    return task_from_source(REFERENCE + SIZES, name="bias_relu")


def test_each_dimension_is_long_once_and_no_longer_than_in_the_file(bias: Task) -> None:
    found = long_sizes(bias, 64)
    assert {dimension_of(size) for size in found} == {"ROWS", "COLS"}
    assert max(values["COLS"] for values in found.values()) == 131
    for size, values in found.items():
        other = "COLS" if dimension_of(size) == "ROWS" else "ROWS"
        assert values[other] == bias.sizes["tiny"][other]
    short = replace(bias, sizes={**bias.sizes, "full": {"ROWS": 4, "COLS": 40}})
    assert [values["COLS"] for values in long_sizes(short, 64).values()] == [40]
    assert block_of([]) == 64
    guessed = replace(bias, sizes={**bias.sizes, "full": {}})
    assert {values["COLS"] for size, values in long_sizes(guessed, 64).items() if dimension_of(size) == "COLS"} == {128, 96}


def test_a_grid_that_leaves_the_rest_out_is_wrong_at_a_long_size(bias: Task, box: Sandbox) -> None:
    verdict = KernelVerifier(bias, box).verify(KERNEL.replace("(triton.cdiv(n, 64),)", "(min(triton.cdiv(n, 64), 2),)"))
    assert (verdict.accepted, verdict.reason) == (False, "non-finite"), verdict
    assert "long" in verdict.message
    assert verdict.evidence["kind"] == "wrong"
    right = KernelVerifier(bias, box).verify(KERNEL)
    assert any("long COLS" in label for label in right.evidence["cases"]), right


@pytest.mark.parametrize(
    ("body", "jobs"), [("", 1), ("assert x.shape[1] != 131", 1), ("x.shape[1] == 131 and __import__('os')._exit(1)", 5)]
)
def test_long_sizes_are_asked_in_one_child_as_long_as_none_takes_the_others_with_it(
    body: str, jobs: int, bias: Task, box: Sandbox
) -> None:
    counted = Counting(box)
    head = "def forward(self, x):\n"
    assert head in bias.source
    sizes = LongSizes(replace(bias, source=bias.source.replace(head, f"{head}        {body}\n")), counted)
    found = [form.size for form in sizes.forms(64)]
    assert set(long_sizes(bias, 64)) - set(found) == ({"tiny_long_COLS_131"} if body else set())
    same = [ready.parameters[0].data for ready in sizes.batch([size for size in found if "ROWS" in size]).ready]
    assert len({*map(bytes, same)}) == len(same) > 1, "of one shape, with values of their own"
    assert counted.jobs == jobs


def test_what_a_task_does_not_allow_is_out_of_policy(bias: Task, box: Sandbox) -> None:
    verdict = KernelVerifier(bias, box).verify(KERNEL.replace("return y", "return torch.relu(y)"))
    assert (verdict.reason, verdict.evidence["kind"]) == ("host-compute", "out of policy")


def test_a_mask_does_not_set_the_scale_of_what_it_leaves() -> None:
    dice = np.random.default_rng(0)
    sizes = np.abs(dice.normal(size=10_000))
    assert robust_scale(sizes) == pytest.approx(sizes.mean())
    masked = np.where(dice.random(10_000) < 0.8, 1e9, sizes)
    assert robust_scale(masked) < 10
    steep = np.exp(dice.normal(size=10_000) * 5)
    assert robust_scale(steep) == pytest.approx(steep.mean()), "no gap"
    assert robust_scale(np.zeros(5)) == 0.0
    from windtunnel.verify.kernel.child.compare import robust_scale as on_device

    assert on_device(torch.from_numpy(masked)) == pytest.approx(robust_scale(masked))
    assert on_device(torch.zeros(5)) == 0.0


@pytest.mark.parametrize(("training", "right"), [(True, "PyTorch's"), (False, "by what was kept"), (False, "PyTorch's")])
def test_a_norm_is_run_in_the_mode_of_its_task(training: bool, right: str, box: Sandbox) -> None:
    task = replace(task_from_source(NORM, name="norm"), dtypes=("float32",), operations="any")
    assert task.training, "as KernelBench runs it"
    task = replace(task, training=training)
    assert {case.training for case in (*tiny_cases(task), *full_cases(task))} == {training}
    verdict = KernelVerifier(task, box).verify(RELU.replace("NORMED", NORMED[right]))
    assert verdict.accepted, verdict
    assert verdict.reward is not None
    assert 0 < verdict.reward < 1, "the share of the work that is the kernel's"
    if training:
        wrong = KernelVerifier(task, box).verify(RELU.replace("NORMED", NORMED["by what was kept"]))
        assert wrong.reason == "wrong-values"


def test_a_gpu_runs_the_values_that_the_interpreter_had_no_time_for() -> None:
    task = replace(find_task("softmax"), dtypes=("float32",), variations=("plain", *HIDDEN_ELSEWHERE))

    def variations(seen: set[str]) -> set[str]:
        return {case.variation for case in full_cases(task, seen)} - {"wide"}

    assert variations({"plain"}) == {"plain", *HIDDEN_ELSEWHERE}
    assert variations({"plain", *HIDDEN_ELSEWHERE}) == {"plain", "negated"}


def test_a_task_too_large_for_the_interpreter_is_left_to_a_gpu(box: Sandbox) -> None:
    huge = NORM.replace("ROWS, COLS = 64, 32", "COLS = 3").replace("ROWS", "4_000")
    task = replace(task_from_source(huge, name="huge"), dtypes=("float32",), operations="any")
    answer = RELU.replace("NORMED", NORMED["PyTorch's"])
    with pytest.raises(UserError, match="no tiny size"):
        KernelVerifier(task, box).verify(answer)

    small = replace(LIMITS, result_bytes=64 * MiB)

    def stages(of: Task) -> GpuStages:
        made = GpuStages(of, box, box, clock=False, baseline=(), device="cpu", index=None, limits=small)
        made.quick = True  # as on a GPU
        return made

    verdict = KernelVerifier(task, box, gpu=stages(task)).verify(answer)
    assert verdict.accepted, verdict
    assert verdict.evidence["cases"] == []
    wrong = KernelVerifier(task, box, gpu=stages(task)).verify(answer.replace("(triton.cdiv(x.numel(), 128),)", "(3,)"))
    assert (wrong.accepted, wrong.stage) == (False, "full"), wrong
    flat = replace(task, source=huge.replace("torch.relu(self.norm(x))", "torch.relu(self.norm(x) - 99)"))
    with pytest.raises(UserError, match="constant"):
        KernelVerifier(flat, box, gpu=stages(flat)).verify(answer)


def test_inputs_that_a_file_makes_on_a_gpu_are_made_here(box: Sandbox) -> None:
    source = NORM.replace("torch.randn(ROWS, COLS)", "torch.randn(ROWS, COLS, device='cuda').to('cuda:0').cuda()")
    task = task_from_source(source, name="norm")
    assert KernelVerifier(task, box).verify(RELU.replace("NORMED", NORMED["PyTorch's"])).accepted


def test_a_counter_of_batches_may_have_any_name(box: Sandbox) -> None:
    task = replace(task_from_source(NORM, name="norm"), dtypes=("float32",), operations="any")
    other = RELU.replace("NORMED", "self.bn(x)").replace("self.norm = nn", "self.bn = nn")
    assert KernelVerifier(task, box).verify(other).accepted


def test_a_variable_may_be_called_as_a_builtin(bias: Task, box: Sandbox) -> None:
    source = KERNEL
    name = next(line for line in source.splitlines() if "tl.program_id(0)" in line).split("=")[0].strip()
    assert name.isidentifier()
    renamed = re.sub(rf"\b{name}\b", "sum", source)
    assert KernelVerifier(bias, box).verify(renamed).accepted
    refused = KernelVerifier(bias, box).verify(re.sub(rf"\b{name}\b", "range", source))
    assert refused.reason == "kernel-call"


def test_parameters_that_no_size_makes_smaller_are_asked_for_twice_alone(box: Sandbox) -> None:
    norm = "self.norm = nn.BatchNorm1d(cols)"
    source = NORM.replace(norm, f"{norm}; self.big = nn.Linear(9000, 9000)")
    preparation = Preparation(task_from_source(source, name="big"), counting := Counting(box))
    with pytest.raises(NoTinySize, match="parameters have"):
        preparation.batch()
    assert counting.jobs == 2
    with pytest.raises(NoTinySize):
        preparation.batch()
    assert counting.jobs == 2, "known by then"


class Counting:
    """A runner that counts."""

    def __init__(self, runner: Sandbox) -> None:
        self.runner, self.jobs = runner, 0

    def run(self, job: SandboxJob) -> Outcome:
        self.jobs += 1
        return self.runner.run(job)


def test_what_is_wrong_at_guessed_sizes_is_judged_at_the_own_ones_with_the_same_values(box: Sandbox) -> None:
    task = task_from_source(NORM.replace("self.norm(x)", "x").replace("self.norm = nn.BatchNorm1d(cols)", ""), name="relu")
    small = replace(LIMITS, result_bytes=64 * MiB)
    stages = GpuStages(task, box, box, clock=False, baseline=(), device="cpu", index=None, limits=small)
    stages.quick = True
    answer = RELU.replace("NORMED", "x").replace("self.norm = nn.BatchNorm1d(cols)", "")
    assert KernelVerifier(task, box, gpu=stages).verify(answer).accepted
    few = answer.replace("mask=at < n)\n", "mask=(at < n) & (n > 1000))\n", 1)
    assert few != answer
    verdict = KernelVerifier(task, box, gpu=stages).verify(few)
    assert verdict.accepted, verdict
    assert "tiny" in verdict.evidence
    signs = answer.replace("tl.maximum(tl.load(x + at, mask=at < n, other=0.0), 0.0)", "tl.load(x + at, mask=at < n, other=0.0)")
    positive = replace(task, source=task.source.replace("randn", "rand"))
    stages.task = positive
    refused = KernelVerifier(positive, box, gpu=stages).verify(signs)
    assert (refused.accepted, refused.stage, refused.reason) == (False, "full", "wrong-values"), refused
