"""Tests as public data sets write them: pairs of inputs and outputs (APPS, TACO), records with a type (LiveCodeBench)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from windtunnel.recipe import UserError

from .cases import Call, Program, a_list, a_text

TYPES = ("stdin", "functional")


def cases_of_pairs(inputs: Any, outputs: Any, function: str) -> list[Call | Program]:
    """Return the tests by which inputs[n] gives outputs[n].

    That is a program's text, which may be a list of lines; or with a function its arguments and its value, which may be the only
    one of a list.

    Raises:
        UserError: something is missing or of another type; says where.
    """
    inputs, outputs = a_list(inputs, "inputs"), a_list(outputs, "outputs")
    if len(inputs) != len(outputs):
        raise UserError(f"code task: {len(inputs)} inputs and {len(outputs)} outputs", "give as many outputs as inputs")
    cases: list[Call | Program] = []
    for at, (given, expected) in enumerate(zip(inputs, outputs, strict=True)):
        if function:
            # APPS and TACO write one value either way.
            listed = isinstance(expected, list) and len(expected) == 1
            cases.append(Call(function, a_list(given, f"inputs[{at}]"), expected, listed=listed))
        else:
            cases.append(Program(_lines(given, f"inputs[{at}]"), _lines(expected, f"outputs[{at}]")))
    return cases


def is_record(case: Mapping[str, Any]) -> bool:
    """Return whether a test is written as LiveCodeBench writes it."""
    return {"input", "output"} <= set(case) <= {"input", "output", "testtype"}


def case_of_record(case: Mapping[str, Any], function: str, key: str) -> Call | Program:
    """Return a test of LiveCodeBench's: input and output are text; where a function is tested one JSON value a line.

    Raises:
        UserError: something is missing or of another type; says where.
    """
    kind = case.get("testtype", "stdin")
    if kind not in TYPES:
        raise UserError(
            f"code task: {key}.testtype is not {' or '.join(TYPES)}", "stdin for a program, functional for a function"
        )
    given, expected = a_text(case["input"], f"{key}.input"), a_text(case["output"], f"{key}.output")
    if kind == "stdin":
        return Program(given, expected)
    if not function:
        raise UserError(f"code task: {key} tests a function without a name", "name it: entry_point: f")
    # One argument a line.
    lines = [line for line in given.split("\n") if line.strip()]
    return Call(function, [_json(line, f"{key}.input") for line in lines], _json(expected, f"{key}.output"))


def _lines(value: Any, key: str) -> str:
    if isinstance(value, list):
        return "\n".join(a_text(line, f"{key}[{at}]") for at, line in enumerate(value))
    return a_text(value, key)


def _json(text: str, key: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"code task: {key} is not JSON: {error}", "one JSON value a line") from None
