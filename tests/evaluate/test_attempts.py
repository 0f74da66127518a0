"""Several answers drawn to each question: pass@k, its interval, and how far kernels came."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from windtunnel.evaluate import Answer, Drawing, Question, attempt_rows
from windtunnel.evaluate.attempts import Attempts, pass_at, passed_over
from windtunnel.recipe import UserError
from windtunnel.verify import KernelOutcome, Verdict, kernel_outcome

QUESTION = Question((1,), "", "")


def tried(*right: bool | None) -> tuple[Answer, ...]:
    return tuple(Answer(QUESTION, "", one, False) for one in right)


@pytest.mark.parametrize(("n", "right", "k"), [(5, 2, 1), (5, 2, 3), (6, 0, 2), (4, 4, 4), (7, 3, 5)])
def test_pass_at_k_is_the_share_of_all_choices_of_k_with_a_right_one(n: int, right: int, k: int) -> None:
    choices = list(itertools.combinations([True] * right + [False] * (n - right), k))
    assert pass_at(k, n, right) == pytest.approx(sum(any(chosen) for chosen in choices) / len(choices))


def test_fewer_judged_attempts_than_k_leave_the_question_out() -> None:
    found = Attempts(Drawing(2), (tried(True, False), tried(None, False), tried(None, None)))
    assert found.ks == (1, 2)
    assert found.pass_at(1).value == pytest.approx((0.5 + 0.0) / 2)
    assert found.pass_at(2).value == 1.0
    assert found.to_json()["unknown"] == 3


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """Questions of different difficulty: an interval over single attempts would be far too narrow."""
    random, held = np.random.default_rng(1), 0
    for _ in range(100):
        chances = random.beta(0.3, 0.3, 40)
        drawn = random.random((40, 10)) < chances[:, None]
        found = Attempts(Drawing(10), tuple(tried(*row.tolist()) for row in drawn)).pass_at(1)
        held += found.low <= 0.5 <= found.high
    assert 88 <= held <= 100


def test_questions_alike_are_drawn_together() -> None:
    """Eight kinds of five questions that are right or wrong together: forty independent ones would be too sure."""
    random, held, held_alone = np.random.default_rng(2), 0, 0
    for _ in range(100):
        right = np.repeat(random.random(8) < 0.5, 5).tolist()
        rows = [(Answer(Question((i,), "", "", group=f"kind {i // 5}"), "", one, False),) * 2 for i, one in enumerate(right)]
        found, alone = Attempts(Drawing(2), tuple(rows)), Attempts(Drawing(2), tuple(tried(one, one) for one in right))
        assert found.pass_at(1).value == alone.pass_at(1).value
        held += found.pass_at(1).low <= 0.5 <= found.pass_at(1).high
        held_alone += alone.pass_at(1).low <= 0.5 <= alone.pass_at(1).high
    assert held >= 85
    assert held_alone <= 70
    assert found.to_json()["interval"] == "bootstrap over kinds of questions"


def test_no_two_attempts_have_the_same_seed_and_the_same_drawing_repeats() -> None:
    questions = [Question((i,), "", "") for i in range(1, 20)]
    jobs = Drawing(7, 0.8, seed=3).jobs(questions, 12)
    assert len({job.seed for job in jobs}) == len(jobs) == 7 * 19
    assert [job.prompt for job in jobs[:8]] == [(1,)] * 7 + [(2,)]
    assert jobs == Drawing(7, 0.8, seed=3).jobs(questions, 12)
    assert {job.seed for job in jobs}.isdisjoint(job.seed for job in Drawing(7, 0.8, seed=4).jobs(questions, 12))


@pytest.mark.parametrize(
    "bad", [{"each": 0}, {"each": 5000}, {"each": 2, "temperature": 0.0}, {"each": 2, "temperature": math.nan}]
)
def test_a_drawing_that_makes_no_sense_is_refused_by_its_option(bad: dict[str, float]) -> None:
    with pytest.raises(UserError, match=r"--(attempts|temperature)"):
        Drawing(**bad)  # type: ignore[arg-type]


def kernel(stage: str, *, accepted: bool = False, speedup: float | None = None) -> Verdict:
    evidence = {} if speedup is None else {"gpu": {"speedup": {"eager": speedup}}}
    return Verdict(accepted, stage, "accepted" if accepted else "wrong", "", float(accepted), evidence=evidence)


def test_a_kernel_is_valid_then_compiled_then_right_then_fast() -> None:
    verdicts = [kernel("record"), kernel("compile"), kernel("full"), kernel("timing", accepted=True, speedup=1.5)]
    outcomes = [kernel_outcome(verdict) for verdict in verdicts]
    assert outcomes == [
        KernelOutcome(False, False, False),
        KernelOutcome(True, False, False),
        KernelOutcome(True, True, False),
        KernelOutcome(True, True, True, 1.5),
    ]
    assert kernel_outcome(Verdict(False, "record", "broken", "", None, infrastructure=True)) is None
    one = tuple(Answer(QUESTION, "", bool(o and o.right), False, "", o) for o in outcomes)
    shares = {name: value.value for name, value in Attempts(Drawing(4), (one,)).kernels().items()}
    assert shares == pytest.approx(
        {"valid": 0.75, "compiled": 0.5, "right": 0.25, "fast1": 0.25, "fast1.2": 0.25, "fast2": 0.0, "speedup": 1.5}
    )


def test_right_kernels_that_nobody_timed_have_no_speed() -> None:
    one = (Answer(QUESTION, "", True, False, "", kernel_outcome(kernel("tiny", accepted=True))),)
    assert set(Attempts(Drawing(1), (one,)).kernels()) == {"valid", "compiled", "right"}


def test_differences_are_paired_by_question() -> None:
    mine = Attempts(Drawing(2), tuple(tried(True, i % 2 == 0) for i in range(20)))
    other = Attempts(Drawing(2), tuple(tried(False, i % 2 == 0) for i in range(20)))
    gain = passed_over(mine, other)
    assert gain[1].value == pytest.approx(0.5)
    assert gain[1].low == pytest.approx(0.5)  # the same for every question: nothing to be unsure of
    assert [row[0] for row in attempt_rows(mine, other, gain)] == ["pass@1", "pass@2"]
