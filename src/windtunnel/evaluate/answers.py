"""Held-out conversations answered greedily: the task metric of fine-tuning, with its interval; `judge` says what is right.

A question is a held-out conversation up to the last turn that is learned, with the very ids that training has; its truth
is the text of that turn. An answer is right, wrong, or nothing is known of it: then it counts neither way.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from windtunnel.data import ConversationFile, PreparedData, Tokenizer
from windtunnel.generate import BatchedGenerator, Decoder, GenerationFailed, GenerationJob, Generator, WholeText
from windtunnel.model import hf_shape
from windtunnel.recipe import HuggingFaceModel, Recipe, UserError
from windtunnel.verify import KernelOutcome

from .kernel_questions import group_of, records_of, spread
from .match import wilson

AT_ONCE = 32  # answers generated together; their keys and values are what generating takes of memory beside the weights
SHOWN = 5  # wrong answers in a report
QUESTION_SEED = 103  # added to the recipe's, as others are: an order of the held-out documents that nothing else uses
WAIT_SECONDS = 0.01  # between two looks at whether an answer is there


@dataclass(frozen=True)
class Question:
    """What the model is asked: ids as a generator is given them, their text without markers, and the text of the right answer.

    Attributes:
        task: what a verifier is given in the truth's place; None: nothing.
        group: of questions that are alike, whose answers are right or wrong together; None: it stands alone.
    """

    ids: tuple[int, ...]
    prompt: str
    truth: str
    task: Any = field(default=None, compare=False, repr=False)
    group: str | None = field(default=None, compare=False, repr=False)


def groups_of(questions: Sequence[Question]) -> list[str] | None:
    """Return a name of each question's group; None where each stands alone."""
    # Each a group by itself, so that one bootstrap serves both.
    names = [f"alone {i}" if question.group is None else question.group for i, question in enumerate(questions)]
    return names if len(set(names)) < len(names) else None


@dataclass(frozen=True)
class Questions:
    """Questions of a held-out split, in an order of the seed.

    Attributes:
        ends: tokens that end an answer.
        too_long: conversations passed over because their prompt has no room for an answer behind it.
        numbers: of each question's conversation in its split.
    """

    asked: tuple[Question, ...]
    ends: frozenset[int]
    too_long: int = 0
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What the model said and how it was judged.

    Attributes:
        right: None where nothing is known.
        cut: it was longer than it may be.
        outcome: of a kernel, how far it came.
    """

    question: Question
    text: str
    right: bool | None
    cut: bool
    message: str = ""
    outcome: KernelOutcome | None = None

    def to_json(self) -> dict[str, Any]:
        """Prompt, truth, answer and judgement."""
        said = {"prompt": self.question.prompt, "truth": self.question.truth, "answer": self.text}
        return said | {"right": self.right, "cut": self.cut, "why": self.message}


@dataclass(frozen=True)
class Answered:
    """Answers to the same questions in the same order, judged by one metric.

    Attributes:
        reward: mean over the answers that have one, where judges give more than right or wrong; None: they do not.
    """

    metric: str
    answers: tuple[Answer, ...] = field(repr=False)
    too_long: int = 0
    reward: float | None = None

    @property
    def right(self) -> int:
        """Answers that are right."""
        return sum(answer.right is True for answer in self.answers)

    @property
    def n(self) -> int:
        """Answers of which it is known whether they are right."""
        return sum(answer.right is not None for answer in self.answers)

    @property
    def unknown(self) -> int:
        """Answers of which nothing is known: a verifier failed, or the conversation's own answer is none for the metric."""
        return len(self.answers) - self.n

    @property
    def cut(self) -> int:
        """Answers that were longer than they may be."""
        return sum(answer.cut for answer in self.answers)

    @property
    def share(self) -> float:
        """Share of right answers among those of which it is known; 0 where it is known of none."""
        return self.right / self.n if self.n else 0.0

    @property
    def score(self) -> float:
        """What decides which checkpoint is the best: the mean reward where there is one, else the share."""
        return self.share if self.reward is None else self.reward

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the share."""
        return wilson(self.right, self.n)

    def to_json(self, shown: int = SHOWN) -> dict[str, Any]:
        """Return counts, interval and the first few answers that are not right."""
        low, high = self.interval
        counts = {"metric": self.metric, "share": self.share, "right": self.right, "n": self.n, "low": low, "high": high}
        counts |= {} if self.reward is None else {"reward": self.reward}
        counts |= {"confidence": 0.95, "interval": "Wilson", "unknown": self.unknown, "cut": self.cut, "too_long": self.too_long}
        return counts | {"wrong": [answer.to_json() for answer in self.answers if not answer.right][:shown]}

    def __str__(self) -> str:
        low, high = self.interval
        more = [f"mean reward {self.reward:.3f}"] if self.reward is not None else []
        more += [f"{self.unknown} unknown"] * bool(self.unknown) + [f"{self.cut} cut"] * bool(self.cut)
        tail = f"; {', '.join(more)}" if more else ""
        return f"{self.right} of {self.n} ({self.share:.1%}, 95 % interval {low:.1%} to {high:.1%}){tail}"


def held_out_questions(
    data: PreparedData, recipe: Recipe, most: int, *, tokens: int, from_end: bool = False, test: bool = False
) -> Questions:
    """Return up to `most` different questions of the held-out conversations; the same ones for the recipe's seed.

    A prompt is no longer than a training sequence, and leaves room for the answer within the model's positions.

    Args:
        data: with conversations held out.
        recipe: of the model.
        most: questions at most.
        tokens: most of an answer.
        from_end: take them from the other end of the order: others than without, as far as there are enough.
        test: of the split that is only looked at in the end, where there is one.

    Raises:
        UserError: no conversation can be asked.
    """
    assert isinstance(recipe.model, HuggingFaceModel)
    raw, sequence = hf_shape(recipe.model.config).raw, recipe.model.sequence
    # Models of text and images have the text's numbers in a part of their own.
    context = (raw.get("text_config") or raw).get("max_position_embeddings") or sequence + tokens
    split = data.test if test and data.test is not None else data.validation
    files = [file for file in getattr(split, "parts", (split,)) if isinstance(file, ConversationFile)]
    samples = [(file, number) for file in files for number in range(file.samples)]
    key = np.array([recipe.seed + QUESTION_SEED, 0], dtype=np.uint64)
    order = np.argsort(np.random.Philox(key=key).random_raw(len(samples)), kind="stable")
    asked: dict[tuple[int, ...], tuple[Question, int]] = {}
    ends, too_long = {data.tokenizer.eos}, 0
    kernels = recipe.sft is not None and recipe.sft.answers is not None and recipe.sft.answers.metric == "kernel"
    # The validation that chooses the best checkpoint asks from the beginning, the evaluation in the end from the other end.
    for i in order[::-1] if from_end else order:
        file, number = samples[i]
        prompt, turn = (part.tolist() for part in file.last_turn(number))
        if not prompt or len(prompt) > sequence or len(prompt) + tokens > context:
            too_long += bool(prompt)
            continue
        # A learned token without text at the end of a turn is what ends turns, whatever the tokenizer calls it.
        if not data.tokenizer.decode(turn[-1:]):
            ends.add(turn[-1])
        question = Question(tuple(prompt), data.tokenizer.decode(prompt), data.tokenizer.decode(turn))
        asked.setdefault(question.ids, (question, number))
        # Of kernels all are gathered: those that are asked are chosen among them by kind.
        if len(asked) == most and not kernels:
            break
    if not asked:
        raise UserError(
            f"stages.sft.answers: of {len(samples):,} held-out conversations none can be asked: {too_long:,} prompts have no "
            f"room for {tokens:,} tokens behind them",
            "--set stages.sft.answers.tokens=... to fewer, or raise model.sequence",
        )
    questions, numbers = zip(*asked.values(), strict=True)
    if kernels:
        records = [record or {} for record in records_of([question.prompt for question in questions], recipe)]
        chosen = spread(range(len(questions)), [group_of(record) for record in records])[:most]
        questions = tuple(replace(questions[i], task=records[i].get("task"), group=group_of(records[i])) for i in chosen)
        numbers = tuple(numbers[i] for i in chosen)
    return Questions(questions, frozenset(ends), too_long, numbers)


@dataclass(frozen=True)
class Completion:
    """A generated text. failed: why there is none. seconds: from the first token of its prompt to its last, beside others."""

    text: str
    cut: bool
    failed: str | None = None
    seconds: float = 0.0


def generate_answers(
    model: Any,
    tokenizer: Tokenizer,
    questions: Sequence[Question],
    ends: frozenset[int],
    tokens: int,
    stop: Callable[[], bool] = lambda: False,
) -> list[Completion]:
    """Answer questions with transformers' model, on a CPU with its matrices laid out anew; see `answer_questions`."""
    from windtunnel.generate import hf_decoder  # imports transformers

    if not questions:
        return []
    capacity = max(len(question.ids) for question in questions) + tokens
    return answer_questions(hf_decoder(model, capacity), tokenizer, questions, ends, tokens, stop)


def answer_questions(
    model: Decoder,
    tokenizer: Tokenizer,
    questions: Sequence[Question],
    ends: frozenset[int],
    tokens: int,
    stop: Callable[[], bool] = lambda: False,
) -> list[Completion]:
    """Answer questions greedily, AT_ONCE at a time, each with so many tokens at most.

    Nobody else generates with the model meanwhile. `stop` is asked every now and then; once it says so, what is not answered yet
    has failed.
    """
    return complete_jobs(model, tokenizer, greedy_jobs(questions, tokens), ends, stop)


def greedy_jobs(questions: Sequence[Question], tokens: int) -> list[GenerationJob]:
    """Return what a generator is asked, of at most so many tokens each."""
    return [GenerationJob(question.ids, tokens, temperature=0) for question in questions]


def complete_jobs(
    model: Decoder,
    tokenizer: Tokenizer,
    jobs: Sequence[GenerationJob],
    ends: frozenset[int],
    stop: Callable[[], bool] = lambda: False,
    slots: int = AT_ONCE,
) -> list[Completion]:
    """Run jobs to their ends, `slots` at a time; see `answer_questions`."""
    if not jobs:
        return []
    # Decoded whole at the end: nobody reads along, and decoding token by token takes longer.
    text = WholeText(tokenizer, ends)
    with contextlib.closing(BatchedGenerator(model, text, slots=min(slots, len(jobs)))) as engine:
        return complete_by(engine, jobs, stop)


def complete_by(
    generator: Generator, jobs: Sequence[GenerationJob], stop: Callable[[], bool] = lambda: False
) -> list[Completion]:
    """Have a generator run jobs to their ends; once `stop` says so, what is not answered yet is cancelled and has failed."""
    made = []
    # Unbounded: the queue's limit is against clients, and here all jobs are in memory already.
    for ticket in generator.submit(jobs, stream=False, bounded=False):
        while not ticket.over and not stop():
            time.sleep(WAIT_SECONDS)
        if not ticket.over:
            ticket.cancel()
            made.append(Completion("", False, "told to stop"))
            continue
        try:
            done = ticket.result()
            made.append(Completion(done.text, done.finish == "length", seconds=ticket.seconds))
        except GenerationFailed as failed:
            made.append(Completion("", False, str(failed)))
    return made
