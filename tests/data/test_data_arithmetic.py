"""Generated sums: exact, deterministic, within the grammar and the alphabet."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.data import Problem, held_out_problems, prepare, solve
from windtunnel.data.arithmetic import generate, parse_problem
from windtunnel.recipe import ARITHMETIC_ALPHABET, ArithmeticCorpus, UserError, load_recipe

CANONICAL = re.compile(r"-?(0|[1-9]\d*)(\.\d*[1-9])?")


def exact(expression: str) -> Fraction:
    return sum((Fraction(t) for t in re.findall(r"[+-]?[\d.]+", expression)), Fraction(0))


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**70),
    digits=st.integers(1, 9),
    decimals=st.integers(0, 6),
    terms=st.integers(2, 6),
    first=st.integers(0, 10**9),
)
def test_every_document_is_a_true_sum(seed: int, digits: int, decimals: int, terms: int, first: int) -> None:
    corpus = ArithmeticCorpus(documents=10, digits=digits, decimals=decimals, terms=terms)
    for text in generate(corpus, seed, first, 200).documents():
        assert set(text) <= set(ARITHMETIC_ALPHABET)
        problem = parse_problem(text)
        expression = problem.prompt[1:-1]
        assert exact(expression) == Fraction(problem.answer)
        assert solve(expression) == problem.answer
        numbers = re.findall(r"[\d.]+", expression)
        assert 2 <= len(numbers) <= terms
        for number in numbers:
            whole, _, fraction = number.partition(".")
            assert len(whole) <= digits
            assert len(fraction) <= decimals
            assert CANONICAL.fullmatch(number)
        assert CANONICAL.fullmatch(problem.answer)
        assert problem.answer != "-0"


def test_a_document_depends_on_seed_and_index_alone() -> None:
    corpus = ArithmeticCorpus(documents=10, digits=4, decimals=2, terms=3)
    whole = generate(corpus, 7, 0, 1000)
    part = generate(corpus, 7, 400, 10)
    assert part.documents() == whole.documents()[400:410]
    assert part.keys.tolist() == whole.keys.tolist()[400:410]
    assert generate(corpus, 8, 0, 1000).documents() != whole.documents()


def test_equal_documents_have_equal_keys_and_different_ones_do_not() -> None:
    batch = generate(ArithmeticCorpus(documents=10, digits=1, terms=2), 3, 0, 20_000)
    by_text: dict[str, set[int]] = {}
    for text, key in zip(batch.documents(), batch.keys.tolist(), strict=True):
        by_text.setdefault(text, set()).add(key)
    assert len(by_text) < 1000
    assert all(len(keys) == 1 for keys in by_text.values())
    assert len(set.union(*by_text.values())) == len(by_text)


def test_the_corpus_is_varied() -> None:
    texts = generate(ArithmeticCorpus(documents=10, digits=3, decimals=1, terms=3), 1, 0, 5000).documents()
    assert sum(t.startswith("H-") for t in texts) > 500
    assert sum("B-" in t for t in texts) > 500
    assert sum("." in t for t in texts) > 1000
    assert sum(len(re.findall(r"\d[+-]", t)) == 2 for t in texts) > 1500
    assert len(set(texts)) > 4500


def test_solve_and_parse_refuse_what_is_no_sum() -> None:
    assert solve("0.1+0.2") == "0.3"
    assert solve("1.5-1.5") == "0"
    assert solve("100-0") == "100"
    for wrong in ("", "1+", "+1+2", "1*2", "1..2+3", "1+-2"):
        with pytest.raises(ValueError, match="sum"):
            solve(wrong)
    with pytest.raises(ValueError, match="is not a sum"):
        parse_problem("H1+1=2L\n")


def test_a_completion_counts_only_when_exact_and_ended() -> None:
    problem = Problem("H12+34B", "46")
    assert problem.matches("46L\nH1+1")
    assert not problem.matches("46")
    assert not problem.matches("046L")
    assert not problem.matches("4L6L")


def test_held_out_problems_are_not_in_training(tmp_path) -> None:  # type: ignore[no-untyped-def]
    sets = ["data.corpus.documents=5000", "data.corpus.digits=2", "data.corpus.terms=2", "data.validation=0.1"]
    prepared = prepare(load_recipe("charlm", sets), tmp_path)
    training = set(prepared.tokenizer.decode(prepared.train.array).splitlines())
    problems = held_out_problems(prepared, 50, seed=1)
    assert len({p.prompt for p in problems}) == 50
    assert not {f"{p.prompt}{p.answer}L" for p in problems} & training
    assert problems == held_out_problems(prepared, 50, seed=1)
    assert problems != held_out_problems(prepared, 50, seed=2)
    assert len(held_out_problems(prepared, 10**6, seed=1)) < 1000


def test_exact_match_needs_arithmetic(tmp_path) -> None:  # type: ignore[no-untyped-def]
    sets = ["data.corpus.kind=stdlib", "data.corpus.megabytes=0.2", "data.tokenizer.alphabet=auto", "data.validation=0.2"]
    prepared = prepare(load_recipe("charlm", sets), tmp_path)
    with pytest.raises(UserError, match="arithmetic"):
        held_out_problems(prepared, 5, seed=1)
