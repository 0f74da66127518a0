"""Plans of thousands of launches: a few steps that come again elsewhere, checked and carried out like any others."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from test_launch_plan import ALLOWED, plan, refusal, view
from warm import compiler_box, kernel_box, wait_long

from windtunnel.verify.kernel import GpuStages, KernelVerifier
from windtunnel.verify.kernel.long import programs_of
from windtunnel.verify.kernel.plan import Plan
from windtunnel.verify.kernel.plan.check import read_plan
from windtunnel.verify.kernel.plan.places import carried, places
from windtunnel.verify.kernel.plan.schema import Choice
from windtunnel.verify.kernel.record import file_forms, read_recorded, record_job
from windtunnel.verify.kernel.task import Task, task_from_source
from windtunnel.verify.sandbox import Sandbox

pytest.importorskip("triton")

ROWS, FULL_ROWS = 70, 4000
REFERENCE = f"""\
import torch
import torch.nn as nn

ROWS, COLS = {FULL_ROWS}, 33

TASK = {{"sizes": {{"tiny": {{"ROWS": {ROWS}}}}}, "dtypes": ["float32"], "operations": "any", "variations": ["plain"]}}


class Model(nn.Module):
    def forward(self, x):
        return torch.cumsum(x, 0)


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return []
"""
# Each row's sum is a tensor of its own, as the states of a recurrent layer are; rows of 33 floats begin at any alignment.
CANDIDATE = """\
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.autotune([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=["n"])
@triton.jit
def add(x, before, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) + tl.load(before + at, mask=at < n), mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        sums, before = [], torch.zeros_like(x[0])
        for row in x:
            y = torch.empty_like(row)
            add[(1,)](row, before, y, x.shape[1])
            sums.append(y)
            before = y
        return torch.stack(sums)
"""


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with kernel_box() as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def task() -> Task:
    return task_from_source(REFERENCE, name="scan")


def test_a_loop_over_launches_is_a_short_plan(box: Sandbox, task: Task) -> None:
    """Every launch is there, in order, with the tensors that it was given."""
    (form,) = file_forms(task, box, ["full"])
    outcome = box.run(record_job(CANDIDATE, [form]))
    plans, wrong = read_recorded(outcome, [form], task)
    assert wrong is None, wrong
    (found,) = plans
    assert len(found.steps) < 10
    assert len(found.model_dump_json()) < 1_000_000
    assert found.launched() == 2 * FULL_ROWS
    assert programs_of(found) == FULL_ROWS
    launches = [step for _, step in carried(found) if isinstance(step, Choice)]
    before = None
    for row, step in enumerate(launches):
        tensors = list(places(step))
        assert tensors[0] == (found.given[0].tensor.buffer, 33 * row)
        assert before is None or tensors[1] == before
        before = tensors[2]
    assert read_plan(found.model_dump_json()) == found


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("", "", "accepted"),
        ("for row in x:", "for number, row in enumerate(x):\n            if number == 66: row = x[0]", "wrong-values"),
        ("tl.store(y + at,", "tl.store(y + 33 + at,", "out-of-bounds"),
    ],
    ids=["right", "one launch of them wrong", "outside"],
)
def test_a_long_plan_is_judged_as_any_other(old: str, new: str, reason: str, box: Sandbox, task: Task) -> None:
    with compiler_box() as compiler:
        found = KernelVerifier(task, box, compiler=compiler).verify(CANDIDATE.replace(old, new, 1))
    assert ("accepted" if found.accepted else found.reason) == reason, found


def test_a_long_plan_is_timed(box: Sandbox, task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the interpreter in place of a GPU: of a tuned kernel one configuration is settled on for all its launches."""
    wait_long(monkeypatch)
    few = replace(task, source=REFERENCE.replace(f"ROWS, COLS = {FULL_ROWS}", f"ROWS, COLS = {ROWS}"))
    stages = GpuStages(few, box, box, device="cpu", size="tiny", index=None, baseline=(), calls=10)
    found = KernelVerifier(few, box, gpu=stages).verify(CANDIDATE)
    assert found.accepted, found
    assert found.evidence["gpu"]["cold"]["count"] >= 10


def in_turns(*order: list[int], **changed: Any) -> dict[str, Any]:
    """The plan that copies its input to buffer 1, in turns."""
    return {**plan(), "buffers": [128, 128, 128], "order": order, **changed}


OTHER = {"operation": "aten.zero_.default", "arguments": [{"tensor": view(1)}], "results": [view(1)]}
STACK = {"operation": "aten.cat.default", "arguments": [{"list": [{"tensor": view(0)}] * 4000}], "results": [view(1)]}
FORGED: dict[str, tuple[dict[str, Any], str]] = {
    "honest": (in_turns([0, 0, 0, 2, 0], [0, 2, 0, 1, 0]), ""),
    "no such step": (in_turns([1, 0, 0, 1, 0]), "bad-plan"),
    "negative step": (in_turns([-1, 0, 0, 1, 0]), "bad-plan"),
    "no step at all": (in_turns([]), "bad-plan"),
    "a place left out": (in_turns([0, 0, 0]), "bad-plan"),
    "half a place": (in_turns([0, 0, 0, 1]), "bad-plan"),
    "a place too many": (in_turns([0, 0, 0, 1, 0, 2, 0]), "bad-plan"),
    "no such buffer": (in_turns([0, 0, 0, 3, 0]), "bad-plan"),
    "negative buffer": (in_turns([0, 0, 0, -1, 0]), "bad-plan"),
    "beyond the buffer": (in_turns([0, 0, 0, 1, 1]), "bad-plan"),
    "beyond it in a later turn": (in_turns(*[[0, 0, 0, 1, 0]] * 9, [0, 0, 1, 1, 0]), "bad-plan"),
    "an offset beyond 64 bits": (in_turns([0, 0, 0, 1, 1 << 62]), "bad-plan"),
    "a shorter buffer": (in_turns([0, 0, 0, 2, 0], buffers=[128, 128, 64]), "bad-plan"),
    "a number as text": (in_turns([0, 0, 0, "1", 0]), "bad-plan"),  # type: ignore[list-item]
    "a step that never comes": (in_turns([0, 0, 0, 1, 0], steps=[plan()["steps"][0], OTHER]), "bad-plan"),
    "a launch that never comes": (in_turns([1, 1, 0], steps=[plan()["steps"][0], OTHER]), "bad-plan"),
    "too many turns": (in_turns(*[[0, 0, 0, 1, 0]] * ((1 << 16) + 1)), "bad-plan"),
    "too much in few turns": (in_turns(*[[0, 0, 0, 1, 0], [1, 0, 0, 1, 0]] * 200, steps=[*plan()["steps"], STACK]), "too-large"),
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_turns_are_refused(name: str) -> None:
    made, reason = FORGED[name]
    assert refusal(made, replace(ALLOWED, operations="any")) == reason


def test_tensors_move_by_their_places() -> None:
    """Two tensors at one place stay together; who had one each may come to share one."""
    step = {"operation": "aten.add.Tensor", "arguments": [{"tensor": view(0)}, {"tensor": view(0)}], "results": [view(1)]}
    made: Plan = read_plan(json.dumps(in_turns([0, 0, 0, 1, 0], [1, 2, 0, 0, 4], steps=[plan()["steps"][0], step])))
    (_, launch), (number, moved) = carried(made)
    assert (launch, number) == (made.steps[0], 1)
    assert list(places(moved)) == [(2, 0), (0, 4)]
    assert moved.arguments[0].tensor == moved.arguments[1].tensor  # type: ignore[union-attr]
