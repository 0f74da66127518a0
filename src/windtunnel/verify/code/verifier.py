"""The verifier of code."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from ..sandbox import Outcome, Runner, SandboxJob
from ..types import Verdict, accept, broken, refuse
from .cases import Call, Program
from .compare import matches, near, same_print
from .fences import source_of
from .task import CodeTask
from .values import NotPlain, encode

MOST_NAME = 100
MOST_SOURCE = 1 << 20
REASONS = {
    "timeout": ("timeout", "the code was too slow: it {detail}"),
    "memory": ("memory", "the code needs too much memory: it {detail}"),
    "output": ("too-much-output", "too much came out: {detail}"),
    "killed": ("crashed", "the process {detail}"),
    "exited": ("exited", "the code ended the process before the test was over: {detail}"),
    "raised": ("raised", "the code raised {detail}"),
}


@dataclass(frozen=True)
class CodeVerifier:
    """Judges Python code against hidden tests.

    The answer may be bare code or text with fenced code, of which the last block counts. Each test runs in a fresh child with
    that test's input alone; results come back in plain form and are compared here.
    """

    task: CodeTask
    runner: Runner

    def verify(self, answer: str) -> Verdict:
        """Judge one answer."""
        started = time.monotonic()
        if len(answer) > MOST_SOURCE:
            return refuse("syntax", "too-long", f"the answer has {len(answer):,} characters, at most {MOST_SOURCE:,}")
        # Of several blocks the one that defines it counts: what follows may show its use.
        called = next((case.function for case in self.task.cases if isinstance(case, Call)), "")
        source = source_of(answer, called.partition(".")[0].removesuffix("()"))
        if not source.strip():
            return refuse("syntax", "no-code", "the answer holds no code")
        if not _is_text(source):
            return refuse("syntax", "syntax", "the code does not parse: it has half of a surrogate pair")
        passed, first = 0, None
        for at, case in enumerate(self.task.cases):
            fault = self._test(at, case, source)
            if fault is None:
                passed += 1
                continue
            # Of the tests before it nothing is told either: a retry asks them again.
            if fault.infrastructure:
                return fault
            first = first or fault
            if not self.task.partial:
                break
        total = len(self.task.cases)
        times = {"total": time.monotonic() - started}
        if first is None:
            return accept("tests", f"all {total} tests pass", times=times, evidence={"passed": passed, "tests": total})
        evidence = {**first.evidence, "passed": passed, "tests": total}
        reward = passed / total if self.task.partial else 0.0
        return refuse(first.stage, first.reason, first.message, reward=reward, times=times, evidence=evidence)

    def _test(self, at: int, case: Call | Program, source: str) -> Verdict | None:
        """Return None when the test passes."""
        text = {"source": source, "preface": self.task.preface}
        if isinstance(case, Call):
            args = {"function": case.function, "args": encode(list(case.args)), "kwargs": encode(dict(case.kwargs))}
            args["around"] = encode([list(made) for made in case.around])
            outcome = self.runner.run(SandboxJob("windtunnel.verify.code.child:call", {**text, **args}, (), self.task.limits))
        else:
            message = {**text, "stdin": case.stdin}
            outcome = self.runner.run(SandboxJob("windtunnel.verify.code.child:program", message, (), self.task.limits))
        if outcome.status == "infrastructure":
            return broken("run", outcome.detail)
        where = f"test {at + 1} of {len(self.task.cases)}"
        # A program may end itself with os._exit(0), as one that is run by itself may.
        ended = isinstance(case, Program) and outcome.status == "exited" and outcome.exit_code == 0
        if not outcome.finished and not ended:
            return self._failed(outcome, where, case)
        if isinstance(case, Program):
            right, got = same_print(case.stdout, outcome.log, self.task.tolerance), outcome.log
        else:
            got = outcome.message.get("value", {})
            try:
                right = self._right(case, got)
            except (NotPlain, TypeError, ValueError, OverflowError, RecursionError) as error:
                return refuse("tests", "not-plain", f"{where}: the answer returned {error}")
        if right:
            return None
        return refuse("tests", "wrong-result", f"{where} fails: a wrong result{self._shown(case, got)}", evidence={"test": at})

    def _right(self, case: Call, got: Any) -> bool:
        """Return whether a value in plain form is what a call should return."""
        if case.close is not None:
            return near(case.expected, got, *case.close)
        expected = (case.expected, case.expected[0]) if case.listed else (case.expected,)
        right = any(matches(e, got, tolerance=self.task.tolerance, any_sequence=self.task.any_sequence) for e in expected)
        return right and (got is case.expected or not case.itself)  # in plain form these three are themselves

    def _failed(self, outcome: Outcome, where: str, case: Call | Program) -> Verdict:
        kind = str(outcome.message.get("type", ""))[:MOST_NAME]
        if kind == "NotPlain":
            return refuse("tests", "not-plain", f"{where}: the answer returned {outcome.detail.partition(': ')[2]}")
        if kind == "NoFunction" and isinstance(case, Call):
            return refuse("tests", "no-function", f"{where}: the answer defines no function {case.function}")
        # Only of the answer itself: code that it compiles later may raise the same.
        if outcome.phase == "load" and kind in ("SyntaxError", "IndentationError", "TabError"):
            return refuse("syntax", "syntax", f"the code does not parse: {outcome.detail}")
        reason, text = REASONS[outcome.status]
        if kind == "SystemExit":
            reason, text = "exited", "the code called exit: {detail}"
        stage = "run" if outcome.phase in ("", "load") else "tests"
        # The error's text may quote the hidden input.
        detail = outcome.detail if self.task.reveal or outcome.status != "raised" else kind
        return refuse(stage, reason, f"{where}: {text.format(detail=detail)}{self._shown(case, None)}")

    def _shown(self, case: Call | Program, got: Any) -> str:
        if not self.task.reveal:
            return ""
        given = case.stdin if isinstance(case, Program) else f"{case.function}{tuple(case.args)!r}"
        return f"; for {_short(given)} it gave {_short(got)}" if got is not None else f"; for {_short(given)}"


def _is_text(source: str) -> bool:
    try:
        source.encode()
    except UnicodeEncodeError:
        return False
    return True


def _short(value: Any) -> str:
    try:
        text = value if isinstance(value, str) else repr(value)
    except (ValueError, RecursionError):  # a huge number, or what a process nested by hand
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= 200 else text[:197] + "..."
