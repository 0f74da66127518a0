"""Accepted answers judged once more, another way, beside the round they are of; and for another prompt, where they are wrong."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.data import Prompt
from windtunnel.recipe import GRPO
from windtunnel.verify import Verdict, Verifier, second_opinion

from .judges import SUBJECT, JudgedOnce, Judges, Judging, Reward, as_text, final_answer, first_judge
from .rewards import Rewards

if TYPE_CHECKING:
    from .rollouts import Round

AT_ONCE = 4
"""Threads that wait for judges: these work in the judges' own threads and processes."""


@dataclass(frozen=True)
class Checked:
    """A second judgement.

    Attributes:
        accepted: the other way; None: that failed, and the first judgement stands.
        message: its words.
        swapped: whether the judge accepts the answer for another prompt too; None: it was not asked, or failed.
        fragile: whether a kernel that is accepted is wrong with inputs far beyond the task's own.
    """

    accepted: bool | None
    message: str
    swapped: bool | None = None
    fragile: bool = False


def check_again(rewards: Rewards, prompt: Prompt, answer: str, other: Prompt | None) -> Checked:
    """Judge an answer that the first judge of its prompt accepted once more; waits for the judges.

    Args:
        rewards: of this process.
        prompt: of the answer.
        answer: its text.
        other: a prompt with another right answer, for which the same judge is asked too.
    """
    verdict = _asked(rewards, prompt, answer, second_opinion)
    # The same judge, asked about another question: one that says yes to anything says yes here.
    swap = None if other is None else _asked(rewards, other, answer, lambda verifier: verifier)
    swapped = None if swap is None or swap.infrastructure else swap.accepted
    # A kernel that is refused is wrong already: where else it is tells nothing more.
    far = verdict.evidence.get("fragile") or [] if verdict.accepted else []
    words = f"{verdict.message} With inputs far beyond the task's own it is wrong: {far[0]}" if far else verdict.message
    return Checked(None if verdict.infrastructure else verdict.accepted, words, swapped, bool(far))


def _asked(rewards: Rewards, prompt: Prompt, answer: str, way: Callable[[Verifier], Verifier]) -> Verdict:
    verifiers = rewards.verifiers(prompt)
    number = next(i for i, verifier in enumerate(verifiers) if verifier is not None)
    first = verifiers[number]
    assert first is not None
    verdict, _ = rewards.ask(way(first), answer)
    if verdict.infrastructure:
        rewards.failed(number, verdict)
    return verdict


def with_check(reward: Reward, found: Checked) -> Reward:
    """Return a reward with its second judgement. Where that refuses, nothing is known of the answer: it is not learned from."""
    reward = replace(reward, checked=found.accepted, check=found.message, swapped=found.swapped, fragile=found.fragile)
    return replace(reward, total=None, plan=None, accepted=None) if found.accepted is False else reward


def swap_for(stage: GRPO, prompts: Sequence[Prompt], place: int) -> Prompt | None:
    """Return the next prompt of the same subject whose right answer, to its first judge, is another; None: there is none."""
    prompt = prompts[place]
    judge = first_judge(stage, prompt)
    if judge is None or judge.kind == "format":  # form is the same whatever was asked
        return None

    def truth(one: Prompt) -> str | None:
        return as_text(final_answer(one, judge))

    if truth(prompt) is None:
        return None
    # The next one by place, not a random one: the same prompt is tried with the same other one each time.
    for other in (*prompts[place + 1 :], *prompts[:place]):
        alike = other.data.get(SUBJECT) == prompt.data.get(SUBJECT)
        if alike and truth(other) is not None and truth(other) != truth(prompt):
            return other
    return None


class CrossChecks:
    """Judges the answers to some prompts, and some of them again while others are still being written or judged.

    Args:
        rewards: the judges.
        threads: that wait for second judgements.
        prompts: of the answers, of which each has `rewards.stage.samples`; the first prompt's come first.
        chosen: whether an answer is judged twice if it is accepted, by its place; it depends on nothing that is not drawn again.
    """

    def __init__(
        self, rewards: Judges, threads: ThreadPoolExecutor, prompts: Sequence[Prompt], chosen: Callable[[int], bool]
    ) -> None:
        self._rewards, self._threads, self._prompts, self._chosen = rewards, threads, prompts, chosen
        self._once = JudgedOnce(rewards)
        self._lock = threading.Lock()
        self._begun: dict[int, Judging] = {}
        self._checks: dict[int, Future[Reward]] = {}

    def begin(self, place: int, text: str) -> None:
        """Judge an answer in the background; what has begun goes on."""
        with self._lock:  # the thread that writes answers, and the one that waits for them
            if place not in self._begun:
                self._begun[place] = self._once.begin(self._prompts[place // self._rewards.stage.samples], text)
                if self._chosen(place):
                    self._check(place, text)

    def results(self, texts: Sequence[str | None], least: bool) -> list[Reward | None]:
        """Wait for the rewards of all answers.

        Args:
            texts: by place; None: there is no answer.
            least: judge the first accepted answer twice whether it is chosen or not: first by its place, not by the clock.
        """
        for place, text in enumerate(texts):
            if text is None:
                continue
            self.begin(place, text)
            if least and self._begun[place].result().accepted:
                least = False
                if place not in self._checks:
                    self._check(place, text)
        return [None if text is None else self._result(place) for place, text in enumerate(texts)]

    def _result(self, place: int) -> Reward:
        return self._checks[place].result() if place in self._checks else self._begun[place].result()

    def _check(self, place: int, text: str) -> None:
        at, judging = place // self._rewards.stage.samples, self._begun[place]
        # Chosen before the answer is judged, so that the waiting thread has nothing left to look up.
        other = swap_for(self._rewards.stage, self._prompts, at)

        def judged() -> Reward:
            reward = judging.result()
            if reward.accepted is not True:
                return reward
            return with_check(reward, self._rewards.check(self._prompts[at], text, other))

        self._checks[place] = self._threads.submit(judged)


def write_disagreements(folder: Path, number: int, rank: int, found: Round) -> None:
    """Keep answers that were refused when judged once more as JSON lines, to be read by people; they stay for good."""
    lines = [json.dumps(s.to_json(), ensure_ascii=False) for s in found.everything if s.reward.checked is False]
    if lines:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"disagreed-{number:06d}.{rank}.jsonl"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="replace")
