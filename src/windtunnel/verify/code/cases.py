"""Hidden tests: they call a function, or feed a program, and say what must come out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from windtunnel.recipe import UserError

FIX_PATH = "name a function: f, Solution().f or Solution.f"


def is_path(path: str) -> bool:
    """Return whether this can name a function of an answer: identifiers with dots between them.

    Some of them may be called without arguments.
    """
    return all(part.removesuffix("()").isidentifier() for part in path.split("."))


@dataclass(frozen=True)
class Call:
    """function(*args, **kwargs) must return expected: plain values (numbers, text, lists, tuples, sets, dicts, bytes).

    function may be dotted: 'Solution().solve' or 'Solution.solve' make an instance first; a bare name may be a method of class
    Solution. itself: only True, False or None itself will do, and no number that equals it. around: what is made of the value
    before it is compared, the inmost first, each a builtin's name and its further arguments: (('round', 2),). close: how far a
    number may be from the expected one, relatively and absolutely, in place of the task's tolerance. listed: the expected value
    may also be the only one of a list, as some data sets write it.
    """

    function: str
    args: Sequence[Any]
    expected: Any
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    itself: bool = False
    around: Sequence[Sequence[Any]] = ()
    close: tuple[float, float] | None = None
    listed: bool = False


@dataclass(frozen=True)
class Program:
    """The answer, run as a program with this standard input, must print this."""

    stdin: str
    stdout: str


def a_text(value: Any, key: str) -> str:
    """Return a value of a task that has to be text. Raises UserError where it is none, or cannot be written as UTF-8."""
    if not isinstance(value, str):
        raise UserError(f"code task: {key} is not text", "give a string")
    try:
        # Half of a surrogate pair is in no file that a child could read.
        value.encode()
    except UnicodeEncodeError:
        raise UserError(f"code task: {key} has half of a surrogate pair", "give text that can be written as UTF-8") from None
    return value


def a_list(value: Any, key: str) -> list[Any]:
    """Return a value of a task that has to be a list. Raises UserError where it is none."""
    if not isinstance(value, list):
        raise UserError(f"code task: {key} is not a list", "give a list")
    return value
