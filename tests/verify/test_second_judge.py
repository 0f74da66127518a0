"""Second opinions go another way than the first, and agree with it where that is right."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from windtunnel.verify import CodeVerifier, KernelVerifier, MathVerifier, Verifiers, second_opinion
from windtunnel.verify.second_judge import ByValues


@pytest.fixture(scope="module")
def verifiers() -> Iterator[Verifiers]:
    with Verifiers(1, gpu=False) as made:
        yield made


RIGHT = [
    ("1/2", "0.5"), ("x^2-1", "(x-1)(x+1)"), ("3", "x=3"), ("\\sqrt{8}", "2\\sqrt{2}"), ("\\{1,2\\}", "\\{2,1\\}"),
    ("50", "50\\%"),
    ("(1,2)", "(1, 2)"), ("\\frac{\\pi}{4}", "\\arctan 1"), ("12", "12 \\text{ cm}"), ("0.0001", "10^{-4}"), ("yes", "yes"),
    ("\\sin^2 x + \\cos^2 x", "1"), ("x+y", "y+x"),
]  # fmt: skip


@pytest.mark.parametrize(("gold", "answer"), RIGHT)
def test_right_mathematics_is_right_by_values_too(verifiers: Verifiers, gold: str, answer: str) -> None:
    first = verifiers.make("math", {"answer": gold, "where": "all"})
    assert first.verify(answer).accepted
    assert second_opinion(first).verify(answer).accepted


@pytest.mark.parametrize(("gold", "answer"), [("1/2", "0.51"), ("x^2-1", "x^2+1"), ("\\sqrt{2}", "1.42"), ("0.0002", "0.0003")])
def test_another_value_is_refused_without_asking_the_first(verifiers: Verifiers, gold: str, answer: str) -> None:
    """A first judge that would accept anything is not heard."""
    first = verifiers.make("math", {"answer": gold, "where": "all"})
    assert isinstance(first, MathVerifier)
    verdict = ByValues(first).verify(answer)
    assert not verdict.accepted
    assert "values" in verdict.message


def test_code_gets_its_tests_in_the_other_order(verifiers: Verifiers) -> None:
    first = verifiers.make("code", {"asserts": "assert half(4) == 2\nassert half(1) == 0.5\nassert half(0) == 0"})
    second = second_opinion(first)
    assert isinstance(first, CodeVerifier)
    assert isinstance(second, CodeVerifier)
    assert list(second.task.cases) == list(reversed(first.task.cases))
    assert second.verify("def half(x):\n    return x / 2\n").accepted
    assert "test 2 of 3" in second.verify("def half(x):\n    return x // 2\n").message


def test_kernels_get_hidden_inputs_of_their_own(verifiers: Verifiers) -> None:
    first = verifiers.make("kernel", "relu")
    assert isinstance(first, KernelVerifier)
    second = second_opinion(first)
    assert isinstance(second, KernelVerifier)
    mine, theirs = ({ready.case: ready.inputs for ready in one.preparation.batch().ready} for one in (first, second))
    assert {"large", "shifted"} <= {case.variation for case in theirs}
    drawn = [(a, b) for case in mine.keys() & theirs.keys() for a, b in zip(mine[case], theirs[case], strict=True)]
    assert drawn
    assert not all(np.array_equal(a.data, b.data) for a, b in drawn)


def test_what_has_no_other_way_is_asked_again(verifiers: Verifiers) -> None:
    exact = verifiers.make("exact", {"answer": "4"})
    assert second_opinion(exact) is exact
