"""What a code task is: hidden tests and how their results are compared, read from plain JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from windtunnel.recipe import UserError

from ..reading import flag_of, only_known, shown
from ..sandbox import Limits, MiB
from ..sandbox.channel import MOST_JSON
from .asserts import cases_of_asserts
from .cases import FIX_PATH, Call, Program, a_list, a_text, is_path
from .forms import case_of_record, cases_of_pairs, is_record
from .values import NotPlain, encode

# Of one test.
LEAST_SECONDS, MOST_SECONDS = 0.01, 3600.0
LEAST_MIB, MOST_MIB = 1.0, 1 << 20
MOST_THREADS = 64  # concurrent.futures takes up to 32
MOST_EXPECTED = MOST_JSON - 4096  # the answer sends its value in a message of that length
KEYS = {
    "cases", "asserts", "inputs", "outputs", "entry_point", "fn_name", "tolerance", "any_sequence", "partial", "reveal",
    "preface", "seconds", "memory_mib",
}  # fmt: skip


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
        default_factory=lambda: Limits(5, 5, 512 * MiB, threads=MOST_THREADS, result_bytes=4 * MiB, log_bytes=MiB)
    )

    @staticmethod
    def of(spec: Mapping[str, Any]) -> CodeTask:
        """Read a task from plain JSON: {'cases': [CASE, ...], 'tolerance': ..., ...}.

        A CASE is {'function', 'args', 'expected'} or {'stdin', 'stdout'}. 'asserts' may hold lines such as 'assert f(1) == 2' in
        place of cases, 'inputs' and 'outputs' what data sets have.

        Raises:
            UserError: a key is missing, unknown or of another type.
        """
        only_known(spec, KEYS, "code")
        function = _function(spec)
        cases = [_case(at, case, function) for at, case in enumerate(a_list(spec.get("cases", []), "cases"))]
        if "inputs" in spec or "outputs" in spec:
            cases += cases_of_pairs(spec.get("inputs"), spec.get("outputs"), function)
        if "asserts" in spec:
            cases += cases_of_asserts(a_text(spec["asserts"], "asserts"), function)
        if not cases:
            raise UserError("code task: no tests", "give 'cases', 'asserts', or 'inputs' and 'outputs'")
        for at, case in enumerate(cases):
            _check(case, f"code task: test {at + 1}")
        default = CodeTask(())
        seconds = _number(spec.get("seconds", default.limits.wall_seconds), "seconds", LEAST_SECONDS, MOST_SECONDS)
        memory = _number(spec.get("memory_mib", default.limits.memory_bytes / MiB), "memory_mib", LEAST_MIB, MOST_MIB)
        return CodeTask(
            cases,
            tolerance=_number(spec.get("tolerance", 0.0), "tolerance", 0, 1e9),
            any_sequence=flag_of(spec, "any_sequence", "code", "asserts" not in spec),  # JSON has no tuples
            partial=flag_of(spec, "partial", "code"),
            reveal=flag_of(spec, "reveal", "code"),
            preface=a_text(spec.get("preface", ""), "preface"),
            limits=replace(
                default.limits,
                wall_seconds=seconds,
                cpu_seconds=seconds,
                memory_bytes=int(memory * MiB),
                log_bytes=MiB + 4 * max((len(case.stdout) for case in cases if isinstance(case, Program)), default=0),
            ),
        )


def _function(spec: Mapping[str, Any]) -> str:
    """Return the function that tests without a name of their own call, or ''."""
    if spec.get("entry_point") and spec.get("fn_name"):
        raise UserError("code task: entry_point and fn_name name the function twice", "give one of them")
    key = "entry_point" if spec.get("entry_point") else "fn_name"
    name = a_text(spec.get(key) or "", key)
    if name and not is_path(name):
        raise UserError(f"code task: {key} is {shown(name)}", FIX_PATH)
    return name


def _case(at: int, case: Any, function: str) -> Call | Program:
    where = f"code task: cases[{at}]"
    if isinstance(case, Mapping):
        if set(case) == {"stdin", "stdout"}:
            return Program(a_text(case["stdin"], f"cases[{at}].stdin"), a_text(case["stdout"], f"cases[{at}].stdout"))
        if is_record(case):
            return case_of_record(case, function, f"cases[{at}]")
        if {"args", "expected"} <= set(case) <= {"function", "args", "expected", "kwargs"} and (function or "function" in case):
            args = a_list(case["args"], f"cases[{at}].args")
            kwargs = case.get("kwargs", {})
            if isinstance(kwargs, Mapping):
                name = a_text(case.get("function", function), f"cases[{at}].function")
                if not is_path(name):
                    raise UserError(f"{where}.function is {shown(name)}", FIX_PATH)
                return Call(name, args, case["expected"], kwargs)
    raise UserError(f"{where} is not a test", "a test has function, args, expected (and kwargs), or stdin and stdout")


def _number(value: Any, key: str, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise UserError(f"code task: {key} is {shown(value)}", f"give a number from {least:g} to {most:g}")
    return float(value)


def _check(case: Call | Program, where: str) -> None:
    """Refuse what cannot be sent to a candidate, or compared with what it returns."""
    if isinstance(case, Program):
        return
    for key, value in (("args", list(case.args)), ("kwargs", dict(case.kwargs)), ("expected", case.expected)):
        try:
            form = encode(value)
        except NotPlain as error:
            raise UserError(f"{where}: {key} is {error}", "give plain values, less deeply nested") from None
    # No answer could return it.
    if (size := len(json.dumps(form))) > MOST_EXPECTED:
        raise UserError(f"{where}: expected has {size:,} bytes as JSON, at most {MOST_EXPECTED:,}", "test with a smaller input")
