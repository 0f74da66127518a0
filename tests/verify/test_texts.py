"""Exact match, format and mathematics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.recipe import UserError
from windtunnel.verify.exact import ExactVerifier
from windtunnel.verify.extract import WHERE, boxed, extract, tagged
from windtunnel.verify.format import FormatVerifier
from windtunnel.verify.schema import violation


@pytest.mark.parametrize(
    ("spec", "answer", "reason"),
    [
        ({"answer": "42"}, " 42\n", "accepted"),
        ({"answer": "42"}, "4 2", "wrong-result"),
        ({"answer": ["a", "b"]}, "b", "accepted"),
        ({"answer": "New York", "fold": "case"}, "new   york", "accepted"),
        ({"answer": "New York"}, "new york", "wrong-result"),
        ({"answer": "a b", "fold": "none"}, "a  b", "wrong-result"),
        ({"answer": "é"}, "e\u0301", "accepted"),
        ({"answer": "7", "where": "last-line"}, "thinking 8\n7\n\n", "accepted"),
        ({"answer": "7", "where": "last-line"}, "7\n8", "wrong-result"),
        ({"answer": "7", "where": "boxed"}, "\\boxed{8} no: \\boxed{7}", "accepted"),
        ({"answer": "7", "where": "boxed"}, "7", "no-answer"),
        ({"answer": "7", "where": "answer-tag"}, "<answer>8</answer><answer> 7 </answer>", "accepted"),
        ({"answer": "7", "where": "answer-tag"}, "<answer>7", "no-answer"),
    ],
)
def test_exact(spec: dict[str, Any], answer: str, reason: str) -> None:
    verdict = ExactVerifier.of(spec).verify(answer)
    assert verdict.reason == reason
    assert verdict.reward == float(reason == "accepted")


EMPTY = [{"answer": ""}, {"answer": ["a", " \n"]}, {"answer": "\u00a0", "fold": "case"}, {"answer": "", "fold": "none"}]


@pytest.mark.parametrize(
    "spec", [{}, {"answer": 4}, {"answer": []}, {"answer": "a", "x": 1}, {"answer": "a", "where": "b"}, *EMPTY]
)
def test_malformed_exact_tasks(spec: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        ExactVerifier.of(spec)


def test_blanks_that_are_not_folded_are_an_answer() -> None:
    assert ExactVerifier.of({"answer": " ", "fold": "none"}).verify(" ").accepted


def test_an_error_does_not_repeat_a_long_value() -> None:
    from windtunnel.verify.code import CodeTask
    from windtunnel.verify.mathematics import MathVerifier

    long: Any = "x" * 100_000
    for make, spec in (
        (ExactVerifier.of, {"answer": "a", "where": long}),
        (ExactVerifier.of, {"answer": "a", "fold": [long]}),
        (ExactVerifier.of, {"answer": "a", long: 1}),
        (FormatVerifier.of, {"tags": ["a"], "boxed": long}),
        (FormatVerifier.of, {long: 1}),
        (FormatVerifier.of, {"schema": {long: 1}}),
        (FormatVerifier.of, {"schema": {"properties": {long: 1}}}),
        (CodeTask.of, {long: 1}),
        (CodeTask.of, {"asserts": "assert f(1)", "partial": long}),
        (lambda spec: MathVerifier.of(spec, None), {"answer": "1", "where": long}),  # type: ignore[arg-type]
        (lambda spec: MathVerifier.of(spec, None), {"answer": "1", "digits": long}),  # type: ignore[arg-type]
    ):
        with pytest.raises(UserError) as error:
            make(spec)
        assert len(error.value.message) < 300


FENCES = ("\n" * 1_000_000, "```\n" * 250_000, "```a\n" * 200_000, " " * 1_000_000 + "```", "- " * 500_000, '"""' * 300_000)


def test_boxes_with_braces_inside_and_long_hostile_answers() -> None:
    assert boxed("a \\boxed{\\frac{1}{2}} b") == "\\frac{1}{2}"
    assert boxed("\\boxed{\\{1, 2\\}}") == "\\{1, 2\\}"
    assert boxed("\\boxed{1") is None
    column = "\\begin{pmatrix}1\\\\{2}\\end{pmatrix}"
    assert boxed(f"\\boxed{{{column}}}") == column
    for text in ("\\boxed{" * 100_000, "<answer>" * 100_000, "{" * 1_000_000, "```" * 300_000, "```" + " " * 1_000_000, *FENCES):
        for where in WHERE:
            extract(text, where)  # type: ignore[arg-type]
        from windtunnel.verify.code.fences import source_of

        source_of(text)


@given(st.text(alphabet="<answer>/\\boxed{}x \n"))
def test_extraction_never_fails(text: str) -> None:
    for found in (boxed(text), tagged(text, "answer")):
        assert found is None or found in text


@pytest.mark.parametrize(
    ("spec", "answer", "reason"),
    [
        ({"tags": ["think", "answer"]}, "<think>a</think> <answer>b</answer>", "accepted"),
        ({"tags": ["think", "answer"]}, "<answer>b</answer><think>a</think>", "tags"),
        ({"tags": ["think", "answer"]}, "<think>a</think>", "tags"),
        ({"tags": ["think", "answer"]}, "<think>a<answer>b</answer></think>", "tags"),
        ({"tags": ["think"]}, "<think>a</think><think>b</think>", "tags"),
        ({"tags": ["think"]}, "<think> </think>", "tags"),
        ({"tags": ["think"], "only_tags": True}, "<think>a</think>\n", "accepted"),
        ({"tags": ["think"], "only_tags": True}, "x<think>a</think>", "tags"),
        ({"boxed": True}, "\\boxed{1}", "accepted"),
        ({"boxed": True}, "\\boxed{}", "not-boxed"),
        ({"schema": {"type": "object", "required": ["a"]}}, '{"a": 1}', "accepted"),
        ({"schema": {"type": "object", "required": ["a"]}}, '{"b": 1}', "json"),
        ({"schema": {"type": "object"}}, "[" * 100_000, "json"),
        ({"tags": ["answer"], "schema": {"type": "integer"}}, "<answer>4</answer>", "accepted"),
        ({"tags": ["think"]}, "<think>\u200b\ufeff\u3164</think>", "tags"),
        ({"tags": ["think"]}, "<think>\u200bé\u200d</think>", "accepted"),
        ({"boxed": True}, "\\boxed{\u200b}", "not-boxed"),
        ({"boxed": True}, "\\boxed{\\, ~{}\\quad}", "not-boxed"),
        ({"boxed": True}, "\\boxed {1}", "accepted"),
        ({"boxed": True}, "\\boxed{\\frac{1}{2}}", "accepted"),
        ({"tags": ["think"], "only_tags": True}, "\ufeff<think>a</think>\u200b\n", "accepted"),
        ({"schema": {"type": "number"}}, "1e3", "accepted"),
        ({"schema": {"type": "number"}}, "NaN", "json"),
        ({"schema": {"type": "number"}}, "-Infinity", "json"),
        ({"schema": True}, '{"a": [1, {"b": 2}], "c": {"a": 1}}', "accepted"),
        ({"schema": True}, '{"a": 1, "a": 1}', "json"),
        ({"schema": {"type": "object"}}, '{"b": {"a": 1, "a": "x"}}', "json"),
        ({"schema": False}, "1", "json"),
    ],
)
def test_format(spec: dict[str, Any], answer: str, reason: str) -> None:
    assert FormatVerifier.of(spec).verify(answer).reason == reason


@pytest.mark.parametrize(
    "spec", [{}, {"tags": "x"}, {"tags": ["a", "a"]}, {"schema": {"pattern": "x"}}, {"schema": {"type": "x"}}, {"x": 1}]
)
def test_malformed_format_tasks(spec: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        FormatVerifier.of(spec)


# Keyword → values of a type that it does not take.
WRONG_VALUES: dict[str, list[Any]] = {
    "type": [5, {"a": 1}, [], [5], [["string"]], None, True, "text", ["string", "string"]],
    "properties": [5, [], None, {"a": 5}, {"a": {"type": 5}}],
    "required": [5, "abc", [5], None, {"a": 1}, ["a", "a"]],
    "additionalProperties": [5, "no", None, []],
    "items": [5, [{}], None],
    "enum": [5, "abc", {}, None, []],
    "anyOf": [5, {}, [], [5], None],
    "minimum": ["a", True, None, float("nan"), []],
    "maxLength": ["a", -1, 1.5, None, float("inf")],
    "title": [5, None],
}


@pytest.mark.parametrize("keyword", WRONG_VALUES)
def test_a_schema_is_checked_before_any_answer_and_the_key_is_named(keyword: str) -> None:
    for value in WRONG_VALUES[keyword]:
        for where, schema in (
            ("schema", {keyword: value}),
            ("schema.items", {"items": {keyword: value}}),
            ("schema.anyOf[1]", {"anyOf": [True, {keyword: value}]}),
        ):
            with pytest.raises(UserError) as error:
                FormatVerifier.of({"schema": schema})
            assert f"{where}.{keyword}" in error.value.message
            assert error.value.fix


def test_a_schema_without_end_and_flags_that_are_none_are_bad_input() -> None:
    deep: Any = {}
    for _ in range(500):
        deep = {"items": deep}
    with pytest.raises(UserError, match="nested"):
        FormatVerifier.of({"schema": deep})
    for key in ("boxed", "only_tags"):
        with pytest.raises(UserError, match=f"{key} is 'no'"):
            FormatVerifier.of({"tags": ["a"], key: "no"})


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer"}, [1, 2.0, -3], [1.5, True, "1", None]),
        ({"type": ["string", "null"]}, ["a", None], [1, []]),
        ({"type": "number", "minimum": 0, "maximum": 1}, [0, 0.5, 1], [-1, 2, "0"]),
        ({"enum": [1, "a"]}, [1, "a"], [True, "b"]),
        ({"const": 1}, [1, 1.0], [True, 2]),
        ({"const": [1, {"a": 0}]}, [[1.0, {"a": 0}]], [[True, {"a": 0}], [1, {"a": False}], [1], [1, {"b": 0}]]),
        ({"minimum": 10**400, "minItems": 10**400}, [10**400], [1]),
        ({"type": "array", "items": {"type": "string"}, "minItems": 1}, [["a"]], [[], [1], "a"]),
        ({"properties": {"a": {"type": "string"}}, "additionalProperties": False}, [{}, {"a": "b"}, 3], [{"a": 1}, {"b": 1}]),
        ({"anyOf": [{"type": "string", "maxLength": 2}, {"type": "null"}]}, ["ab", None], ["abc", 1]),
    ],
)
def test_schemas(schema: dict[str, Any], good: list[Any], bad: list[Any]) -> None:
    for value in good:
        assert violation(json.loads(json.dumps(value)), schema) == "", value
    for value in bad:
        assert violation(json.loads(json.dumps(value)), schema), value


pytest.importorskip("math_verify")


@pytest.fixture(scope="module")
def runner() -> Iterator[Any]:
    from windtunnel.verify.sandbox import Sandbox

    with Sandbox(preload=("windtunnel.verify.mathematics_child:warm_up",)) as sandbox:
        yield sandbox


@pytest.mark.parametrize(
    ("gold", "found", "reason"),
    [
        ("\\frac{1}{2}", "0.5", "accepted"),
        ("x^2-1", "(x-1)(x+1)", "accepted"),
        ("\\{1,2\\}", "\\{2,1\\}", "accepted"),
        ("12", "12\\text{ cm}", "accepted"),
        ("1000", "1,000", "accepted"),
        ("3", "x = 3", "accepted"),
        ("\\sqrt{2}", "1.414214", "accepted"),
        ("5", "\\[5\\]", "accepted"),
        ("5", "$5$.", "accepted"),
        ("11:00", "11:00", "accepted"),
        ("4", "2+2=4", "accepted"),
        ("3", "f(1) = \\sqrt{9} = 3", "accepted"),
        ("0.5", "50\\% = \\frac{1}{2}", "accepted"),
        ("\\frac{1}{3}", "\\frac{1}{3} \\approx 0.333", "accepted"),
        ("\\frac{\\pi}{6}", "30^\\circ = \\frac{\\pi}{6}", "accepted"),
        ("2", "S_{n=3} = 2", "accepted"),
        ("2", "3=2", "wrong-result"),
        ("2", "x = 3 = 2", "wrong-result"),
        ("2", "\\{3\\}\\ =\\ 2", "wrong-result"),
        ("10", "10 \\approx 11", "wrong-result"),
        ("11", "10 \\equiv 11", "wrong-result"),
        ("42", "41", "wrong-result"),
        ("42", "41, 42", "wrong-result"),
        ("42", "41 \\text{ or } 42", "wrong-result"),
        ("5", "\\pm 5", "wrong-result"),
        ("(1,2)", "(2,1)", "wrong-result"),
        ("[1,2)", "[1,2]", "wrong-result"),
        ("\\lambda^2", "\\lambda^2", "accepted"),
        ("2\\lambda", "\\lambda + \\lambda", "accepted"),
        ("\\text{important}", "\\text{important}", "accepted"),
        ("11/2", "1 1/2", "wrong-result"),
        ("12", "1 2", "wrong-result"),
        ("1 + x", "x+1", "accepted"),
        ("x=\\text{cat}", "x=\\text{dog}", "wrong-result"),
        ("\\{\\text{red}, 2\\}", "\\{\\text{blue}, 2\\}", "wrong-result"),
        ("\\{\\text{red}, 2\\}", "\\{ \\text{red},2 \\}", "accepted"),
        ("\\frac{\\text{a}}{2}", "\\frac{\\text{b}}{2}", "wrong-result"),
        ("3/2", "1 1/2", "accepted"),
        ("-\\frac{3}{2}", "-1 1/2", "accepted"),
        ("7/2", "3½", "accepted"),
        ("x^{10}", "x**10", "accepted"),
        ("3\\sqrt{2}", "3√2", "accepted"),
        ("x^{12}", "x¹²", "accepted"),
        ("[0,\\infty)", "[0,∞)", "accepted"),
        ("10\\,080", "10,\\!080", "accepted"),
        ("10", "10\\,080", "wrong-result"),
        ("\\frac{1}{3}", "0.\\overline{3}", "accepted"),
        ("1.2\\overline{3}", "\\frac{37}{30}", "accepted"),
        ("0.3", "0.\\overline{3}", "wrong-result"),
        ("10", "\\binom52", "accepted"),
        ("\\varnothing", "\\emptyset", "accepted"),
        ("5", "5\\,", "accepted"),
        ("\\frac{1 \\pm \\sqrt{5}}{2}", "\\frac{1-\\sqrt5}{2}, \\frac{1+\\sqrt5}{2}", "accepted"),
        ("\\frac{1 \\pm \\sqrt{5}}{2}", "\\frac{1+\\sqrt5}{2}", "wrong-result"),
        ("[-2,7]", "-2 \\le x \\le 7", "accepted"),
        ("[-2,7]", "-2 < x \\le 7", "wrong-result"),
        ("1500000", "1.5 \\text{ million}", "accepted"),
        ("12000", "12 thousand", "accepted"),
        ("12", "12 \\text{ thousand}", "wrong-result"),
        ("12\\text{ million}", "12 \\text{ million dollars}", "accepted"),
        ("5", "5 \\text{ (or 7)}", "wrong-result"),
        ("5", "5 \\text{, 6}", "wrong-result"),
        ("5", "5 \\text{ or seven}", "wrong-result"),
        ("5", "5 \\text{ (not 6)}", "wrong-result"),
        ("5", "5 \\text{ cm}^2", "accepted"),
        ("5", "5 \\text{ cm^2}", "accepted"),
        ("5", "5 \\text{ (mod 7)}", "accepted"),
        ("5,6", "5 \\text{ or } 6", "accepted"),
        ("101_2", "101_{2}", "accepted"),
        ("101_2", "101_3", "wrong-result"),
        ("101_2", "12_3", "accepted"),
        ("0.00000012", "0.00000013", "wrong-result"),
        ("0.00000012", "1.2 \\times 10^{-7}", "accepted"),
        ("1", "__import__('os').system('true')", "code"),
        ("1", "lambda: 1", "code"),
        ("1", "1" + "+1" * 2000, "too-long"),
    ],
)
def test_mathematics(runner: Any, gold: str, found: str, reason: str) -> None:
    from windtunnel.verify import second_opinion
    from windtunnel.verify.mathematics import MathVerifier

    verifier = MathVerifier.of({"answer": gold}, runner)
    assert verifier.verify(f"so \\boxed{{{found}}}").reason == reason
    if reason == "accepted":
        assert second_opinion(verifier).verify(f"so \\boxed{{{found}}}").accepted


def test_a_number_in_a_task_is_what_json_means_by_it(runner: Any) -> None:
    from windtunnel.verify.mathematics import MathVerifier

    for gold, found in ((1e-07, "0.0000001"), (1e22, "10^{22}"), (2.5e-3, "\\frac{1}{400}"), (42, "42.0"), (0.5, "1/2")):
        assert MathVerifier.of({"answer": gold}, runner).verify(f"\\boxed{{{found}}}").accepted, found
    assert not MathVerifier.of({"answer": 1e-07}, runner).verify("\\boxed{0.0000002}").accepted


def test_the_answer_after_hashes_counts(runner: Any) -> None:
    from windtunnel.verify.mathematics import MathVerifier

    solution = "#### Steps\nShe pays $9 * 2 = 18$.\n#### $1,018.00\n"
    assert MathVerifier.of({"answer": 1018, "where": "hashes"}, runner).verify(solution).accepted
    assert not MathVerifier.of({"answer": 18, "where": "hashes"}, runner).verify(solution).accepted
    assert ExactVerifier.of({"answer": "$1,018.00", "where": "hashes"}).verify(solution).accepted
    for lacking in ("1018", "####", "####\n"):
        assert ExactVerifier.of({"answer": "1018", "where": "hashes"}).verify(lacking).reason == "no-answer"


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ("18 eggs", "ok"),
        ("18 eggs per day.", "ok"),
        ("$18 a week", "ok"),
        ("1018 eggs", "wrong-result"),
        ("18 million", "wrong-result"),
        ("18 or 19", "wrong-result"),
        ("18 not", "wrong-result"),
    ],
)
def test_a_number_counts_whatever_is_counted(runner: Any, found: str, reason: str) -> None:
    from windtunnel.verify.mathematics import MathVerifier

    verdict = MathVerifier.of({"answer": 18, "where": "hashes"}, runner).verify(f"So there are 18.\n#### {found}")
    assert verdict.accepted is (reason == "ok"), verdict.message
    assert verdict.reason in ((reason, "not-parsed") if reason != "ok" else (verdict.reason,))


def test_hostile_mathematics_ends_and_costs_only_itself(runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from windtunnel.verify import mathematics

    monkeypatch.setattr(mathematics, "LIMITS", replace(mathematics.LIMITS, wall_seconds=1.0))
    verifier = mathematics.MathVerifier.of({"answer": "1"}, runner)
    for text in ("9^{9^{9^{9}}}", "10000000!", "((((((" * 50, "\\frac{" * 200, "\\int_0^1 e^{e^{x^x}} dx"):
        verdict = verifier.verify(f"\\boxed{{{text}}} \\boxed{{{text}}}" if "{" not in text else f"\\boxed{{{text}}}")
        assert not verdict.accepted
        assert not verdict.infrastructure
    assert verifier.verify("\\boxed{1}").accepted


@pytest.mark.parametrize("gold", ["\\frac{", "}{", "\\text{}", float("nan"), float("inf"), "1" * 3000])
def test_a_task_whose_own_answer_cannot_be_read_is_refused_before_any_answer(runner: Any, gold: Any) -> None:
    from windtunnel.verify.mathematics import MathVerifier

    with pytest.raises(UserError, match="'answer' is") as error:
        MathVerifier.of({"answer": gold}, runner)
    assert error.value.fix
    assert len(error.value.message) < 300


def test_a_right_expression_is_read_once(runner: Any) -> None:
    from windtunnel.verify.mathematics import MathVerifier
    from windtunnel.verify.sandbox import Outcome, SandboxJob

    read: list[str] = []

    class Counting:
        def run(self, job: SandboxJob) -> Outcome:
            read.append(job.entry)
            outcome: Outcome = runner.run(job)
            return outcome

    known: set[str] = set()
    for _ in range(3):
        MathVerifier.of({"answer": "\\sqrt{2}"}, Counting(), known=known)
        MathVerifier.of({"answer": "-12.5"}, Counting())
    assert len(read) == 1


def test_an_answer_does_not_leave_its_place(runner: Any) -> None:
    from windtunnel.verify.mathematics import MathVerifier

    for gold in ("5", "6", "5,6"):
        verifier = MathVerifier.of({"answer": gold, "where": "answer-tag"}, runner)
        assert verifier.verify("<answer>6}$ $\\boxed{5</answer>").reason == "not-parsed"
