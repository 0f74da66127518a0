"""Generated exercises: the same ones for a seed, right answers that the verifiers accept, one split for both stages."""

from __future__ import annotations

from pathlib import Path

import pytest

from windtunnel.data import Prompt, PromptFile, prepare
from windtunnel.data.exercises import Exercise, draw_exercises
from windtunnel.recipe import GRPO, Exercises, load_recipe, stage_recipe
from windtunnel.rl import Rewards, first_judge

SUBJECTS = ["mathematics", "general", "code"]


def some(count: int = 60, seed: int = 7) -> list[Exercise]:
    """Return exercises of all subjects."""
    return list(draw_exercises(Exercises(count=count), seed))


def test_they_are_the_same_for_a_seed_all_different_and_evenly_of_every_subject() -> None:
    made = some(300)
    assert made == some(300)
    assert made != some(300, seed=8)
    assert len({one.prompt for one in made}) == 300
    assert [one.subject for one in made[:6]] == [*SUBJECTS, *SUBJECTS]


def test_a_subject_alone_and_more_than_it_has() -> None:
    made = list(draw_exercises(Exercises(count=9000, subjects=["general"]), 1))  # type: ignore[list-item]
    assert {one.subject for one in made} == {"general"}
    assert len(made) == 9000


@pytest.fixture(scope="module")
def stage() -> GRPO:
    """The stage of the recipe that ships."""
    found = load_recipe("grpo").rl
    assert found is not None
    return found


def test_the_recipe_s_verifiers_accept_what_is_written_and_refuse_what_belongs_to_another(stage: GRPO, tmp_path: Path) -> None:
    recipe = load_recipe("grpo", ["data.tokenizer={kind: bpe, vocab_size: 600}", "data.corpus.exercises.count=90"])
    prepared = prepare(stage_recipe(recipe, "rl"), tmp_path)
    assert isinstance(prepared.train, PromptFile)
    written = {one.prompt: one for one in draw_exercises(Exercises(count=12000), recipe.seed)}
    prompts = [prepared.train.prompt(number) for number in range(30)]
    with Rewards(stage) as rewards:
        for prompt, other in zip(prompts, [*prompts[1:], prompts[0]], strict=True):
            exercise = written[str(prompt.prompt)]
            right = rewards.begin(rewards.verifiers(prompt), exercise.written).result()
            assert (right.accepted, right.total) == (True, 1.0 if exercise.subject == "code" else 1.2), exercise
            if exercise.answer != written[str(other.prompt)].answer:
                wrong = rewards.begin(rewards.verifiers(prompt), written[str(other.prompt)].written).result()
                assert wrong.accepted is False, (exercise, other.prompt)


def test_each_subject_is_judged_by_its_own_verifier_alone(stage: GRPO) -> None:
    kinds = {}
    for one in some()[:3]:
        judge = first_judge(stage, Prompt(0, None, one.prompt, one.answer, one.record))  # type: ignore[arg-type]
        assert judge is not None
        kinds[one.subject] = judge.kind
    assert kinds == {"mathematics": "math", "general": "exact", "code": "code"}


def test_no_exercise_that_is_held_out_from_rl_is_trained_on_in_sft(tmp_path: Path) -> None:
    sets = ["data.tokenizer={kind: bpe, vocab_size: 600}", "data.corpus.exercises.count=300"]
    recipe = load_recipe("grpo", [*sets, "stages.rl.set.data.corpus.exercises.count=300"])
    asked = prepare(stage_recipe(recipe, "rl"), tmp_path)
    assert isinstance(asked.validation, PromptFile)
    held_out = {str(asked.validation.prompt(number).prompt) for number in range(asked.validation.samples)}
    told = prepare(stage_recipe(recipe, "sft"), tmp_path)
    ids = told.train.sample  # type: ignore[union-attr]
    trained = [told.tokenizer.decode(ids(number)[0].tolist()) for number in range(told.train.samples)]  # type: ignore[union-attr]
    assert held_out
    assert not [prompt for prompt in held_out if any(prompt in text for text in trained)]
