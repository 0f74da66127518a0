"""Several answers drawn to each held-out question: pass@k, and of kernels how far they came and how fast they are.

Greedy answers say what a model does first; draws say what it can do in k attempts. pass@k is the unbiased estimate of Chen et
al. (2021, "Evaluating Large Language Models Trained on Code", arXiv 2107.03374). Intervals draw questions again: answers to one
question are alike, and taking them for independent would make intervals too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from windtunnel.data import Tokenizer
from windtunnel.generate import Decoder, GenerationJob
from windtunnel.recipe import UserError
from windtunnel.verify import KernelOutcome

from .answers import AT_ONCE, Answer, Completion, Question, Questions, complete_jobs, groups_of
from .bootstrap import Array, Interval, cluster_sums, interval_of, number_clusters
from .judge import Judging

ATTEMPT_SEED = 109  # added to the drawing's, so that attempts are not the samples of the same seed
MOST = 1000
# Attempts drawn together there; where that is too much for its memory, the generator goes on with half as many.
AT_ONCE_ON_GPU = 128
# KernelBench's fast_p: right, and more than p times as fast as PyTorch (arXiv 2502.10517).
FASTER = {"fast1": 1.0, "fast1.2": 1.2, "fast2": 2.0}


@dataclass(frozen=True)
class Drawing:
    """How attempts are drawn.

    Attributes:
        each: answers to a question.
        temperature: above 0, or all attempts were one.
        seed: the same seed gives the same answers on the same machine.

    Raises:
        UserError: a number is out of its range.
    """

    each: int
    temperature: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.each <= MOST:
            raise UserError(f"--attempts {self.each}: expected 1 to {MOST:,}", "--attempts 10")
        if not 0 < self.temperature < math.inf:
            raise UserError(f"--temperature {self.temperature:g}: expected more than 0", "--temperature 1.0")

    def jobs(self, questions: Sequence[Question], tokens: int) -> list[GenerationJob]:
        """Return the attempts at questions, one question after another; no two have the same seed."""
        # Room for four billion attempts before the next seed's begin.
        first = (self.seed + ATTEMPT_SEED) << 32
        asked = [question for question in questions for _ in range(self.each)]
        return [GenerationJob(one.ids, tokens, temperature=self.temperature, seed=first + i) for i, one in enumerate(asked)]


@dataclass(frozen=True)
class Attempts:
    """Judged attempts at the same questions in the same order.

    Attributes:
        drawing: how they were drawn.
        answers: by question, `drawing.each` of them.
    """

    drawing: Drawing
    answers: tuple[tuple[Answer, ...], ...] = field(repr=False)

    @property
    def ks(self) -> tuple[int, ...]:
        """Return the k of which pass@k is told: 1, 10 and 100 as far as there are so many attempts, and their number."""
        return tuple(sorted({k for k in (1, 10, 100) if k < self.drawing.each} | {self.drawing.each}))

    @property
    def groups(self) -> list[str] | None:
        """Return the group of each question; None where each stands alone."""
        return groups_of([tried[0].question for tried in self.answers])

    def solved(self, k: int) -> Array:
        """Return (questions,) estimates that one of k attempts is right; NaN where fewer than k are judged."""
        return np.array([pass_at(k, *_counts(tried)) for tried in self.answers])

    def pass_at(self, k: int) -> Interval:
        """Return the mean over questions of which at least k attempts are judged."""
        return _mean(self.solved(k), self.groups)

    def kernels(self) -> dict[str, Interval]:
        """Return shares of all judged attempts, and `speedup`, the geometric mean over those right and timed; empty: no kernels.

        Faster than PyTorch (`FASTER`) is told where every right kernel was timed, as it is on a GPU.
        """
        tried = [[one.outcome for one in each if one.outcome is not None] for each in self.answers]
        if not any(tried):
            return {}
        groups = self.groups

        def share(wanted: Callable[[KernelOutcome], bool]) -> Interval:
            return _ratio(np.array([(sum(map(wanted, each)), len(each)) for each in tried], dtype=np.float64), groups)

        found = {
            "valid": share(lambda one: one.valid),
            "compiled": share(lambda one: one.compiled),
            "right": share(lambda one: one.right),
        }
        right = [one for each in tried for one in each if one.right]
        # A mean over those that were timed would leave out the slow ones that ran out of time.
        if not right or any(one.speedup is None for one in right):
            return found
        for name, least in FASTER.items():
            found[name] = share(partial(_faster, least))
        # Geometric: twice as fast and half as fast make no difference together.
        logs = [[math.log(one.speedup) for one in each if one.speedup] for each in tried]
        found["speedup"] = _ratio(np.array([(sum(each), len(each)) for each in logs], dtype=np.float64), groups, np.exp)
        return found

    def to_json(self) -> dict[str, Any]:
        """Return stable keys."""
        every = [one for each in self.answers for one in each]
        kernels = self.kernels()
        return {
            "questions": len(self.answers), "each": self.drawing.each, "temperature": self.drawing.temperature,
            "unknown": sum(one.right is None for one in every), "cut": sum(one.cut for one in every),
            "pass_at": {str(k): self.pass_at(k).to_json() for k in self.ks},
            "confidence": 0.95, "interval": f"bootstrap over {'questions' if self.groups is None else 'kinds of questions'}",
        } | ({"kernels": {name: value.to_json() for name, value in kernels.items()}} if kernels else {})  # fmt: skip


def draw_attempts(model: Decoder, tokenizer: Tokenizer, questions: Questions, tokens: int, drawing: Drawing) -> list[Completion]:
    """Answer each question several times, question after question; see `answers.answer_questions`."""
    # A CPU is busy with few, and each more takes memory for its keys and values.
    slots = AT_ONCE_ON_GPU if model.device.type == "cuda" else AT_ONCE
    return complete_jobs(model, tokenizer, drawing.jobs(questions.asked, tokens), questions.ends, slots=slots)


def judge_attempts(judge: Judging, questions: Questions, said: Sequence[Completion], drawing: Drawing) -> Attempts:
    """Judge what `draw_attempts` returned."""
    each = drawing.each
    asked = [question for question in questions.asked for _ in range(each)]
    answers = judge.judge(asked, said).answers
    return Attempts(drawing, tuple(answers[at : at + each] for at in range(0, len(answers), each)))


def pass_at(k: int, n: int, right: int) -> float:
    """Return the unbiased estimate that one of k answers is right, from n of which so many are; NaN where n < k."""
    if n < k:
        return math.nan
    # Exact integers: the product of the paper's code is for when these would not fit into floats.
    return 1.0 - math.comb(n - right, k) / math.comb(n, k)


def passed_over(mine: Attempts, other: Attempts) -> dict[int, Interval]:
    """Return mine minus the other's pass@k on the same questions, with the interval of a bootstrap over them or their kinds."""
    return {k: _mean(mine.solved(k) - other.solved(k), mine.groups) for k in mine.ks}


def attempt_rows(mine: Attempts, other: Attempts | None, gain: Mapping[int, Interval]) -> list[list[str]]:
    """Return rows of a table: name, mine, the other's, difference."""
    rows = []
    for k in mine.ks:
        its = "-" if other is None else _points(other.pass_at(k))
        change = gain.get(k)
        told = "" if change is None else f"{100 * change.value:+.1f} points ({100 * change.low:+.1f} to {100 * change.high:+.1f})"
        rows.append([f"pass@{k}", _points(mine.pass_at(k)), its, told])
    others = {} if other is None else other.kernels()
    for name, value in mine.kernels().items():
        said = _times if name == "speedup" else _points
        rows.append([name, said(value), said(others[name]) if name in others else "-", ""])
    return rows


def _points(value: Interval) -> str:
    return f"{value.value:.1%} ({value.low:.1%} to {value.high:.1%})"


def _times(value: Interval) -> str:
    return f"{value.value:.2f} x ({value.low:.2f} to {value.high:.2f})"


def _counts(tried: Sequence[Answer]) -> tuple[int, int]:
    """Return how many attempts are judged, and how many of them are right."""
    known = [one.right for one in tried if one.right is not None]
    return len(known), sum(known)


def _mean(values: Array, groups: Sequence[str] | None) -> Interval:
    """Return the mean of what is known of each question; NaN where nothing is."""
    known = ~np.isnan(values)
    return _ratio(np.stack([np.where(known, values, 0.0), known], -1), groups)


def _ratio(sums: Array, groups: Sequence[str] | None, of: Callable[[Array], Array] = np.asarray) -> Interval:
    """Return one sum over questions by another, with its interval; NaN where nothing is known of any.

    Args:
        sums: (questions, 2) what is summed; of a question of which nothing is known the second is 0.
        groups: of the questions, which are then drawn as a whole; None: each stands alone.
        of: what is told of the ratio.
    """
    kept = sums[:, 1] > 0
    if not kept.any():
        return Interval(math.nan, math.nan, math.nan)
    known = sums[kept]
    if groups is not None:
        known = cluster_sums(known, *number_clusters([group for group, is_kept in zip(groups, kept, strict=True) if is_kept]))
    return interval_of(known, lambda drawn: of(drawn[..., 0] / drawn[..., 1]))


def _faster(least: float, one: KernelOutcome) -> bool:
    """Say whether a kernel is right, and more than `least` times as fast as PyTorch."""
    return one.speedup is not None and one.speedup > least
