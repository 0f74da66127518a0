"""Fine-tuning on kernels is judged by the verifier: each question finds its task, and no right kernel means no rl."""

from __future__ import annotations

from typing import Any

import pytest

from windtunnel.data import TaskReader
from windtunnel.evaluate import Completion, Judge, Question
from windtunnel.evaluate.kernel_questions import group_of, records_of, spread
from windtunnel.recipe import FineTune, Gates, KernelTasks, Recipe, UserError, load_recipe, stage_recipe
from windtunnel.run import Point
from windtunnel.train import judge_gates

pytestmark = pytest.mark.end_to_end

FEW = ("data.corpus.kernels.tasks=12", "data.corpus.kernels.levels=[1]")


def kernels(*sets: str) -> Recipe:
    return stage_recipe(load_recipe("kernels", sets), "sft")


def drawn(recipe: Recipe) -> list[Any]:
    asked = getattr(recipe.data.corpus, "kernels", None)
    assert isinstance(asked, KernelTasks)
    return list(TaskReader(asked, recipe.seed).read())


def test_a_question_finds_its_task_whatever_a_tokenizer_made_of_blanks() -> None:
    recipe = kernels(*FEW)
    tasks = drawn(recipe)
    prompts = [f"user\n{task.prompt}\nassistant".replace("\n\n", "\n") for task in tasks[::-1]]
    assert records_of(prompts, recipe) == [task.record for task in tasks[::-1]]
    assert records_of(["```python\nx = 1\n```", "no code"], recipe) == [None, None]
    with pytest.raises(UserError, match=r"stages\.sft\.answers\.metric: kernel judges"):
        records_of(prompts, load_recipe("finetune"))


def test_questions_are_of_as_many_kinds_as_can_be_and_everyone_is_asked_once() -> None:
    groups = ["a", "a", "b", None, "a", "b", None, "c"]
    order = [4, 0, 6, 1, 5, 7, 2, 3]
    assert spread(order, groups) == [4, 6, 5, 7, 3, 0, 2, 1]
    assert spread(order, [None] * 8) == order
    kinds = [group_of(task.record) for task in drawn(kernels())]
    assert len(set(kinds)) > 100
    first = [kinds[i] for i in spread(range(len(kinds)), kinds)[: len(set(kinds))]]
    assert len(set(first)) == len(first)


def test_the_verifier_judges_held_out_kernels() -> None:
    recipe = kernels(*FEW)
    assert recipe.sft is not None
    assert recipe.sft.answers is not None
    task = drawn(recipe)[0]
    known = Question((1,), task.prompt, task.answer, task.record["task"])
    said = [Completion(task.answer, False), Completion("I do not know.", False), Completion(task.answer, False)]
    with Judge(recipe.sft.answers) as judge:
        found = judge.judge([known, known, Question((2,), "?", "!")], said)
    assert [answer.right for answer in found.answers] == [True, False, None]
    assert (found.right, found.n, found.unknown) == (1, 2, 1)


@pytest.mark.parametrize(("right", "held"), [(0.0, False), (1 / 64, True)])
def test_without_one_right_kernel_reinforcement_learning_does_not_begin(right: float, held: bool) -> None:
    recipe = load_recipe("kernels")
    stage = recipe.stages["sft"]
    assert isinstance(stage, FineTune)
    assert isinstance(stage.gates, Gates)
    losses = [Point(step, 2.0 - step / 100, 0.0) for step in range(100)]
    series = {"loss": losses, "answers_right": [Point(50, 0.0, 0.0), Point(100, right, 0.0)]}
    (found,) = [one for one in judge_gates(stage.gates, kernels(), series, gpus=False) if one.name == "answers"]
    assert found.held is held
