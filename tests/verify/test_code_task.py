"""A task of hidden tests is read, or refused with what is wrong with it."""

from __future__ import annotations

from typing import Any

import pytest

from windtunnel.recipe import UserError
from windtunnel.verify.code import CodeTask, cases_of_asserts


def test_assertions_become_cases() -> None:
    cases = cases_of_asserts("assert f(1, [2], k={'a': (1,)}) == {3}\nassert g()\nassert not h(-1)")
    assert [(c.function, c.expected) for c in cases] == [("f", {3}), ("g", True), ("h", False)]
    assert cases[0].kwargs == {"k": {"a": (1,)}}
    for wrong in ("x = 1", "assert f(y) == 2", "assert f(1) == g(1)", "assert (", "assert 1 == 1", "assert f({[]: 1})"):
        with pytest.raises(UserError):
            cases_of_asserts(wrong)
    with pytest.raises(UserError, match=r"line 2 passes arguments by \*\*"):
        cases_of_asserts("assert f(1)\nassert f(1, **{'k': 2}) == 3")
    with pytest.raises(UserError, match="line 2 passes x twice"):
        cases_of_asserts("assert f(1)\nassert f(x=1, x=2) == 3")


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"cases": []},
        {"cases": 3},
        {"cases": [{"function": "f"}]},
        {"cases": [{"function": 1, "args": [], "expected": 1}]},
        {"cases": [{"stdin": "a"}]},
        {"cases": [{"stdin": "a", "stdout": 3}]},
        {"cases": [{"stdin": "a", "stdout": "b"}], "seconds": -1},
        {"cases": [{"stdin": "a", "stdout": "b"}], "typo": 1},
        {"asserts": "f(1)"},
        {"asserts": "assert f(1)(2) == 3"},
        {"asserts": "assert Solution(3).get() == 3"},
        {"asserts": "assert 'a'.join() == 'a'"},
        {"asserts": "assert " + "-" * 100_000 + "1"},
        {"asserts": "assert f(" + "-" * 3000 + "1) == 1"},
        {"asserts": "assert f" + ".a" * 20_000 + "() == 1"},
        {"cases": [{"function": "f(1)", "args": [], "expected": 1}]},
        {"cases": [{"function": "", "args": [], "expected": 1}]},
        {"cases": [{"stdin": "\ud800", "stdout": ""}]},
        {"asserts": "assert f(1) == 1", "preface": "\ud800"},
    ],
)
def test_malformed_tasks_are_the_users_errors(spec: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        CodeTask.of(spec)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"seconds": 1e8}, "seconds is 100000000.0"),
        ({"seconds": 0}, "seconds is 0"),
        ({"memory_mib": 0}, "memory_mib is 0"),
        ({"memory_mib": float("nan")}, "memory_mib is nan"),
        ({"partial": "no"}, "partial is 'no'"),
        ({"reveal": 1}, "reveal is 1"),
        ({"any_sequence": None}, "any_sequence is None"),
    ],
)  # fmt: skip
def test_a_task_that_no_answer_could_be_judged_by_is_refused_with_its_key_and_value(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        CodeTask.of({"asserts": "assert f(3) == 9", **spec})
    assert error.value.fix


def test_values_nested_too_deeply_to_be_sent_are_the_tasks_fault() -> None:
    deep: Any = 1
    for _ in range(70):
        deep = [deep]
    for key, args, expected in (("args", [deep], 1), ("expected", [], deep)):
        with pytest.raises(UserError, match=f"{key} is nested"):
            CodeTask.of({"cases": [{"function": "f", "args": args, "expected": expected}]})
    with pytest.raises(UserError, match="args is nested"):
        CodeTask.of({"asserts": f"assert f({deep!r}) == 1"})
