"""What a code task is: hidden tests that call a function, or feed a program, and what must come out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from windtunnel.recipe import UserError

from ..sandbox import Limits, MiB


@dataclass(frozen=True)
class Call:
    """function(*args, **kwargs) must return expected: plain values (numbers, text, lists, tuples, sets, dicts, bytes).

    function may be dotted: 'Solution().solve' or 'Solution.solve' make an instance first. truth: what it returns need only be
    as true or false as expected says.
    """

    function: str
    args: Sequence[Any]
    expected: Any
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    truth: bool = False


@dataclass(frozen=True)
class Program:
    """The answer, run as a program with this standard input, must print this."""

    stdin: str
    stdout: str


@dataclass(frozen=True)
class CodeTask:
    """Hidden tests and how their results are compared.

    tolerance: numbers may differ by this much, relatively or absolutely; 0 is exact. any_sequence: a tuple may stand for a list.
    partial: the reward is the share of tests passed; otherwise all or nothing. reveal: the message to the model shows the
    failed test's input and what came out; never what was expected of hidden tests otherwise. preface: code that comes before
    the answer (imports).
    """

    cases: Sequence[Call | Program]
    tolerance: float = 0.0
    any_sequence: bool = False
    partial: bool = False
    reveal: bool = False
    preface: str = ""
    limits: Limits = field(
        default_factory=lambda: Limits(wall_seconds=5, cpu_seconds=5, memory_bytes=512 * MiB, result_bytes=4 * MiB, log_bytes=MiB)
    )

    @staticmethod
    def of(spec: Mapping[str, Any]) -> CodeTask:
        """From plain JSON: {'cases': [{'function', 'args', 'expected'} or {'stdin', 'stdout'}, ...], 'tolerance': ..., ...};
        'asserts' may hold lines such as 'assert f(1) == 2' in place of cases.

        Raises:
            UserError: a key is missing, unknown or of another type.
        """
        from .asserts import cases_of_asserts

        known = {"cases", "asserts", "tolerance", "any_sequence", "partial", "reveal", "preface", "seconds", "memory_mib"}
        if unknown := sorted(set(spec) - known):
            raise UserError(f"code task: unknown key {unknown[0]!r}", f"known keys: {', '.join(sorted(known))}")
        cases: list[Call | Program] = [_case(at, case) for at, case in enumerate(_list(spec.get("cases", []), "cases"))]
        if "asserts" in spec:
            cases += cases_of_asserts(_text(spec["asserts"], "asserts"))
        if not cases:
            raise UserError("code task: no tests", "give 'cases' or 'asserts'")
        default = CodeTask(())
        seconds = _number(spec.get("seconds", default.limits.wall_seconds), "seconds")
        memory = _number(spec.get("memory_mib", default.limits.memory_bytes / MiB), "memory_mib")
        return CodeTask(
            cases,
            tolerance=_number(spec.get("tolerance", 0.0), "tolerance"),
            any_sequence=bool(spec.get("any_sequence", "asserts" not in spec)),  # JSON has no tuples
            partial=bool(spec.get("partial", False)),
            reveal=bool(spec.get("reveal", False)),
            preface=_text(spec.get("preface", ""), "preface"),
            limits=Limits(seconds, seconds, int(memory * MiB), result_bytes=4 * MiB, log_bytes=MiB),
        )


def _case(at: int, case: Any) -> Call | Program:
    where = f"code task: cases[{at}]"
    if isinstance(case, Mapping):
        if set(case) == {"stdin", "stdout"}:
            return Program(_text(case["stdin"], f"cases[{at}].stdin"), _text(case["stdout"], f"cases[{at}].stdout"))
        if {"function", "args", "expected"} <= set(case) <= {"function", "args", "expected", "kwargs"}:
            args = _list(case["args"], f"cases[{at}].args")
            kwargs = case.get("kwargs", {})
            if isinstance(kwargs, Mapping):
                return Call(_text(case["function"], f"cases[{at}].function"), args, case["expected"], kwargs)
    raise UserError(f"{where} is not a test", "a test has function, args, expected (and kwargs), or stdin and stdout")


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"code task: {key} is not text", "give a string")
    return value


def _list(value: Any, key: str) -> list[Any]:
    if not isinstance(value, list):
        raise UserError(f"code task: {key} is not a list", "give a list")
    return value


def _number(value: Any, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise UserError(f"code task: {key} is {value!r}", "give a number of at least 0")
    return float(value)
