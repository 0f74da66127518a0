"""Answers to held-out questions judged by a recipe's metric: right, wrong, or nothing is known of them."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Protocol

from windtunnel.recipe import ACTIONS, Answers, UserError
from windtunnel.verify import (
    ExactVerifier,
    FunctionVerifier,
    Verdict,
    Verifiers,
    accept,
    find_reward,
    kernel_outcome,
    part_of_answer,
    refuse,
    require_working,
)
from windtunnel.verify import broken as unknown

from .actions import read_action
from .answers import Answer, Answered, Completion, Question


class Judging(Protocol):
    """Judges answers to questions."""

    def judge(self, questions: Sequence[Question], said: Sequence[Completion], too_long: int = 0) -> Answered:
        """Return the judged answers."""


class Judge:
    """Judges answers by a recipe's metric. A context manager; its workers and processes start when first needed.

    Args:
        asked: of the recipe.
        timed: time right kernels beside PyTorch, on a GPU.

    Raises:
        UserError: the metric's function or task cannot be used.
    """

    def __init__(self, asked: Answers, *, timed: bool = False) -> None:
        self._metric, self._where = asked.metric, asked.where
        self._stack, self._workers = contextlib.ExitStack(), 1
        with contextlib.ExitStack() as opened:  # closes what has been opened where the rest cannot be
            opened.push(self._stack)
            self._verdict = self._opened(asked, timed)
            opened.pop_all()

    def _opened(self, asked: Answers, timed: bool) -> Callable[[Question, str], Verdict]:
        """Return what judges an answer by the metric."""
        if self._metric == "action":
            return lambda question, text: _judge_action(question.truth, text)
        if self._metric in ("exact_match", "contains"):
            return self._by_truth
        if self._metric not in ("math", "format", "kernel"):
            folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
            function = self._stack.enter_context(find_reward(self._metric, "stages.sft.answers.metric").open(folder))
            return lambda question, text: FunctionVerifier(function, question.prompt, question.truth).verify(text)
        clock = ("eager",) if timed else ()
        verifiers = Verifiers(min(4, os.cpu_count() or 1), sources=self._metric == "kernel", timed_against=clock)
        self._workers = self._stack.enter_context(verifiers).workers
        if self._metric == "format":
            form = verifiers.make("format", asked.task)
            return lambda question, text: form.verify(text)
        if self._metric == "math":
            verifiers.make("math", {"answer": "1"})  # refuses where math-verify is not installed
            return partial(self._by_truth, verifiers=verifiers)
        require_working(verifiers, {"kernel": "stages.sft.answers.metric"})
        return partial(_judge_kernel, verifiers)

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def judge(self, questions: Sequence[Question], said: Sequence[Completion], too_long: int = 0) -> Answered:
        """Return the judged answers."""

        def verdict(question: Question, one: Completion) -> Verdict:
            return self._verdict(question, one.text) if one.failed is None else unknown("generate", one.failed)

        # Verifiers wait for processes of theirs, so that threads keep several busy; the other metrics take no time.
        with ThreadPoolExecutor(self._workers) as threads:
            verdicts = list(threads.map(verdict, questions, said))
        outcomes = map(kernel_outcome, verdicts) if self._metric == "kernel" else [None] * len(verdicts)
        answers = [
            Answer(question, one.text, None if found.infrastructure else found.accepted, one.cut, found.message, how_far)
            for question, one, found, how_far in zip(questions, said, verdicts, outcomes, strict=True)
        ]
        return Answered(self._metric, tuple(answers), too_long)

    def _by_truth(self, question: Question, text: str, verifiers: Verifiers | None = None) -> Verdict:
        """Compare an answer with the conversation's own: as a text, or with verifiers as mathematics."""
        truth = part_of_answer(question.truth, self._where)
        if truth is None or not truth.strip():
            return unknown("truth", f"the conversation's own answer holds no {self._where.replace('-', ' ')} text")
        if verifiers is None:
            return ExactVerifier([truth], self._where, "case", within=self._metric == "contains").verify(text)
        try:
            return verifiers.make("math", {"answer": truth, "where": self._where}).verify(text)
        except UserError as error:
            return unknown("truth", error.message)


def _judge_kernel(verifiers: Verifiers, question: Question, text: str) -> Verdict:
    if question.task is None:
        return unknown("task", "the conversation asks for no kernel of the recipe's tasks")
    try:
        return verifiers.make("kernel", question.task).verify(text)
    except UserError as error:
        return unknown("task", error.message)


def _judge_action(truth: str, text: str) -> Verdict:
    """Compare the action of an answer with the right one; an answer that cannot be read is wrong."""
    right, said = read_action(truth, ACTIONS), read_action(text, ACTIONS)
    if right.action is None:
        return unknown("truth", f"the conversation's own answer: {right.why}")
    if said.action is None:
        # Wrong, not unknown: whoever acts on such an answer would have to guess.
        return refuse("action", "malformed", said.why)
    words = f"{said.action}, right is {right.action}"
    return accept("action", words) if said.action == right.action else refuse("action", "wrong-result", words)
