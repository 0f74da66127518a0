"""What a code task is: hidden tests that call a function, or feed a program, and what must come out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from windtunnel.recipe import UserError

from ..reading import shown
from ..sandbox import Limits, MiB
from .values import NotPlain, encode

# Of one test.
LEAST_SECONDS, MOST_SECONDS = 0.01, 3600.0
LEAST_MIB, MOST_MIB = 1.0, 1 << 20
FIX_PATH = "name a function: f, Solution().f or Solution.f"


def is_path(path: str) -> bool:
    """Whether this can name a function of an answer: identifiers with dots between them, of which some are called without
    arguments."""
    return all(part.removesuffix("()").isidentifier() for part in path.split("."))


@dataclass(frozen=True)
class Call:
    """function(*args, **kwargs) must return expected: plain values (numbers, text, lists, tuples, sets, dicts, bytes).

    function may be dotted: 'Solution().solve' or 'Solution.solve' make an instance first. truth: what it returns need only be
    as true or false as expected says. itself: only True, False or None itself will do, and no number that equals it.
    """

    function: str
    args: Sequence[Any]
    expected: Any
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    truth: bool = False
    itself: bool = False


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
            raise UserError(f"code task: unknown key {shown(unknown[0])}", f"known keys: {', '.join(sorted(known))}")
        cases: list[Call | Program] = [_case(at, case) for at, case in enumerate(_list(spec.get("cases", []), "cases"))]
        if "asserts" in spec:
            calls = cases_of_asserts(_text(spec["asserts"], "asserts"))
            for at, call in enumerate(calls):
                _check_plain(call, f"code task: asserts[{at}]")
            cases += calls
        if not cases:
            raise UserError("code task: no tests", "give 'cases' or 'asserts'")
        default = CodeTask(())
        seconds = _number(spec.get("seconds", default.limits.wall_seconds), "seconds", LEAST_SECONDS, MOST_SECONDS)
        memory = _number(spec.get("memory_mib", default.limits.memory_bytes / MiB), "memory_mib", LEAST_MIB, MOST_MIB)
        return CodeTask(
            cases,
            tolerance=_number(spec.get("tolerance", 0.0), "tolerance", 0, 1e9),
            any_sequence=_flag(spec.get("any_sequence", "asserts" not in spec), "any_sequence"),  # JSON has no tuples
            partial=_flag(spec.get("partial", False), "partial"),
            reveal=_flag(spec.get("reveal", False), "reveal"),
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
                function = _text(case["function"], f"cases[{at}].function")
                if not is_path(function):
                    raise UserError(f"{where}.function is {shown(function)}", FIX_PATH)
                call = Call(function, args, case["expected"], kwargs)
                _check_plain(call, where)
                return call
    raise UserError(f"{where} is not a test", "a test has function, args, expected (and kwargs), or stdin and stdout")


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"code task: {key} is not text", "give a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UserError(f"code task: {key} has half of a surrogate pair", "give text that can be written as UTF-8") from None
    return value


def _list(value: Any, key: str) -> list[Any]:
    if not isinstance(value, list):
        raise UserError(f"code task: {key} is not a list", "give a list")
    return value


def _number(value: Any, key: str, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise UserError(f"code task: {key} is {shown(value)}", f"give a number from {least:g} to {most:g}")
    return float(value)


def _flag(value: Any, key: str) -> bool:
    if not isinstance(value, bool):
        raise UserError(f"code task: {key} is {shown(value)}", "give true or false")
    return value


def _check_plain(call: Call, where: str) -> None:
    """Refuse what cannot be sent to a candidate, or compared with what it returns."""
    for key, value in (("args", list(call.args)), ("kwargs", dict(call.kwargs)), ("expected", call.expected)):
        try:
            encode(value)
        except NotPlain as error:
            raise UserError(f"{where}: {key} is {error}", "give plain values, less deeply nested") from None
