"""Rewards: every source of a recipe judges an answer, in workers that run beside generation; their weighted sum is the reward."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.data import Prompt
from windtunnel.recipe import GRPO, RewardSource, UserError
from windtunnel.verify import (
    ExactVerifier,
    FunctionVerifier,
    Pool,
    RewardProcess,
    Verdict,
    Verifier,
    Verifiers,
    find_reward,
    kernel_outcome,
    require_working,
    speed_reward,
)
from windtunnel.verify import broken as unknown

from .judges import SUBJECT, Judges, Reward, as_text, final_answer, prompt_text, stored_answer
from .published_tests import code_task

if TYPE_CHECKING:
    from .cross_check import Checked

AS_WRITTEN = ("answer", "solution")
"""What TRL's rewards call the data's own right answer."""
MOST_WORKERS = 32
MOST_WAITING = 1 << 20


class _JudgingHere:
    """An answer that is being judged by every source."""

    def __init__(self, rewards: Rewards, verifiers: Sequence[Verifier | None], answer: str) -> None:
        self._rewards, self._verifiers, self._answer = rewards, verifiers, answer
        self._lock, self._found = threading.Lock(), list[Reward]()
        # Several sources may look at one judge's verdict, as correctness and speed do.
        different = {id(v): v for v in verifiers if v is not None}
        self._verdicts = {number: rewards.submit(verifier, answer) for number, verifier in different.items()}

    def result(self) -> Reward:
        """Wait for every source; one that failed is asked again as often as the recipe allows. Any thread may ask, and again."""
        with self._lock:
            if not self._found:
                self._found.append(self._combined())
            return self._found[0]

    def _combined(self) -> Reward:
        again, found = 0, dict[int, Verdict]()
        for verifier in self._verifiers:
            # Correctness and speed share a verifier: a kernel is not run twice for them.
            if verifier is None or id(verifier) in found:
                continue
            verdict, times = self._rewards.ask(verifier, self._answer, self._verdicts[id(verifier)])
            again += times
            if verdict.infrastructure:
                self._rewards.failed(self._verifiers.index(verifier), verdict)
            found[id(verifier)] = verdict
        reward = combine(self._rewards.stage, [found.get(id(verifier)) for verifier in self._verifiers], again)
        seconds: Counter[str] = Counter()
        for one in found.values():
            seconds.update(one.times)
        return replace(reward, seconds=dict(seconds))


class Rewards(Judges):
    """Judges in this process, whose workers start when first needed. See `windtunnel.recipe.RewardSource`.

    Args:
        stage: whose sources judge.
        log: what the user's functions print, and why judges failed, goes to the end of this file; None: nowhere.
        timed: time right kernels on a GPU although no source rewards speed.
        gpu: on which kernels are run; its number among those that this process may use.
        processes: of this machine that have judges, and share its cores.

    Attributes:
        timed_against: what right kernels' times are compared with; empty: none is timed.

    Raises:
        UserError: there is no source, a function cannot be loaded, or a task cannot be used.
    """

    def __init__(self, stage: GRPO, log: Path | None = None, *, timed: bool = False, gpu: int = 0, processes: int = 1) -> None:
        super().__init__(stage)
        self._log, self._writing = log, threading.Lock()
        if not self.sources:
            name = f"stages.{stage.name or 'rl'}.rewards"
            raise UserError(
                f"{name}: nothing judges answers, so there is nothing to learn from",
                f"for example --set {name}='[{{kind: math}}]'",
            )
        # As many as this process may use, which in a container or under Slurm are fewer than the machine has.
        workers = max(1, min(MOST_WORKERS, len(os.sched_getaffinity(0)) // processes))
        self._stack = contextlib.ExitStack()
        try:
            # Speed is PyTorch's time as it is written over the kernel's; where nothing asks for it, nobody waits for the clock.
            self.timed_against = ("eager",) if timed or any(source.speed for source in self.sources) else ()
            self._verifiers = self._stack.enter_context(
                Verifiers(workers, sources=True, timed_against=self.timed_against, gpu_index=gpu)
            )
            self._functions = [self._function(i, source) for i, source in enumerate(self.sources)]
            self._forms = [self._form(source) for source in self.sources]
            # For messages: where the recipe says that such a judge is wanted.
            keys: dict[str, str] = {
                source.kind: f"stages.{stage.name or 'rl'}.rewards.{i}" for i, source in enumerate(self.sources)
            }
            require_working(self._verifiers, keys)
            self._pool = self._stack.enter_context(Pool(workers, MOST_WAITING))
        # A refusal halfway must not leave judges' processes behind.
        except BaseException:
            self._stack.close()
            raise

    def close(self) -> None:
        """End the judges and what they run."""
        self._pool.stop()
        self._verifiers.stop()
        self._stack.close()

    def verifiers(self, prompt: Prompt) -> list[Verifier | None]:
        """Return every source's verifier of answers to a prompt; None: it does not judge prompts of this subject.

        A source that cannot judge a prompt which it should fails on each answer, and so does a prompt that nobody judges.
        """
        subject = prompt.data.get(SUBJECT)
        found = [self._made(i, source, prompt) if source.of in (None, subject) else None for i, source in enumerate(self.sources)]
        if any(one is not None for one in found):
            return found
        what = f"no reward is for prompts of the subject {subject!r}" if subject else f"the prompt's record has no {SUBJECT}"
        # One place fails and the answer counts as unknown: with no judge at all it would have a reward of nothing.
        return [_NoTask(what), *found[1:]]

    def begin(self, verifiers: Sequence[Verifier | None], answer: str) -> _JudgingHere:
        """Judge an answer in the background."""
        return _JudgingHere(self, verifiers, answer)

    def submit(self, verifier: Verifier, answer: str) -> Future[Verdict]:
        """Queue an answer for one source."""
        return self._pool.submit(verifier, answer, wait=True)

    def ask(self, verifier: Verifier, answer: str, asked: Future[Verdict] | None = None) -> tuple[Verdict, int]:
        """Wait for a verdict; return it and how often a source that failed was asked again.

        Args:
            verifier: of the source.
            answer: its text.
            asked: what was submitted already.
        """
        verdict: Verdict = self.awaited(asked or self.submit(verifier, answer))
        for again in range(self.stage.retries):
            if not verdict.infrastructure:
                return verdict, again
            verdict = self.awaited(self.submit(verifier, answer))
        return verdict, self.stage.retries

    def check(self, prompt: Prompt, answer: str, other: Prompt | None) -> Checked:
        """Judge an accepted answer once more, another way; see `cross_check.check_again`. Waits for the judges."""
        from .cross_check import check_again

        return check_again(self, prompt, answer, other)

    def failed(self, source: int, verdict: Verdict) -> None:
        """Put into the log why a source judged nothing, however often it was asked."""
        if self._log is None:
            return
        line = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}  {self.sources[source].name} failed: {verdict.stage}: {verdict.message}\n"
        with contextlib.suppress(OSError), self._writing:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with open(self._log, "a", encoding="utf-8", errors="replace") as file:
                file.write(line)

    def handle(self, method: str, *arguments: Any) -> Any:
        """Do what is asked from elsewhere: 'judge' an answer to a prompt, or 'check' an accepted one once more.

        Args:
            method: which of them.
            arguments: the prompt and the answer; of 'check' another prompt too, or None.

        Returns:
            A `Reward`, or a `Checked`.
        """
        if method == "check":
            return self.check(*arguments)
        prompt, answer = arguments
        return self.begin(self.verifiers(prompt), answer).result()

    def _made(self, number: int, source: RewardSource, prompt: Prompt) -> Verifier:
        truth = final_answer(prompt, source)
        function, form = self._functions[number], self._forms[number]
        if function is not None:
            # TRL gives columns as they are: rewards that were written for whole solutions find the answer in them themselves.
            written = stored_answer(prompt, source)
            named = {} if prompt.answer_key is None or source.key else {prompt.answer_key: written}
            columns = dict.fromkeys(AS_WRITTEN, written) | prompt.data | named
            return FunctionVerifier(function[0], prompt_text(prompt), as_text(truth), function[1], truth, columns)
        if form is not None:
            return form
        if truth is None:
            return _NoTask(f"the prompt has no {source.key or 'answer'}, which rewards of kind {source.kind} need")
        try:
            if source.kind == "math":
                return self._verifiers.make("math", {"answer": truth, "where": source.where})
            if source.kind == "exact":
                several = isinstance(truth, list) and truth and all(isinstance(one, str) for one in truth)
                return ExactVerifier(truth if several else [as_text(truth) or ""], source.where, "case")
            return self._verifiers.make(source.kind, truth if source.kind != "code" else code_task(truth, prompt))
        except UserError as error:
            return _NoTask(error.message)

    def _function(self, number: int, source: RewardSource) -> tuple[RewardProcess, threading.Lock] | None:
        if source.function is None:
            return None
        key = f"stages.{self.stage.name or 'rl'}." + ("reward" if self.stage.reward else f"rewards.{number}.function")
        reward = find_reward(source.function, key)
        if self._log is None:
            process = reward.open(Path(self._stack.enter_context(tempfile.TemporaryDirectory())))
        else:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            process = reward.open(self._log.parent, log=self._log.name)
        self._stack.enter_context(process)
        # A user's function is one process that answers one question at a time.
        return process, threading.Lock()

    def _form(self, source: RewardSource) -> Verifier | None:
        if source.kind == "math":
            self._verifiers.make("math", {"answer": "1"})  # refuses where math-verify is not installed
        return self._verifiers.make("format", source.task) if source.kind == "format" else None


def combine(stage: GRPO, verdicts: Sequence[Verdict | None], asked_again: int = 0) -> Reward:
    """Return the reward of an answer from the verdict of every source; None: it was not asked."""
    asked = [(source, verdict) for source, verdict in zip(stage.sources, verdicts, strict=True) if verdict is not None]
    given = [(source, speed_reward(verdict) if source.speed else verdict.reward) for source, verdict in asked]
    every = iter(part for _, part in given)
    parts = tuple(None if verdict is None else next(every) for verdict in verdicts)
    # The first source that judges the prompt says what is right; the others only add to the reward.
    first = asked[0][1]
    accepted = None if first.infrastructure else first.accepted
    plan = _sum(given, "plan") if stage.classes else None
    kernel = asked[0][0].kind == "kernel"
    share = first.evidence.get("share") if accepted and kernel else None
    outcome = kernel_outcome(first) if kernel else None
    return Reward(_sum(given, "code"), parts, accepted, first.message, asked_again, plan, share, outcome=outcome)


def _sum(given: Sequence[tuple[RewardSource, float | None]], tokens: str) -> float | None:
    """Return the weighted sum for a class of tokens; None where one of its judges failed, or nothing judges it."""
    wanted = [(source.weight, part) for source, part in given if source.tokens in ("all", tokens)]
    # A part that is missing is not zero: with it left out answers of one prompt would be weighed by different sums.
    known = [weight * part for weight, part in wanted if part is not None]
    return sum(known) if known and len(known) == len(wanted) else None


@dataclass(frozen=True)
class _NoTask:
    """Judges nothing: the prompt has no task for this source."""

    why: str

    def verify(self, answer: str) -> Verdict:
        """Say why nothing is known."""
        return unknown("task", self.why)
