"""Examine a policy: held-out prompts that have not chosen its checkpoint, judged as in training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from windtunnel.data import Prompt, draw_tasks
from windtunnel.evaluate import Exam, Subject
from windtunnel.recipe import PromptCorpus, Recipe, RewardSource

from .judges import as_text, final_answer, first_judge
from .method import held_out_prompts
from .rewards import Rewards

FORMS = {"boxed": "\\boxed{{{}}}", "answer-tag": "<answer>{}</answer>", "hashes": "#### {}"}
"""How an answer is written for judges that look at a part of it."""


@contextlib.contextmanager
def examine_policy(subject: Subject, most: int, timed: bool) -> Iterator[Exam]:
    """Yield held-out prompts, from the other end of their order than those that chose the checkpoint, and the stage's judges.

    Raises:
        UserError: no prompt is short enough, or a judge cannot be used.
    """
    stage, recipe = subject.recipe.rl, subject.recipe
    assert stage is not None
    questions = held_out_prompts(recipe, subject.data, max(most, recipe.evaluation.samples, 1), from_end=True)
    warnings: tuple[str, ...] = ()
    if stage.answers is not None:
        chose = {question.ids for question in held_out_prompts(recipe, subject.data, stage.answers.prompts).asked}
        both = sum(question.ids in chose for question in questions.asked)
        few = (
            f"{both} of the {len(questions.asked)} prompts have also chosen the best checkpoint: their share is a little too good"
        )
        warnings = (few,) if both else ()
    tokens = stage.answer_tokens if stage.answers is None else stage.answers.tokens or stage.answer_tokens
    with Rewards(stage, timed=timed) as rewards:
        yield Exam(questions, tokens, rewards if most else None, warnings, scores=False)


def right_answers(recipe: Recipe, prompts: Sequence[Prompt]) -> list[tuple[str, ...]]:
    """Return the data's own right answer to each prompt, in the form that the first of its judges expects.

    What form a function expects is not known: the usual ones come one after the other. Empty where the data hold none, as of
    tests that code has to pass and no solution, of a form, of a task.
    """
    stage, corpus = recipe.rl, recipe.data.corpus
    assert stage is not None
    kernels = dict[str, str]()
    if isinstance(corpus, PromptCorpus) and corpus.kernels is not None:
        kernels = {task.name: task.written.answer for task in draw_tasks(corpus.kernels, recipe.seed)}
    return [_right_answer(prompt, first_judge(stage, prompt), kernels) for prompt in prompts]


def _right_answer(prompt: Prompt, judge: RewardSource | None, kernels: Mapping[str, str]) -> tuple[str, ...]:
    if judge is None or judge.kind == "format":
        return ()
    if judge.kind == "kernel":
        return (kernels[prompt.data["task"]["name"]],) if kernels and prompt.data["task"]["name"] in kernels else ()
    if judge.kind == "code":  # without a key the answer is the tests
        return (prompt.answer,) if judge.key is not None and isinstance(prompt.answer, str) else ()
    truth = final_answer(prompt, judge)
    text = as_text(truth[0] if isinstance(truth, list) and truth else truth)
    if text is None or isinstance(truth, dict):
        return ()
    forms = ("{}", *FORMS.values()) if judge.kind == "function" else (FORMS.get(judge.where, "{}"),)
    return tuple(form.format(text) for form in forms)
