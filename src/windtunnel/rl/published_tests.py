"""Tests as data sets for reinforcement learning keep them in a record, as the task of a judge of code."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from windtunnel.data import Prompt

_PROGRAM = ("stdin_stdout", "stdin", None)


def code_task(tests: Any, prompt: Prompt) -> Any:
    """Return the task that a prompt's tests are; what is of no known form comes back as it is, for the judge to refuse.

    tests: a task; a list of assertions (MBPP); HumanEval's check(candidate) beside the record's `entry_point`; a list of records
    with input and output (LiveCodeBench, rllm, SkyRL) or a table with `test_cases` (prime-rl, open-r1). JSON in a text is read.
    """
    if isinstance(tests, str):
        tests = _json(tests)
    if isinstance(tests, Mapping) and "test_cases" in tests and tests.get("language") in ("python", None):
        tests = tests["test_cases"]
    if isinstance(tests, str) and "assert" in tests:
        return _asserts(tests, prompt)
    if not isinstance(tests, list) or not tests:
        return tests
    if all(isinstance(one, str) for one in tests):
        return _asserts("\n".join(tests), prompt)
    if all(isinstance(one, Mapping) and {"input", "output"} <= set(one) for one in tests):
        return _records(tests)
    return {"cases": tests}


def _asserts(tests: str, prompt: Prompt) -> dict[str, Any]:
    name = prompt.data.get("entry_point")
    found: dict[str, Any] = {"asserts": tests}
    if name:
        found["entry_point"] = name
        # HumanEval's prompt is the beginning of the function, which an answer may only go on with.
        if isinstance(prompt.prompt, str) and f"def {name}(" in prompt.prompt:
            found["preface"] = prompt.prompt
    elif isinstance(setup := prompt.data.get("test_setup_code"), str) and setup:
        found["preface"] = setup
    return found


def _records(tests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the task of tests with input and output each: of a program, or of the function that they name."""
    kinds = {one.get("testtype", one.get("type")) for one in tests}
    if kinds <= {"functional"}:
        names = {(one.get("metadata") or {}).get("func_name") for one in tests} - {None}
        cases = [{"input": one["input"], "output": one["output"], "testtype": "functional"} for one in tests]
        return {"cases": cases, **({"entry_point": names.pop()} if len(names) == 1 else {})}
    names = {one.get("fn_name") for one in tests}
    if names == {None} and kinds <= set(_PROGRAM):
        return {"cases": [{"input": one["input"], "output": one["output"]} for one in tests]}
    if len(names) == 1 and names != {None}:
        inputs, outputs = ([_json(one[key]) for one in tests] for key in ("input", "output"))
        return {"fn_name": names.pop(), "inputs": inputs, "outputs": outputs}
    return {"cases": list(tests)}


def _json(value: Any) -> Any:
    """Read what may be JSON in a text; what is none stays as it is."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(value)
    return value
