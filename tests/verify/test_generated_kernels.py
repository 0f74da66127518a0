"""Generated kernel tasks in the verifier: their answers are right, others are not, and rewards take their records."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from warm import kernel_box

from windtunnel.data import draw_tasks
from windtunnel.data.kernels import KernelTask, task_answer
from windtunnel.recipe import KernelTasks, UserError
from windtunnel.verify import KernelVerifier, Sandbox, Verifiers
from windtunnel.verify.kernel import task_from_source

pytestmark = pytest.mark.end_to_end

TASKS = list(draw_tasks(KernelTasks(tasks=60), 17))


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with kernel_box() as sandbox:
        yield sandbox


def judge(task: KernelTask, answer: str, box: Sandbox) -> tuple[bool, str]:
    verdict = KernelVerifier(task_from_source(task.written.source, name=task.name), box).verify(answer)
    return verdict.accepted, f"{task.name}: {verdict.stage} {verdict.reason}: {verdict.message}"


@pytest.mark.parametrize("task", TASKS[::10], ids=lambda task: task.name)
def test_answers_are_right(task: KernelTask, box: Sandbox):
    accepted, why = judge(task, task.written.answer, box)
    assert accepted, why


def test_an_answer_with_a_step_left_out_is_refused(box: Sandbox):
    task = next(task for task in TASKS if "x = x * tl.sigmoid(x)" in task.written.answer)
    accepted, why = judge(task, task.written.answer.replace("x = x * tl.sigmoid(x)", "x = x"), box)
    assert not accepted
    assert "wrong-values" in why


def test_a_record_is_what_rewards_take():
    """In an answer with a plan and a block, as a model gives it."""
    task = TASKS[1]
    with Verifiers(1, gpu=False, sources=True) as verifiers:
        verifier = verifiers.make("kernel", task.record["task"])
        assert verifiers.make("kernel", task.record["task"]) is verifier
        assert verifier.verify(task_answer(task.written.plan, task.written.answer)).accepted
        said = verifier.verify("I would rather not.")
        assert (said.accepted, said.reward) == (False, 0.0)
        for wrong in ({"name": "x"}, ["x"], {"source": 3}):
            with pytest.raises(UserError, match="source"):
                verifiers.make("kernel", wrong)


def test_whoever_is_not_trusted_gives_names():
    with Verifiers(1, gpu=False) as verifiers, pytest.raises(UserError, match="by its name"):
        verifiers.make("kernel", TASKS[0].record["task"])
