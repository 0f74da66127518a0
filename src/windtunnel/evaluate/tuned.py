"""Evaluate a fine-tuned Hugging Face model against the one that it was made of: held-out loss, right answers, samples.

Both are asked the same questions, so that what differs is paired. Sequences are scored one by one, without packing.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windtunnel.data import MixtureFile, Thesis
from windtunnel.recipe import Answers, Recipe, ThesisCorpus, UserError

from .action_plot import write_action_plot
from .action_report import ActionReport, report_actions
from .answers import Answered, Completion, Question, Questions, answer_questions, groups_of, held_out_questions
from .attempts import Attempts, Drawing, draw_attempts, judge_attempts, passed_over
from .bootstrap import Interval
from .classification import macro_f1_over
from .judge import Judge, Judging
from .loss import Validation
from .paired import Gain, Paired, gain_over, loss_difference
from .predictions import Prediction, PredictionLog, ask_theses, describe_theses, predict, write_predictions
from .scored import Scored, score
from .subject import Subject

UNTUNED = "untuned"  # in the names of its files


@dataclass(frozen=True)
class Untuned:
    """The model before tuning, on the same data and questions.

    Attributes:
        weights: where they are from, in words.
        validation: None where the data have no targets, as prompts have none. loss: what tuning changed in nats a target.
        gain: what it changed in right answers; None where none were judged.
        actions: of theses, what its actions are worth. macro_f1: what tuning changed in their macro F1.
        attempts: at the same questions. passed: what tuning changed in pass@k, by k.
    """

    weights: str
    validation: Validation | None
    loss: Paired | None
    answers: Answered | None = None
    gain: Gain | None = None
    actions: ActionReport | None = None
    macro_f1: Interval | None = None
    attempts: Attempts | None = None
    passed: Mapping[int, Interval] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return stable keys."""
        value = self.validation
        more: dict[str, Any] = {}
        if self.actions is not None and self.macro_f1 is not None:
            more = {"actions": self.actions.to_json(), "macro_f1_difference": self.macro_f1.to_json()}
        if self.attempts is not None:
            passed = {str(k): value.to_json() for k, value in self.passed.items()}
            more |= {"attempts": self.attempts.to_json(), "pass_at_difference": passed}
        return {
            **more,
            "weights": self.weights,
            "validation_loss": None if value is None else value.loss,
            "perplexity": None if value is None else perplexity(value),
            "bits_per_byte": None if value is None else value.bits_per_byte,
            "answers": None if self.answers is None else self.answers.to_json(),
            "loss_difference": None if self.loss is None else self.loss.to_json(),
            "gain": None if self.gain is None else self.gain.to_json(),
        }


@dataclass(frozen=True)
class TunedEvaluation:
    """A fine-tuned model, and the one before tuning where it is known.

    validation: None where the data have no targets. warnings: what to know.
    said: (prompt, its answer, the untuned model's or None) of a few held-out questions.
    actions: of theses, what the predicted actions of the test split are worth. files: where they are.
    attempts: at the questions, where several were asked for.
    """

    validation: Validation | None
    answers: Answered | None
    untuned: Untuned | None
    said: tuple[tuple[str, str, str | None], ...]
    warnings: tuple[str, ...] = ()
    actions: ActionReport | None = None
    files: tuple[str, ...] = ()
    attempts: Attempts | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what a fine-tuned model's evaluation has beside others."""
        more: dict[str, Any] = {} if self.actions is None else {"actions": self.actions.to_json(), "files": list(self.files)}
        more |= {} if self.attempts is None else {"attempts": self.attempts.to_json()}
        return {
            **more,
            "perplexity": None if self.validation is None else perplexity(self.validation),
            "answers": None if self.answers is None else self.answers.to_json(),
            "untuned": None if self.untuned is None else self.untuned.to_json(),
            "samples": [
                {"prompt": prompt, "text": text} | ({} if other is None else {"untuned": other})
                for prompt, text, other in self.said
            ],
        }


def perplexity(value: Validation) -> float:
    """Return e to the loss."""
    return math.exp(min(value.loss, 700.0))  # more is no float, and no model either


@dataclass(frozen=True)
class Exam:
    """What is asked of held-out data.

    Attributes:
        tokens: most of an answer.
        judge: of the answers; None: they are shown and not judged.
        warnings: what to know of the questions.
        scores: whether the data have targets whose loss can be measured.
    """

    questions: Questions
    tokens: int
    judge: Judging | None
    warnings: tuple[str, ...] = ()
    scores: bool = True


# Makes the exam of a kind of stage, of so many questions that are judged; the last says whether right kernels are timed.
Examine = Callable[[Subject, int, bool], contextlib.AbstractContextManager[Exam]]


@contextlib.contextmanager
def examine_conversations(subject: Subject, most: int, timed: bool) -> Iterator[Exam]:
    """Yield what fine-tuning is examined by: held-out conversations, or beginnings of text to be gone on with."""
    asked, stage = _asked(subject.recipe), subject.recipe.evaluation
    questions, warnings = _questions(subject, asked, max(most if asked else 0, stage.samples))
    if asked is None or not most:
        yield Exam(questions, stage.sample_tokens, None, warnings)
        return
    with Judge(asked, timed=timed) as judge:
        yield Exam(questions, asked.tokens, judge, warnings)


@dataclass(frozen=True)
class _Measured:
    """One model's held-out loss, answers, judgements and, of theses, predictions."""

    scored: Scored | None
    said: Sequence[Completion]
    answered: Answered | None
    made: list[Prediction]
    attempts: Attempts | None = None

    @property
    def validation(self) -> Validation | None:
        """The loss, where it was measured."""
        return None if self.scored is None else self.scored.validation


def evaluate_tuned(
    subject: Subject, *, problems: int | None = None, progress: Callable[[float, str], None], out: Path | None = None,
    examine: Examine = examine_conversations, drawing: Drawing | None = None,
) -> TunedEvaluation:  # fmt: skip
    """Measure a model, then the untuned one, of which one at a time is in memory; arguments are as of `report.evaluate_run`.

    `out` is the folder for predictions and picture, where predictions that were interrupted are gone on with; None: not written.

    Raises:
        UserError: there is nothing to score or to ask, the metric cannot be used, or `out` cannot be written.
    """
    stage, theses = subject.recipe.evaluation, subject.data.corpus == "theses"
    most = stage.exact_match_problems if problems is None else problems
    found, logs = [], []
    with examine(subject, most, drawing is not None) as exam:
        if drawing is not None and exam.judge is None:
            raise UserError("--attempts: nothing judges answers to this run's held-out data", "leave --attempts out")
        questions, tokens, warnings = exam.questions, exam.tokens, exam.warnings
        # Asked before a model is opened, since they are the same for both.
        about = ask_theses(subject.data, questions) if theses and most else ()
        # One at a time: two models may not fit into a GPU's memory.
        for i, opened in enumerate([subject.open, *([subject.untuned[0]] if subject.untuned else [])]):
            words, begun = ("the untuned model's " * bool(i)), 0.5 * i
            with opened() as model:
                scored = None
                if exam.scores:
                    progress(begun + 0.05, f"{words}held-out loss")
                    scored = score(model, subject.data, subject.recipe.model.sequence, stage.bits_per_byte_tokens)
                progress(begun + 0.2, f"{words}answers")
                made: list[Prediction] = []
                if about:
                    logs.append(_log(out, subject, i, tokens, about))
                    report = _part(progress, begun + 0.2, begun + 0.5, words)
                    made = predict(model, subject.data.tokenizer, about, questions, tokens, logs[-1], report)
                    said: Sequence[Completion] = [Completion(one.text, one.cut) for one in made]
                else:
                    said = answer_questions(model, subject.data.tokenizer, questions.asked, questions.ends, tokens)
                drawn: Sequence[Completion] = ()
                if drawing is not None:
                    progress(begun + 0.3, f"{words}{drawing.each} attempts at each of {len(questions.asked)} questions")
                    drawn = draw_attempts(model, subject.data.tokenizer, questions, tokens, drawing)
            progress(begun + 0.45, f"{words}judging")
            answered = None if exam.judge is None else exam.judge.judge(questions.asked, said, questions.too_long)
            attempts = None
            if drawing is not None and exam.judge is not None:
                attempts = judge_attempts(exam.judge, questions, drawn, drawing)
            found.append(_Measured(scored, said, answered, made, attempts))
    mine, *other = found
    # The baseline may know what training knew, and nothing of the test period.
    labels = subject.data.facts["labels"]["train"] if about else {}
    actions = report_actions(mine.made, labels) if about else None
    untuned = _compare(subject, mine, actions, other[0], labels) if other else None
    shown = [
        (question.prompt, mine.said[i].text, other[0].said[i].text if other else None)
        for i, question in enumerate(questions.asked[: stage.samples])
    ]
    files: tuple[str, ...] = ()
    if actions is not None:
        warnings += actions.warnings
        files = _write_theses(out, subject, found, actions) if out is not None else ()
    # Only now is what they hold written elsewhere.
    for log in logs:
        log.remove()
    return TunedEvaluation(
        mine.validation, mine.answered, untuned, tuple(shown), (*subject.warnings, *warnings), actions, files,
        mine.attempts,
    )  # fmt: skip


def _asked(recipe: Recipe) -> Answers | None:
    """Return how held-out questions are answered and judged; of theses, by their action where the recipe does not say."""
    given = recipe.sft.answers if recipe.sft is not None else None
    if given is None and isinstance(recipe.data.corpus, ThesisCorpus):
        return Answers(metric="action", every=None)
    return given


def _compare(
    subject: Subject, mine: _Measured, actions: ActionReport | None, other: _Measured, labels: dict[str, int]
) -> Untuned:
    """Return what the untuned model is worth on the same questions, and what tuning changed."""
    assert subject.untuned is not None
    dates = [prediction.as_of_date for prediction in mine.made]
    gain = None
    if mine.answered is not None and other.answered is not None:
        groups = groups_of([answer.question for answer in mine.answered.answers])
        gain = gain_over(mine.answered, other.answered, dates or groups, "dates" if dates else "kinds of questions")
    loss = None if mine.scored is None or other.scored is None else loss_difference(mine.scored, other.scored)
    its = None if actions is None else report_actions(other.made, labels)
    ahead = None if actions is None or its is None else macro_f1_over(actions.scores, its.scores)
    passed = {} if mine.attempts is None or other.attempts is None else passed_over(mine.attempts, other.attempts)
    return Untuned(subject.untuned[1], other.validation, loss, other.answered, gain, its, ahead, other.attempts, passed)


def _log(out: Path | None, subject: Subject, number: int, tokens: int, theses: Sequence[Thesis]) -> PredictionLog:
    """Return where the predictions of a model (0: tuned, 1: untuned) are kept until all are there."""
    facts = {
        "weights": subject.weights[number], "data": subject.data.checksum, "tokens": tokens, "device": subject.device.type,
        "theses": describe_theses(theses),
    }  # fmt: skip
    return PredictionLog(out, UNTUNED if number else "", facts, len(theses))


def _write_theses(out: Path, subject: Subject, found: Sequence[_Measured], actions: ActionReport) -> tuple[str, ...]:
    """Write predictions of both models, and the picture of the tuned one's; return the files."""
    title = subject.name if subject.step is None else f"{subject.name}, step {subject.step:,}"
    files = [*write_predictions(out, found[0].made), write_action_plot(actions, out / "actions.png", title)]
    for other in found[1:]:
        files += write_predictions(out, other.made, UNTUNED)
    return tuple(map(str, files))


def _part(progress: Callable[[float, str], None], low: float, high: float, words: str) -> Callable[[float, str], None]:
    """Return what reports the progress of a part of the work as that of the whole."""
    return lambda share, what: progress(low + (high - low) * share, words + what)


def _questions(subject: Subject, asked: Answers | None, most: int) -> tuple[Questions, tuple[str, ...]]:
    """Return what to ask, and a warning where some of it has already chosen the best checkpoint."""
    recipe, data = subject.recipe, subject.data
    if data.corpus not in ("conversations", "theses") and not isinstance(data.validation, MixtureFile):
        return Questions(tuple(_beginnings(subject)), frozenset({data.tokenizer.eos, data.tokenizer.bos})), ()
    tokens = recipe.evaluation.sample_tokens if asked is None else asked.tokens
    if not most:
        return Questions((), frozenset()), ()
    questions = held_out_questions(data, recipe, most, tokens=tokens, from_end=True, test=True)
    # Theses are tested on a split that has chosen nothing.
    if data.corpus == "theses":
        left = f"{questions.too_long:,} theses are longer than a sequence and were not asked"
        return questions, (left,) if questions.too_long else ()
    if asked is None or asked.every is None:
        return questions, ()
    chose = {question.ids for question in held_out_questions(data, recipe, asked.prompts, tokens=tokens).asked}
    both = sum(question.ids in chose for question in questions.asked)
    if not both:
        return questions, ()
    words = (
        f"{both} of the {len(questions.asked)} questions have also chosen the best checkpoint: their share is a little too good"
    )
    return questions, (words,)


def _beginnings(subject: Subject) -> Iterator[Question]:
    """Yield prompts of the recipe, or beginnings of held-out documents, to be gone on with."""
    from .report import prompts_of

    tokenizer = subject.data.tokenizer
    for prompt in prompts_of(subject.recipe, subject.data):
        yield Question(tuple(int(i) for i in tokenizer.encode(prompt, bos=True)), prompt, "")
