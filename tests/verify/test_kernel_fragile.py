"""Values far beyond what a file's own inputs are: wrong ones are named there, and hide nothing that is wrong nearer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from warm import kernel_box, wait_long

from windtunnel.recipe import UserError
from windtunnel.verify.kernel import GpuStages, KernelVerifier
from windtunnel.verify.kernel.plan import Plan
from windtunnel.verify.kernel.record import file_forms, read_recorded, record_job
from windtunnel.verify.kernel.stages import may_narrow
from windtunnel.verify.kernel.task import Task, task_from_source
from windtunnel.verify.sandbox import Sandbox

pytest.importorskip("torch")
pytest.importorskip("triton")

SOFTMAX = """
import torch
import torch.nn as nn

ROWS, COLS = 64, 48


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return []
"""
RELU = SOFTMAX.replace("torch.softmax(x, dim=1)", "torch.relu(x)").replace("randn", "rand")
PRODUCT = SOFTMAX.replace("torch.softmax(x, dim=1)", "torch.matmul(x, x.T)")
ROWWISE = """
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rowwise(x, y, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(x + row * n + at, mask=at < n, other=-float("inf"))
    WORK
    tl.store(y + row * n + at, out, mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        rowwise[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
"""
WITHOUT_MAXIMUM = "e = tl.exp(value); out = e / tl.sum(e, axis=0)"
WITH_MAXIMUM = "e = tl.exp(value - tl.max(value, axis=0)); out = e / tl.sum(e, axis=0)"
MEMORY = """
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def product(x, y, m, n, M: tl.constexpr, N: tl.constexpr):
    i, k = tl.arange(0, M), tl.arange(0, N)
    a = tl.load(x + i[:, None] * n + k[None, :], mask=(i[:, None] < m) & (k[None, :] < n), other=0.0)CAST
    c = tl.dot(a, tl.trans(a))
    tl.store(y + i[:, None] * m + i[None, :], c, mask=(i[:, None] < m) & (i[None, :] < m))


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], x.shape[0], device=x.device)
        m, n = x.shape
        product[(1,)](x, y, m, n, M=max(triton.next_power_of_2(m), 16), N=max(triton.next_power_of_2(n), 16))
        return y
"""


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_long(monkeypatch)


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with kernel_box() as sandbox:
        yield sandbox


def rowwise(work: str) -> str:
    return ROWWISE.replace("WORK", work)


def test_a_softmax_without_its_maximum_is_accepted_with_what_is_fragile(box: Sandbox) -> None:
    task = task_from_source(SOFTMAX, name="softmax")
    verdict = KernelVerifier(task, box).verify(rowwise(WITHOUT_MAXIMUM))
    assert verdict.accepted, verdict
    assert verdict.evidence["fragile"], "what overflows is named"
    assert all("large" in text or "shifted" in text for text in verdict.evidence["fragile"])
    assert verdict.evidence["errors"]["float32"]["share_of_allowed"] <= 1, "of what is judged alone"
    steady = KernelVerifier(task, box).verify(rowwise(WITH_MAXIMUM))
    assert (steady.accepted, steady.evidence["fragile"]) == (True, [])
    strict = KernelVerifier(replace(task, fragile=()), box).verify(rowwise(WITHOUT_MAXIMUM))
    assert (strict.accepted, strict.reason) == (False, "non-finite")


MISH = SOFTMAX.replace("torch.softmax(x, dim=1)", "nn.functional.mish(x)") + "TASK = {'sizes': {'tiny': {'ROWS': 29}}}\n"
SQUARE = SOFTMAX.replace("torch.softmax(x, dim=1)", "x * x.abs()").replace("randn(ROWS, COLS)", "rand(ROWS, COLS) - 0.5")
SQUARE += "TASK = {'sizes': {'tiny': {'ROWS': 29}}}\n"
EXP = MISH.replace("nn.functional.mish(x)", "torch.exp(x)")


@pytest.mark.parametrize(
    ("source", "work", "steady"),
    [
        (MISH, "e = tl.exp(value); out = value * e * (e + 2.0) / (e * (e + 2.0) + 2.0)", False),  # inf / inf from 44 on
        (MISH, "t = tl.exp(-tl.abs(value)); u = t * (t + 2.0); v = 1.0 + 2.0 * t; "
         "out = value * tl.where(value > 0, v / (v + 2.0 * t * t), u / (u + 2.0))", True),
        (SQUARE, "p = value * tl.abs(value); out = p * tl.minimum(tl.maximum(p + 29, 0.0), 6.0) / 6.0", False),
        (SQUARE, "out = value * tl.abs(value)", True),
        (EXP, "out = tl.exp(value)", True),  # it overflows, and so does the reference
    ],
    ids=["mish that overflows", "mish", "product with a gate", "product", "exponential"],
)  # fmt: skip
def test_a_second_opinion_has_inputs_far_beyond_the_tasks_own(source: str, work: str, steady: bool, box: Sandbox) -> None:
    first = KernelVerifier(task_from_source(source, name="task"), box)
    once = first.verify(rowwise(work))
    assert (once.accepted, once.evidence.get("fragile")) == (True, []), once
    again = first.anew().verify(rowwise(work))
    assert again.accepted, again
    assert bool(again.evidence["fragile"]) != steady, again.evidence["fragile"]
    assert all("large" in text or "shifted" in text for text in again.evidence["fragile"])


@pytest.mark.parametrize(
    ("source", "work"),
    [
        (SOFTMAX, "out = value * 0 + 1.0 / n"),  # a constant
        (SOFTMAX, "e = 1 + value + value * value / 2; out = e / tl.sum(tl.where(at < n, e, 0.0), axis=0)"),  # near 0 alone
        (SOFTMAX, "e = tl.exp(tl.minimum(value, 5.0)); out = e / tl.sum(e, axis=0)"),  # beyond what most draw
        (SOFTMAX, "e = tl.exp(tl.maximum(value, -6.0)); out = e / tl.sum(tl.where(at < n, e, 0.0), axis=0)"),
        (RELU, "out = value"),  # the file draws no negative ones
        (RELU, "out = tl.where(at < n - 1, tl.maximum(value, 0.0), 0.0)"),  # a part is skipped
        (RELU, "out = tl.minimum(tl.maximum(value, 0.0), 1.0)"),
        (RELU, "out = tl.where(value < 30.0, tl.minimum(tl.maximum(value, 0.0), 2.5), value)"),
        (RELU, "out = tl.where(tl.abs(value) > 50.0, tl.maximum(value, 0.0), 0.5)"),  # right with far values alone
    ],
)
def test_what_is_wrong_near_the_own_inputs_is_refused(source: str, work: str, box: Sandbox) -> None:
    verdict = KernelVerifier(task_from_source(source, name="task"), box).verify(rowwise(work))
    assert not verdict.accepted, verdict
    assert verdict.reason in ("wrong-values", "non-finite")


def test_a_file_that_names_variations_asks_for_them() -> None:
    declared = SOFTMAX + "\nTASK = {'variations': ['plain', 'shifted', 'large']}\n"
    assert task_from_source(declared, name="softmax").fragile == ()
    fragile = SOFTMAX + "\nTASK = {'variations': ['plain', 'shifted'], 'fragile': ['shifted']}\n"
    assert task_from_source(fragile, name="softmax").fragile == ("shifted",)
    with pytest.raises(UserError, match="negated"):
        task_from_source(SOFTMAX + "\nTASK = {'fragile': ['negated']}\n", name="softmax")


def test_only_a_plan_without_narrow_floats_may_overflow_beyond_their_range(box: Sandbox) -> None:
    task = task_from_source(PRODUCT, name="product")
    found = {
        cast: may_narrow(plan_of(MEMORY.replace("CAST", cast), task, box)) for cast in ("", ".to(tl.float16)", ".to(tl.bfloat16)")
    }
    assert list(found.values()) == [False, True, True]


def plan_of(source: str, task: Task, box: Sandbox) -> Plan:
    forms = file_forms(task, box, ["full"])
    plans, wrong = read_recorded(box.run(record_job(source, forms)), forms, task)
    assert wrong is None, wrong
    return plans[0]


def test_a_gpu_is_not_asked_for_what_nobody_is_refused_for(box: Sandbox) -> None:
    task = task_from_source(PRODUCT, name="product")
    stages = GpuStages(task, box, box, clock=False, baseline=(), device="cpu", index=None)
    assert [case.variation for case in stages.runs().cases] == ["plain", "negated", "scaled", "wide"]
    assert [case.variation for case in stages.runs(narrow=False).cases] == ["plain", "negated", "scaled"]
    strict = GpuStages(replace(task, fragile=()), box, box, clock=False, baseline=(), device="cpu", index=None)
    assert {"large", "shifted"} <= {case.variation for case in strict.runs().cases}


LOGARITHM = SOFTMAX.replace("torch.softmax(x, dim=1)", "(x * x.log()).sum(1)").replace("randn", "rand")
OF_ROWS = ROWWISE.replace("y + row * n + at, out, mask=at < n", "y + row, tl.sum(tl.where(at < n, out, 0.0))").replace(
    "empty_like(x)", "empty(x.shape[0], device=x.device)"
)
CLAMPED = "value = tl.where(at < n, value, 0.0); out = value * tl.log(tl.maximum(value, 1e-10))"


def test_with_values_for_which_the_reference_has_none_a_gpu_names_what_is_wrong(box: Sandbox) -> None:
    """Of negative numbers there is no logarithm, and one that clamps them is no worse."""
    task = task_from_source(LOGARITHM, name="logarithm")
    stages = GpuStages(task, box, box, clock=False, baseline=(), device="cpu", index=None)
    found = KernelVerifier(task, box, gpu=stages).verify(OF_ROWS.replace("WORK", CLAMPED))
    assert found.accepted, found
    assert [text for text in found.evidence["fragile"] if "(full float32 negated)" in text], found.evidence
    assert not [text for text in found.evidence["fragile"] if "plain" in text]
    for wrong in ("; out = tl.minimum(out, 1.5)", "; out = tl.where(at < n - 1, out, 0.0)"):  # with larger ones; a part alone
        assert judged_on_gpu(task, stages, OF_ROWS.replace("WORK", CLAMPED + wrong), box) == "wrong-values"
    # Where plain inputs have infinities they are asked for.
    infinite = task_from_source(LOGARITHM.replace("x * x.log()", "(x - x[0]).log()"), name="infinite")
    stages = GpuStages(infinite, box, box, clock=False, baseline=(), device="cpu", index=None)
    work = "out = tl.where(at < n, value - tl.load(x + at, mask=at < n, other=0.0), 1.0); out = tl.log(tl.maximum(out, 1e-10))"
    assert judged_on_gpu(infinite, stages, OF_ROWS.replace("WORK", work), box) == "wrong-values"


def judged_on_gpu(task: Task, stages: GpuStages, source: str, box: Sandbox) -> str:
    """Return the reason of the GPU's stages alone."""
    forms = file_forms(task, box, stages.sizes())
    plans, wrong = read_recorded(box.run(record_job(source, forms)), forms, task)
    assert wrong is None, wrong
    found = stages.judge({(form.size, form.dtype): plan for form, plan in zip(forms, plans, strict=True)}).finding
    return "" if found is None else found.reason
