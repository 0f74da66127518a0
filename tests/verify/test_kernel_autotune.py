"""Kernels that choose among configurations: each must be right, those that do not fit are passed over, nothing is reset."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch
from warm import gpu_box, reference_box, wait_long

from windtunnel.verify import (
    GpuStages,
    KernelVerifier,
    Task,
    compiler_sandbox,
    find_task,
    kernel_sandbox,
)
from windtunnel.verify.sandbox import Outcome, Sandbox, SandboxJob

pytest.importorskip("triton")

from windtunnel.verify.kernel.child.replay import Replay
from windtunnel.verify.kernel.compiling import Compiled, compile_job, drawn_orders, read_compiled
from windtunnel.verify.kernel.gpu import GpuResult, PlanOf, Runs
from windtunnel.verify.kernel.plan import Choice, Plan
from windtunnel.verify.kernel.record import HostForm, file_forms, read_recorded, record_job
from windtunnel.verify.kernel.task import task_from_source
from windtunnel.verify.kernel.tiny import Finding, judge_compile

pytestmark = pytest.mark.end_to_end

SOURCE = """\
import torch
import torch.nn as nn
import triton
import triton.language as tl


CONFIGS = [triton.Config({"BLOCK": block, "WHICH": number}) for number, block in enumerate((%(blocks)s))]


@triton.autotune(configs=CONFIGS, key=["n"]%(options)s)
@triton.jit
def relu_kernel(x, y, n, BLOCK: tl.constexpr, WHICH: tl.constexpr):
    %(first)s
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.maximum(tl.load(x + at, mask=at < n, other=0.0), 0.0)
    %(store)s


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.%(made)s(x)
        n = x.numel()
        relu_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n)
        return y
"""
HONEST = {
    "blocks": "64, 128, 256, 512",
    "options": "",
    "first": "tl.static_assert(BLOCK > 32)",
    "store": "tl.store(y + at, v, mask=at < n)",
    "made": "empty_like",
}
ADDED = {"store": "tl.atomic_add(y + at, v, mask=at < n)", "options": ', reset_to_zero=["y"]'}
# What is changed in the honest candidate → the reasons that it may be refused for.
CHANGES: dict[str, tuple[dict[str, str], set[str]]] = {
    "nothing": ({}, {"accepted"}),
    "most do not fit": ({"first": 'tl.static_assert(BLOCK == 128, "128")'}, {"accepted"}),
    "all too large": ({"first": "tl.static_assert(BLOCK > 512)"}, {"compile-error"}),
    "all fail alike": ({"first": "tl.arange(0, 3)"}, {"compile-error"}),
    "one is wrong": ({"first": "n = 0 if BLOCK == 64 else n"}, {"accepted", "non-finite", "timed-output-differs"}),
    "zeros of its own": ({**ADDED, "made": "zeros_like"}, {"accepted"}),
    "zeros of the tuner's": (ADDED, {"non-finite", "wrong-values"}),
}


def source_of(name: str) -> str:
    return SOURCE % (HONEST | CHANGES[name][0])


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_long(monkeypatch)


@pytest.fixture(scope="module")
def boxes() -> Iterator[list[Sandbox]]:
    with ExitStack() as opened:
        yield [opened.enter_context(make()) for make in (kernel_sandbox, compiler_sandbox)]


@pytest.mark.parametrize("name", [name for name in CHANGES if name != "one is wrong"])
def test_a_choice_of_configurations(boxes: list[Sandbox], name: str) -> None:
    verifier = KernelVerifier(find_task("relu"), boxes[0], compiler=boxes[1])
    found = {verifier.verify(source_of(name)).reason for _ in range(4)}  # each time another choice
    assert found <= CHANGES[name][1], found


@pytest.mark.parametrize("many", [4, 60])
def test_a_wrong_configuration_is_found_among_many(boxes: list[Sandbox], many: int) -> None:
    verifier = KernelVerifier(find_task("relu"), boxes[0], compiler=boxes[1])
    blocks = ", ".join(["64", *["128"] * (many - 1)])
    source = SOURCE % (HONEST | CHANGES["one is wrong"][0] | {"blocks": blocks})
    assert {verifier.verify(source).reason for _ in range(4)} <= {"non-finite"}


def plans_of(boxes: list[Sandbox], source: str, task: Task, sizes: list[str]) -> tuple[PlanOf, Finding | None]:
    forms = file_forms(task, boxes[0], sizes)
    plans, finding = read_recorded(boxes[0].run(record_job(source, forms)), forms, task)
    return {(form.size, form.dtype): plan for form, plan in zip(forms, plans, strict=False)}, finding


@pytest.mark.parametrize(("device", "ways"), [("cpu", 2), ("cuda", 4)])
def test_on_the_interpreter_warps_make_no_other_configuration(boxes: list[Sandbox], device: str, ways: int) -> None:
    task = replace(find_task("relu"), dtypes=("float32",))
    warps = [f'triton.Config({{"BLOCK": {block}, "WHICH": 1}}, num_warps={warps})' for block in (64, 128) for warps in (1, 2)]
    source = (SOURCE % HONEST).replace("configs=CONFIGS", f"configs=[{', '.join(warps)}]")
    plans, finding = plans_of(boxes, source, task, ["tiny"])
    assert finding is None
    replay = Replay(plans["tiny", "float32"], lambda *_: None, random.Random(0), (), device)
    ((number, _),) = replay.choices()
    assert len(replay.times[number]) == ways == replay.untried()


@pytest.mark.gpu
@pytest.mark.timeout(600)
@pytest.mark.parametrize("clock", [False, True])
def test_the_same_on_a_gpu_where_the_fastest_is_timed(boxes: list[Sandbox], clock: bool) -> None:
    with gpu_box() as gpu, reference_box() as trusted:
        assert wrong_on(boxes, GpuStages(find_task("relu"), gpu, trusted, clock=clock, baseline=())) == {}


def test_the_gpu_stages_go_through_their_motions(boxes: list[Sandbox]) -> None:
    task = replace(find_task("relu"), dtypes=("float32",))  # the interpreter adds no bfloat16 atomically
    assert wrong_on(boxes, GpuStages(task, boxes[0], boxes[0], baseline=(), device="cpu", size="tiny", index=None)) == {}


def wrong_on(boxes: list[Sandbox], stages: GpuStages) -> dict[str, str]:
    """Which findings of the GPU's stages alone, nothing having run on the interpreter before, are not the wanted ones."""
    wrong = {}
    for name, (_, reasons) in CHANGES.items():
        plans, finding = plans_of(boxes, source_of(name), stages.task, stages.sizes())
        finding = finding or stages.judge(plans).finding
        found = "accepted" if finding is None else finding.reason
        if found not in reasons | ({"raised"} if reasons == {"compile-error"} else set()):
            wrong[name] = found
    return wrong


CROWDED = """\
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.autotune(
    configs=[
        triton.Config({"BLOCK": 32}, num_warps=4, num_stages=1),
        triton.Config({"BLOCK": 256}, num_warps=16, num_stages=3),
    ],
    key=["n"],
)
@triton.jit
def product(a, b, c, n, k, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inner = tl.arange(0, 32)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(0, k, 32):
        left = tl.load(a + rows[:, None] * k + start + inner, mask=(rows[:, None] < n) & (start + inner < k), other=0.0)
        right = tl.load(b + (start + inner)[:, None] * n + columns, mask=(start + inner)[:, None] < k, other=0.0)
        total = tl.dot(left, right, total)
    for _ in tl.static_range(32):
        total = total * 1.5 + 0.25
    tl.store(c + rows[:, None] * n + columns, total, mask=(rows[:, None] < n) & (columns < n))


class ModelNew(nn.Module):
    def forward(self, a, b):
        n, k = a.shape
        c = torch.empty(n, n, device=a.device)
        product[lambda meta: (triton.cdiv(n, meta["BLOCK"]), triton.cdiv(n, meta["BLOCK"]))](a, b, c, n, k)
        return c
"""


def test_a_configuration_that_the_assembler_has_no_registers_for_is_passed_over() -> None:
    """Triton prints the whole kernel then, which is more than a child may."""
    task = task_from_source(
        "import torch\nimport torch.nn as nn\n\nN, K = 1024, 1024\n\n\nclass Model(nn.Module):\n    def forward(self, a, b):\n"
        "        return a @ b\n\n\ndef get_inputs():\n    return [torch.rand(N, K), torch.rand(K, N)]\n\n\n"
        "def get_init_inputs():\n    return []\n",
        name="product",
    )
    with kernel_sandbox() as box, compiler_sandbox() as compiler:
        forms = file_forms(task, box, ["full"])
        plans, wrong = read_recorded(box.run(record_job(CROWDED, forms)), forms, task)
        assert wrong is None, wrong
        outcome = compiler.run(compile_job(plans, forms, 90, binary=True))
    assert judge_compile(outcome) is None, outcome.message
    assert sum(name.endswith(".cubin") for _, name in outcome.message["files"]) == 1


def compiled_plans(boxes: list[Sandbox], changes: dict[str, str]) -> tuple[list[HostForm], list[Plan]]:
    task = replace(find_task("relu"), dtypes=("float32",))
    forms = file_forms(task, boxes[0], ["full"])
    plans, wrong = read_recorded(boxes[0].run(record_job(SOURCE % (HONEST | changes), forms)), forms, task)
    assert wrong is None, wrong
    return forms, plans


def test_as_many_configurations_are_compiled_as_are_wanted_and_later_the_others(boxes: list[Sandbox]) -> None:
    forms, plans = compiled_plans(boxes, {"first": "tl.static_assert(BLOCK != 128)"})
    key = (forms[0].size, forms[0].dtype)
    ((number, step),) = [(n, s) for n, s in enumerate(plans[0].steps) if isinstance(s, Choice)]
    which = [step.choice[at][0].arguments["BLOCK"] for at in range(4)]
    for _ in range(4):
        outcome = boxes[1].run(compile_job(plans, forms, 90, binary=True, wanted=[2]))
        assert judge_compile(outcome) is None, outcome.message
        first = read_compiled(outcome, plans, forms)
        assert len(first.among[key][number]) == 2
        assert sum(name.endswith(".cubin") for _, name in first.files) == 2
        assert which.index(128) not in first.among[key][number]
        assert first.lacks(key, plans[0]) == (len(first.tried[key][number]) < 4)
    outcome = boxes[1].run(compile_job(plans, forms, 90, binary=True, tried=first.tried))
    assert judge_compile(outcome) is None, outcome.message
    whole = first.and_(read_compiled(outcome, plans, forms))
    assert whole.among[key][number] == tuple(at for at in range(4) if which[at] != 128)
    assert not whole.lacks(key, plans[0])
    assert sum(name.endswith(".cubin") for _, name in whole.files) == 3
    assert len({drawn_orders(plans[0])[number][0] for _ in range(40)}) == 4


class Spy:
    """A compiler that notes what it is asked for."""

    def __init__(self, box: Sandbox) -> None:
        self.box, self.wanted = box, list[int]()

    def run(self, job: SandboxJob) -> Outcome:
        self.wanted += job.message["wanted"]
        return self.box.run(job)


def test_no_more_configurations_are_compiled_than_a_gpu_runs(boxes: list[Sandbox]) -> None:
    task = task_from_source(SUM_TASK.replace("x.sum()", "torch.relu(x)").replace("torch.rand", "torch.randn"), name="relu")
    compiler = Spy(boxes[1])
    stages = GpuStages(task, boxes[0], boxes[0], clock=False, baseline=(), device="cpu", index=None)
    stages.quick = True  # as on a GPU
    ran: list[int] = []
    judge = stages.judge

    def judged(plans: PlanOf, compiled: Compiled, runs: Runs, rest: object) -> GpuResult:
        ran.append(len(runs.cases))
        return judge(plans, compiled, runs)

    stages.judge = judged  # type: ignore[method-assign, assignment]
    found = KernelVerifier(task, boxes[0], compiler=compiler, gpu=stages).verify(SOURCE % HONEST)
    assert found.accepted, found
    assert "tiny float32 scaled" in found.evidence["cases"]
    assert compiler.wanted == ran == [2]  # plain and negated
    assert stages.counts() == {("full", "float32"): 3}, "of a task that no interpreter runs"


def test_configurations_that_differ_are_drawn_before_ones_alike(boxes: list[Sandbox]) -> None:
    alike = "[triton.Config({'BLOCK': block, 'WHICH': 1}) for block in (64, *[128] * 9)]"
    source = (SOURCE % HONEST).replace("configs=CONFIGS", f"configs={alike}")
    plans, wrong = plans_of(boxes, source, replace(find_task("relu"), dtypes=("float32",)), ["full"])
    assert wrong is None, wrong
    for _ in range(5):
        (order,) = drawn_orders(plans["full", "float32"]).values()
        assert 0 in order[:2]


def test_what_was_not_compiled_is_not_run(boxes: list[Sandbox]) -> None:
    _, plans = compiled_plans(boxes, {})
    started: list[int] = []

    def start(kernel: object, grid: object, values: dict[str, int], options: object) -> None:
        started.append(values["BLOCK"])

    number = next(n for n, step in enumerate(plans[0].steps) if isinstance(step, Choice))
    replay = Replay(plans[0], start, random.Random(0), (), among={number: [1, 3]})
    size = plans[0].given[0].tensor
    inputs = {0: torch.zeros(size.shape)}
    for _ in range(4):
        replay.prepare(inputs, {})
        replay.carry_out()
    assert sorted(started) == [128, 128, 512, 512]


def test_the_clock_has_the_others_compiled_once_values_are_right(boxes: list[Sandbox]) -> None:
    task = replace(find_task("relu"), dtypes=("float32",))
    stages = GpuStages(task, boxes[0], boxes[0], baseline=(), device="cpu", size="tiny", index=None)
    asked: list[str] = []
    for name, changes in (("right", {}), ("wrong", {"store": "tl.store(y + at, v + 1, mask=at < n)"})):
        plans, finding = plans_of(boxes, SOURCE % (HONEST | changes), task, stages.sizes())
        assert finding is None
        timed = ("tiny", "float32")
        number = next(n for n, step in enumerate(plans[timed].steps) if isinstance(step, Choice))
        some = Compiled(among={timed: {number: (1,)}}, tried={timed: {number: (1,)}})
        every = Compiled(among={timed: {number: (0, 1, 2, 3)}}, tried={timed: {number: (0, 1, 2, 3)}})

        def rest(known: Compiled, key: tuple[str, str], name: str = name, every: Compiled = every) -> Compiled:
            asked.append(name)
            return every

        found = stages.judge(plans, some, rest=rest)
        assert (found.finding is None) == (name == "right"), found
        assert ("cold" in found.evidence) == (name == "right")
    assert asked == ["right"]


BY_BEST = """\
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.autotune(configs=[triton.Config({"BLOCK": block}) for block in (16, 32, 64, 128, 256)], key=["n"])
@triton.jit
def sums(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + tl.program_id(0), tl.sum(tl.load(x + at, mask=at < n, other=0.0)))


class ModelNew(nn.Module):
    def forward(self, x):
        n = x.numel()
        y = torch.empty(triton.cdiv(n, 16), device=x.device)
        sums[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n)
        return y[: triton.cdiv(n, BEST)].sum()
"""
SUM_TASK = """\
import torch
import torch.nn as nn

N = 1024


class Model(nn.Module):
    def forward(self, x):
        return x.sum()


def get_inputs():
    return [torch.rand(N)]


def get_init_inputs():
    return []
"""


def test_a_kernel_whose_host_code_asks_for_the_best_configuration_runs_with_that_one(boxes: list[Sandbox]) -> None:
    task = task_from_source(SUM_TASK, name="sum")
    source = BY_BEST.replace("BEST", 'sums.best_config.kwargs["BLOCK"]')
    for _ in range(3):  # each time others would be drawn
        assert (found := KernelVerifier(task, boxes[0]).verify(source)).accepted, found
    plans, wrong = plans_of(boxes, source, task, ["full"])
    assert wrong is None, wrong
    (launch,) = plans["full", "float32"].launches()
    assert launch.arguments["BLOCK"] == 16
    plans, wrong = plans_of(boxes, BY_BEST.replace("BEST", "16"), task, ["full"])
    assert any(isinstance(step, Choice) for step in plans["full", "float32"].steps)
    assert not KernelVerifier(task, boxes[0]).verify(BY_BEST.replace("BEST", "16")).accepted, "the others leave less"


def test_a_best_configuration_is_there_once_a_kernel_was_launched(boxes: list[Sandbox]) -> None:
    early = BY_BEST.replace("        sums[", "        sums.best_config\n        sums[").replace("BEST", "16")
    _, wrong = plans_of(boxes, early, task_from_source(SUM_TASK, name="sum"), ["full"])
    assert wrong is not None
    assert "best_config" in wrong.message
