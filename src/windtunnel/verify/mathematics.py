r"""Mathematics: is an expression equal to the right one, whatever it looks like. math-verify judges, inside the sandbox.

Only one part of the answer counts (the last \boxed{...} unless told otherwise), so that an answer which lists many guesses does
not pass because one of them is right.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from windtunnel.recipe import UserError

from .extract import Where, extract, where_of
from .mathematics_text import readable, same_base, says_more, without_unit
from .reading import only_known, shown
from .sandbox import Limits, MiB, Runner, SandboxJob
from .types import Verdict, accept, broken, refuse

CHILD = "windtunnel.verify.mathematics_child"
# By work, not by the clock on the wall: on a busy machine the same takes several times as long.
LIMITS = Limits(wall_seconds=60, cpu_seconds=5, idle_seconds=20, memory_bytes=512 * MiB, result_bytes=64 << 10)
MOST_EXPRESSION = 2000
# An expression is text, and its parser evaluates some of it: nothing in it may look like code.
CODE = re.compile(r"__|`|(?<![A-Za-z\\])(?:lambda|import|importlib|eval|exec|getattr)(?![A-Za-z])")
NUMBER = re.compile(r"-?\d{1,300}(?:\.\d{1,300})?")
MOST_KNOWN = 100_000
ENDS = re.compile(r"(?:\\[,;:! ]|[.,\s])+$")


@dataclass(frozen=True)
class MathVerifier:
    """Accepts an expression that equals the right one.

    Attributes:
        gold: the right expression, as LaTeX or plain.
        where: which part of the answer counts.
        digits: decimals to which numbers are compared when they are not exact.
    """

    gold: str
    runner: Runner
    where: Where = "boxed"
    digits: int = 6

    @staticmethod
    def of(spec: Mapping[str, Any], runner: Runner, known: set[str] | None = None) -> MathVerifier:
        r"""Read a verifier from plain JSON: {'answer': '\\frac{1}{2}', 'where': 'boxed', 'digits': 6}.

        runner: carries out what math-verify does. known: right expressions that were read already, to which this one is added;
        reading one takes a child.

        Raises:
            UserError: a key is missing, unknown or of another type, the right expression is none, or math-verify is not
                installed.
        """
        from importlib.util import find_spec

        if find_spec("math_verify") is None:
            raise UserError("mathematics is judged by math-verify, which is not installed", "pip install 'windtunnel[verify]'")
        only_known(spec, ("answer", "where", "digits"), "math")
        gold, digits = spec.get("answer"), spec.get("digits", 6)
        if isinstance(gold, bool) or not isinstance(gold, str | int | float) or not _is_some(gold):
            raise UserError("math task: 'answer' is not an expression", "for example: answer: '\\frac{1}{2}'")
        where = where_of(spec, "math", "boxed")
        if isinstance(digits, bool) or not isinstance(digits, int) or not 1 <= digits <= 15:
            raise UserError(f"math task: digits is {shown(digits)}", "a whole number from 1 to 15")
        known = set() if known is None else known
        text = format(Decimal(repr(gold)), "f") if isinstance(gold, float) else str(gold)  # 1e-07 is 1 · e - 7 to mathematics
        if text not in known:
            _check_gold(text, runner)
            known.difference_update(known if len(known) >= MOST_KNOWN else ())
            known.add(text)
        return MathVerifier(text, runner, where, digits)

    def verify(self, answer: str) -> Verdict:
        """Judge one answer."""
        started = time.monotonic()
        read = self.read(answer)
        if isinstance(read, Verdict):
            return replace(read, times={"total": time.monotonic() - started})
        gold, found = read
        evidence = {"found": (extract(answer, self.where) or "")[:200]}
        message = {"gold": gold, "found": found, "digits": self.digits}
        outcome = self.runner.run(SandboxJob(f"{CHILD}:compare", message, (), LIMITS))
        times = {"total": time.monotonic() - started}
        if outcome.status == "infrastructure":
            return broken("compare", outcome.detail, times=times)
        if not outcome.finished:
            slow = outcome.status in ("timeout", "memory")
            reason = outcome.status if slow else "not-parsed"
            return refuse(
                "compare", reason, f"the expression cannot be compared: {outcome.detail}", times=times, evidence=evidence
            )
        if outcome.message.get("gold") is not True:
            return broken("compare", f"the task's own answer {self.gold[:80]!r} is no expression", times=times)
        if outcome.message.get("differ") is True:
            text = "the answer equates numbers that differ; give one number, or an equation whose sides agree"
            return refuse("compare", "wrong-result", text, times=times, evidence=evidence)
        if outcome.message.get("equal") is True:
            return accept("compare", "the expression equals the right one", times=times)
        if outcome.message.get("parsed") is not True:
            return refuse("compare", "not-parsed", "the answer is no single expression", times=times, evidence=evidence)
        return refuse("compare", "wrong-result", "the expression is another one", times=times, evidence=evidence)

    def read(self, answer: str) -> Verdict | tuple[str, str]:
        """Return the right expression and the answer's as their parser takes them; a verdict where that can be told before.

        It can where there is no expression, where both are the same text, and where a parser should not see the answer's.
        """
        found = extract(answer, self.where)
        if not found:
            return refuse("extract", "no-answer", f"the answer holds no {self.where.replace('-', ' ')} expression")
        evidence = {"found": found[:200]}
        if len(found) > MOST_EXPRESSION:
            return refuse("extract", "too-long", f"the expression has {len(found):,} characters, at most {MOST_EXPRESSION:,}")
        gold, found = _bare(self.gold), _bare(found)
        if NUMBER.fullmatch(gold):  # only then are words behind a number no part of the answer
            found = without_unit(found)
        if _squeezed(gold) == _squeezed(found):
            return accept("compare", "the expression is the right one")
        # Before the parser sees it, which evaluates some of what it is given.
        if CODE.search(found):
            return refuse("extract", "code", "the expression looks like code, not mathematics", evidence=evidence)
        if not _is_whole(found):
            return refuse("compare", "not-parsed", "the expression closes or leaves open a brace", evidence=evidence)
        # Numbers to a base are compared here: the parser does not know them.
        same = same_base(found, gold)
        if same:
            return accept("compare", "the number is the right one")
        if same is False or says_more(found, gold):
            return refuse("compare", "wrong-result", "the expression is another one, or says more than one", evidence=evidence)
        return readable(gold), readable(found)


def _is_some(gold: str | float) -> bool:
    return math.isfinite(gold) if isinstance(gold, float) else isinstance(gold, int) or bool(gold.strip())


def _check_gold(gold: str, runner: Runner) -> None:
    """Refuse a task whose own answer is no expression, or takes too long. Where a worker fails, a verdict will say so."""
    if NUMBER.fullmatch(gold):
        return
    given, fix = f"math task: 'answer' is {gold[:80]!r}", "give an expression in LaTeX or plain, such as '\\frac{1}{2}'"
    if len(gold) > MOST_EXPRESSION:
        raise UserError(f"{given}... with {len(gold):,} characters, at most {MOST_EXPRESSION:,}", fix)
    if not _is_whole(_bare(gold)):
        raise UserError(f"{given}, which closes or leaves open a brace", fix)
    outcome = runner.run(SandboxJob(f"{CHILD}:readable", {"gold": readable(_bare(gold))}, (), LIMITS))
    if outcome.status == "infrastructure":
        return
    if not outcome.finished:
        raise UserError(f"{given}, which cannot be read: {outcome.detail}", fix)
    if outcome.message.get("gold") is not True:
        raise UserError(f"{given}, which is no expression", fix)


def _is_whole(text: str) -> bool:
    """Return whether each brace that groups is closed, and none that was not opened: what is compared is put into braces."""
    depth, escaped = 0, False
    for sign in text:
        depth += {"{": 1, "}": -1}.get(sign, 0) if not escaped else 0
        if depth < 0:
            return False
        escaped = sign == "\\" and not escaped
    return depth == 0


def _squeezed(text: str) -> str:
    """Return the text without blanks, except between digits: 1 1/2 is not 11/2."""
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text)


def _bare(text: str) -> str:
    r"""Return an expression without what only sets it off from text: $...$, \(...\), \[...\], a full stop or space at the end."""
    text = text.strip()
    for first, last in (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")):
        if len(text) > len(first + last) and text.startswith(first) and text.endswith(last):
            text = text[len(first) : -len(last)].strip()
    return ENDS.sub("", text) or text
