"""Who judges answers, wherever that is: what the learner, its held-out questions and cross checks know of a stage's judges."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self

from windtunnel.data import Prompt, look_up
from windtunnel.evaluate import Answer, Answered, Completion, Question
from windtunnel.recipe import GRPO, RewardSource
from windtunnel.verify import KernelOutcome, part_of_answer

if TYPE_CHECKING:
    from .cross_check import Checked

SUBJECT = "subject"
"""Key of a prompt's record by which sources with `of` know their prompts."""
SIGN_SECONDS = 1.0
HASHES = re.compile(r"(?:^|\n)#### *[^\n]+\s*\Z")
"""How a solution of GSM8K's ends."""


@dataclass(frozen=True)
class Reward:
    """What an answer is worth.

    Attributes:
        total: weighted sum over the sources; None: one of them failed, and nothing is known.
        parts: by source, before its weight; None: that one failed, or does not judge this prompt.
        accepted: whether the first source that judges it accepts the answer; None: it failed.
        message: the first source's words.
        asked_again: how often a source that failed was asked again.
        plan: where plan and code have rewards of their own: that of the plan, and `total` is that of the code.
        share: of a kernel that is accepted: what part of the task's work it does itself.
        checked: whether a second judgement accepts what the first did; None: there was none, or it failed.
        check: that judgement's words; empty: there was none.
        swapped: whether the judge accepts the answer for another prompt too; None: it was not asked.
        fragile: whether the second judgement found an accepted kernel wrong with inputs far beyond the task's own.
        outcome: where the first source judges kernels, how far the answer's came.
        seconds: that its judges took, by stage of theirs; waits for a GPU or a worker are among them.
    """

    total: float | None
    parts: tuple[float | None, ...]
    accepted: bool | None
    message: str = ""
    asked_again: int = 0
    plan: float | None = None
    share: float | None = None
    checked: bool | None = None
    check: str = ""
    swapped: bool | None = None
    fragile: bool = False
    outcome: KernelOutcome | None = None
    seconds: Mapping[str, float] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class PromptQuestion(Question):
    """A held-out prompt as a question."""

    source: Prompt = field(kw_only=True)


def first_judge(stage: GRPO, prompt: Prompt) -> RewardSource | None:
    """Return the source that says what is right of a prompt's answers; None: none judges it."""
    return next((source for source in stage.sources if source.of in (None, prompt.data.get(SUBJECT))), None)


def prompt_text(prompt: Prompt) -> str:
    """Return what was asked, as text."""
    return prompt.prompt if isinstance(prompt.prompt, str) else "\n".join(message["content"] for message in prompt.prompt)


def stored_answer(prompt: Prompt, source: RewardSource) -> Any:
    """Return the prompt's right answer as the data have it, or what its record has under the source's key."""
    return prompt.answer if source.key is None else look_up(prompt.data, source.key)


def final_answer(prompt: Prompt, source: RewardSource) -> Any:
    """Return what a source compares answers with: what is `stored_answer` it, or the end of that.

    A solution that is written out ends with the answer: behind the last ####, as in GSM8K, or in the last box, as in MATH.
    """
    value = stored_answer(prompt, source)
    if source.kind in ("code", "kernel") or not isinstance(value, str):
        return value
    ending = part_of_answer(value, "hashes") if HASHES.search(value) else part_of_answer(value, "boxed")
    return ending or value


def as_text(truth: Any) -> str | None:
    """Return a record's right answer as text."""
    return truth if truth is None or isinstance(truth, str) else json.dumps(truth)


class Judging(Protocol):
    """An answer that is being judged."""

    def result(self) -> Reward:
        """Wait for the reward. Any thread may ask, and again."""


class Judges(ABC):
    """The judges of a stage. A context manager.

    Attributes:
        stage, sources: whose they are, and what they judge by; see `windtunnel.recipe.RewardSource`.
        waiting: called every now and then while a verdict is waited for, by whoever waits.
    """

    def __init__(self, stage: GRPO) -> None:
        self.stage, self.sources = stage, stage.sources
        self.waiting: Callable[[], None] = lambda: None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """End the judges and what they run."""

    @abstractmethod
    def verifiers(self, prompt: Prompt) -> Any:
        """Return what judges answers to a prompt, for `begin`."""

    @abstractmethod
    def begin(self, verifiers: Any, answer: str) -> Judging:
        """Judge an answer in the background."""

    @abstractmethod
    def check(self, prompt: Prompt, answer: str, other: Prompt | None) -> Checked:
        """Judge an accepted answer once more, another way; see `cross_check.check_again`. Waits for the judges."""

    @property
    def metric(self) -> str:
        """Return what judges, in words."""
        return " + ".join(source.name if source.of is None else f"{source.name} of {source.of}" for source in self.sources)

    def awaited(self, asked: Future[Any]) -> Any:
        """Wait for what judges are asked."""
        while not wait([asked], SIGN_SECONDS).done:
            self.waiting()  # a judge has limits of its own, which may be longer than a silence that is taken for a hang
        return asked.result()

    def judge(self, questions: Sequence[Question], said: Sequence[Completion], too_long: int = 0) -> Answered:
        """Judge answers to held-out prompts."""
        # All are begun before any is waited for: judges work on several at a time.
        begun: list[Judging | str] = []
        once = JudgedOnce(self)
        for question, one in zip(questions, said, strict=True):
            assert isinstance(question, PromptQuestion)
            begun.append(once.begin(question.source, one.text) if one.failed is None else one.failed)
        answers, rewards = [], []
        for question, one, judging in zip(questions, said, begun, strict=True):
            reward = Reward(None, (), None, judging) if isinstance(judging, str) else judging.result()
            answers.append(Answer(question, one.text, reward.accepted, one.cut, reward.message, reward.outcome))
            rewards += [] if reward.total is None else [reward.total]
        return Answered(self.metric, tuple(answers), too_long, sum(rewards) / len(rewards) if rewards else None)


class JudgedOnce:
    """Judges the answers to some prompts, and equal answers to one prompt once: a sharp policy gives many of those.

    Args:
        rewards: the judges.
    """

    def __init__(self, rewards: Judges) -> None:
        self._rewards = rewards
        # Prompts are told apart as objects, which are kept here, since two may be equal in all but their task.
        self._verifiers: dict[int, tuple[Prompt, Any]] = {}
        self._begun: dict[tuple[int, str], Judging] = {}

    def begin(self, prompt: Prompt, answer: str) -> Judging:
        """Judge an answer in the background, unless that has begun. One thread at a time."""
        # Reading a task takes long for kernels: once for all answers to it.
        if id(prompt) not in self._verifiers:
            self._verifiers[id(prompt)] = prompt, self._rewards.verifiers(prompt)
        key = id(prompt), answer
        if key not in self._begun:
            self._begun[key] = self._rewards.begin(self._verifiers[id(prompt)][1], answer)
        return self._begun[key]


class EarlyJudging:
    """Has answers judged as they end: a thread makes their texts, of all that have ended by then at once. A context manager.

    Args:
        decode: the texts of several answers' tokens.
        begin: judges an answer in the background, by its place.

    Attributes:
        texts: by place; complete when the context is left, but for answers where that failed.
    """

    def __init__(self, decode: Callable[[Sequence[Sequence[int]]], list[str]], begin: Callable[[int, str], None]) -> None:
        self._decode, self._begin = decode, begin
        self._ended: deque[tuple[int, Sequence[int]]] = deque()
        self._thread = ThreadPoolExecutor(1, "texts")
        self.texts: dict[int, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._thread.shutdown()

    def add(self, place: int, tokens: Sequence[int]) -> None:
        """Take an answer that has ended; returns at once, for whoever writes the others must not wait."""
        self._ended.append((place, tokens))
        # The first call takes all that are there, and later ones find nothing: a step that ends many answers makes one batch.
        self._thread.submit(self._take)

    def _take(self) -> None:
        taken = []
        while self._ended:
            taken.append(self._ended.popleft())
        for (place, _), text in zip(taken, self._decode([tokens for _, tokens in taken]) if taken else [], strict=True):
            self.texts[place] = text
            self._begin(place, text)


class RemoteJudges(Judges):
    """Judges elsewhere; ones that cannot be reached leave an answer unknown, never worth 0."""

    @abstractmethod
    def request(self, method: str, *arguments: Any) -> Future[Any]:
        """Return what will be found there by `Rewards.handle`, or in a text why nothing was."""

    def verifiers(self, prompt: Prompt) -> Any:
        """Return the prompt: what judges it is made where it is judged."""
        return prompt

    def begin(self, verifiers: Any, answer: str) -> Judging:
        """Judge an answer in the background."""
        return _JudgingElsewhere(self, self.request("judge", verifiers, answer))

    def check(self, prompt: Prompt, answer: str, other: Prompt | None) -> Checked:
        """Judge an accepted answer once more."""
        from .cross_check import Checked

        found = self.awaited(self.request("check", prompt, answer, other))
        return Checked(None, found) if isinstance(found, str) else found


class _JudgingElsewhere:
    """An answer that is being judged elsewhere."""

    def __init__(self, rewards: RemoteJudges, found: Future[Any]) -> None:
        self._rewards, self._future = rewards, found

    def result(self) -> Reward:
        """Wait for it."""
        found = self._rewards.awaited(self._future)
        if isinstance(found, str):
            stage = self._rewards.stage
            # As if each source had failed: unknown, and left out of every mean.
            return Reward(None, tuple(None for _ in stage.sources), None, found, stage.retries)
        assert isinstance(found, Reward)
        return found
