"""What comes back from code is compared as plain values and as printed text, and nothing forged breaks that."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.verify.code.compare import matches, same_print
from windtunnel.verify.code.values import NotPlain, decode, encode

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers() | st.tuples(st.integers(), st.text()), inner, max_size=4)
        | st.sets(st.integers() | st.text() | st.booleans(), max_size=4)
        | st.frozensets(st.integers(), max_size=3)
    ),
    max_leaves=12,
)


@given(plain)
def test_plain_values_survive_the_journey(value: Any) -> None:
    import json

    form = json.loads(json.dumps(encode(value)))
    assert repr(decode(form)) == repr(value) or "{" in repr(value)  # sets and dicts may come back in another order
    assert matches(value, form) or "nan" in repr(value)


@given(plain, plain)
def test_matching_is_equality(first: Any, second: Any) -> None:
    if "nan" not in repr((first, second)):
        assert matches(first, encode(second)) == (first == second)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text() | st.sampled_from(["int", "set", "dict", "tuple", "bytes", "complex"]), x)))  # fmt: skip # noqa: E501
def test_no_forged_form_breaks_the_judge(form: Any) -> None:
    for expected in (1, "x", [1], (1,), {1}, {"a": 1}, None):
        with contextlib.suppress(NotPlain, TypeError):
            assert matches(expected, form) in (True, False)


def test_forged_forms_do_not_match() -> None:
    assert not matches({1, 2}, {"set": [1, 1]})
    assert not matches({1: 1, 2: 1}, {"dict": [[1, 1], [1, 1]]})
    assert not matches([1], {"set": [1]})
    assert matches([1.0, 2], [1, 2.0])
    assert not matches([1, 2], {"tuple": [1, 2]})
    assert matches([1, 2], {"tuple": [1, 2]}, any_sequence=True)
    assert matches(0.3, 0.1 + 0.2, tolerance=1e-9)
    assert not matches(0.3, 0.1 + 0.2)


@pytest.mark.parametrize(
    ("expected", "got", "right"),
    [
        ({0.3}, {0.1 + 0.2}, True),
        ({0.3: [1.0]}, {0.1 + 0.2: [1.0 + 1e-12]}, True),
        ({0.3: [1.0]}, {0.1 + 0.2: [1.1]}, False),
        ({1.0, 1.0 + 8e-10}, {1.0 + 8e-10, 1.0 + 16e-10}, True),  # an exact match first would leave one over
        ({1, "a", None, (0.5, 1), 2.0}, {1.0 + 1e-10, "a", None, (0.5, 1), 2}, True),
        ({1, 2}, {1, 2.1}, False),
        ({1, 2}, {1, "2"}, False),
        ({1, "a"}, {1, 2}, False),
        ({1, 2}, {1, 1 + 1e-12}, False),
        ({float("inf"), 10**400}, {float("inf"), 10**400}, True),
        ({1: "one", 2: "two"}, {2.0: "two", 1 + 1e-12: "one"}, True),
        ({1: "one", 2: "two"}, {2.0: "one", 1 + 1e-12: "two"}, False),
        ({(0.3, 1)}, {(0.1 + 0.2, 1)}, False),
    ],
)
def test_a_tolerance_reaches_the_numbers_in_sets_and_among_keys(expected: Any, got: Any, right: bool) -> None:
    assert matches(expected, encode(got), tolerance=1e-9) is right


def test_with_a_tolerance_forged_sets_do_not_match_either() -> None:
    assert not matches({1, 1 + 1e-12}, {"set": [1, 1]}, tolerance=1e-9)
    assert not matches({1: 1, 2: 1}, {"dict": [[1, 1], [1, 1]]}, tolerance=1e-9)
    assert not matches({"a", "b"}, {"set": ["a", "a"]}, tolerance=1e-9)


def test_hashes_chosen_to_collide_cost_the_judge_little() -> None:
    """Compared each with each, so many would take until the test is ended as hanging."""
    modulus = (1 << 61) - 1
    form = {"set": [{"int": hex(modulus * n)} for n in range(50_000)]}
    assert not matches({1, 2, 3}, form)
    assert not matches(set(range(50_000)), form)
    inside = {"frozenset": form["set"]}
    assert not matches({1}, {"set": [inside]})
    assert not matches({frozenset({1, 2})}, {"set": [{"tuple": [inside]}]})
    assert not matches({1: 2}, {"dict": [[inside, 2]]})
    for expected in (set(range(50_000)), {float(n): 0 for n in range(50_000)}):
        sent = form if isinstance(expected, set) else {"dict": [[member, 0] for member in form["set"]]}
        assert not matches(expected, sent, tolerance=1e-9)
        assert not matches(expected, encode(dict.fromkeys(range(50_000), 1) if sent is not form else set()), tolerance=1e-9)


def test_printed_text_is_compared_line_by_line() -> None:
    assert same_print("1\n2\n", "1  \r\n2\n\n")
    assert not same_print("1\n2", "1 2")
    assert same_print("0.3333", "0.33333", tolerance=1e-3)
    assert not same_print("0.3333", "0.34", tolerance=1e-3)
    assert not same_print("a", "b", tolerance=1)
    assert same_print("5 inf", "5.0 Infinity", tolerance=1e-9)
    assert same_print("1000000007.0", "1000000000", tolerance=1e-6)
    assert not same_print("1000000007", "1000000000", tolerance=1e-6)
    assert not same_print("9" * 400, "8" * 400, tolerance=1e-6)
    assert not same_print("9" * 5000, "8" * 5000, tolerance=1e-6)
    assert not same_print("1e999", "2e999", tolerance=1e-6)
    assert not same_print("inf", "1e999", tolerance=1e-6)


def test_of_whole_numbers_a_tolerance_is_absolute() -> None:
    for expected, got in (
        (1_000_000_007, 1_000_000_000),
        ([10**30], [10**30 + 1]),
        ({10**12}, {10**12 + 1}),
        (10**400, 10**400 + 1),
    ):
        assert not matches(expected, encode(got), tolerance=1e-6)
    assert matches(10, 11, tolerance=1)
    assert not matches(10, 12, tolerance=1)
    assert matches(1e9, 1_000_000_001, tolerance=1e-6)
