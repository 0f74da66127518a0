"""Generated sums: 'H12+34B46L' and a newline, over 17 characters; exact, and document i depends only on (seed, i).

A document is 'H' expression 'B' answer 'L' newline. An expression is an optional '-', a number, and one or
more of '+' or '-' with a number; numbers and answers are written without needless zeros ('0.5', '12', '-3.25').
Problems to answer are taken from such documents.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from windtunnel.recipe import ArithmeticCorpus, UserError

from .documents import GOLDEN, Array, DocumentBatch, mix

if TYPE_CHECKING:
    from .prepared import PreparedData


SOURCE = "arithmetic corpus"
CHUNK = 1 << 16  # documents made at once; only memory depends on it, since each depends on its own number alone
_EXPRESSION = re.compile(r"-?\d+(?:\.\d+)?(?:[+-]\d+(?:\.\d+)?)*")


def solve(expression: str) -> str:
    """Return the exact answer to an expression such as '12.5-3+4', written as in the corpus. Raises ValueError if it is none."""
    if not _EXPRESSION.fullmatch(expression):
        raise ValueError(f"{expression!r} is not a sum such as '12+34' or '-1.5-2'")
    with localcontext() as context:
        context.prec = 60  # more digits than any sum here has, so that nothing is rounded
        total = sum((Decimal(term) for term in re.findall(r"[+-]?[\d.]+", expression)), Decimal(0))
        text = format(total, "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text in ("-0", "") else text


def chunks(corpus: ArithmeticCorpus) -> Iterator[tuple[int, int]]:
    """Ranges of documents that `generate` makes at once."""
    for first in range(0, corpus.documents, CHUNK):
        yield first, min(CHUNK, corpus.documents - first)


def generate(corpus: ArithmeticCorpus, seed: int, first: int, count: int) -> DocumentBatch:
    """Documents first .. first + count - 1 of the corpus of this seed."""
    draw = _Draws(seed, first, count)
    width, decimals = corpus.digits, corpus.decimals
    terms = draw.below(2, corpus.terms + 1)
    total = np.zeros(count, dtype=np.int64)
    grid = _Grid(count)
    grid.fill("H")
    for t in range(corpus.terms):
        used = t < terms
        minus = draw.below(0, 4) == 0 if t == 0 else draw.below(0, 2) == 0
        value = _term(draw, width, decimals)
        value[~used] = 0
        if t == 0:
            minus &= value != 0  # no '-0'
        total += np.where(minus, -value, value)
        grid.where(minus, "-", "" if t == 0 else "+", used)
        grid.number(value, width, decimals, used)
    grid.fill("B")
    grid.where(total < 0, "-", "", np.ones(count, dtype=bool))
    grid.number(np.abs(total), width + 1, decimals, np.ones(count, dtype=bool))
    grid.fill("L")
    grid.fill("\n")
    return grid.documents()


def _term(draw: _Draws, width: int, decimals: int) -> Array:
    """Draw numbers times 10**decimals: uniform in their count of digits, then in value."""
    powers = 10 ** np.arange(width + 1, dtype=np.int64)
    size = draw.below(1, width + 1)
    low = np.where(size == 1, 0, powers[size - 1])
    whole = draw.between(low, powers[size])
    if not decimals:
        return whole
    places = draw.below(0, decimals + 1)
    fraction = draw.between(np.zeros_like(places), (10 ** np.arange(decimals + 1, dtype=np.int64))[places])
    return whole * 10**decimals + fraction * (10 ** np.arange(decimals, -1, -1, dtype=np.int64))[places]


class _Draws:
    """Counter-based random numbers (splitmix64): the k-th draw of document i is a function of (seed, i, k) alone."""

    def __init__(self, seed: int, first: int, count: int) -> None:
        start = mix(np.array([seed & (2**64 - 1)], dtype=np.uint64) + GOLDEN)
        self._state = mix(start + np.arange(first, first + count, dtype=np.uint64) * GOLDEN)

    def _uniform(self) -> Array:
        self._state = self._state + GOLDEN
        # The upper 53 bits, as many as a float holds, so that every value below 1 is equally likely.
        return (mix(self._state) >> np.uint64(11)) * 2.0**-53

    def below(self, low: int, high: int) -> Array:
        """Return (n,) int64, uniform in [low, high)."""
        return (self._uniform() * (high - low)).astype(np.int64) + low

    def between(self, low: Array, high: Array) -> Array:
        """Return (n,) int64, uniform in [low, high) of each document; ranges below 2**53."""
        return (self._uniform() * (high - low)).astype(np.int64) + low


class _Grid:
    """Text of many documents, a column of characters at a time; 0 stands for no character."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._columns: list[Array] = []

    def fill(self, character: str) -> None:
        """Add the same character to every document."""
        self._columns.append(np.full(self._count, ord(character), dtype=np.uint8))

    def where(self, condition: Array, yes: str, no: str, used: Array) -> None:
        """Add one of two characters, or none, to the documents where it is used."""
        column = np.where(condition, ord(yes) if yes else 0, ord(no) if no else 0).astype(np.uint8)
        self._columns.append(column * used)

    def number(self, scaled: Array, width: int, decimals: int, used: Array) -> None:
        """Add numbers times 10**decimals, without leading zeros or trailing ones behind the point."""
        # Division of 32-bit integers takes half the time.
        rest: Any = scaled.astype(np.uint32 if 10 ** (width + decimals) < 2**32 else np.uint64)
        ten = rest.dtype.type(10)
        shown = np.zeros(self._count, dtype=bool)
        tail: list[Array] = []
        for _ in range(decimals):
            quotient = rest // ten
            digit = (rest - quotient * ten).astype(np.uint8)
            shown = shown | (digit != 0)
            tail.append((digit + np.uint8(48)) * (shown & used))
            rest = quotient
        if decimals:
            tail.append((shown & used).astype(np.uint8) * np.uint8(ord(".")))
        for place in range(width):
            quotient = rest // ten
            digit = (rest - quotient * ten).astype(np.uint8)
            tail.append((digit + np.uint8(48)) * (used if place == 0 else used & (rest != 0)))
            rest = quotient
        self._columns.extend(reversed(tail))

    def documents(self) -> DocumentBatch:
        """Return the documents; the key is a hash over the padded columns, which the text alone determines."""
        padded = -(-len(self._columns) // 8) * 8
        columns = np.zeros((padded, self._count), dtype=np.uint8)
        np.stack(self._columns, out=columns[: len(self._columns)])
        table = np.ascontiguousarray(columns.T)
        keys = np.zeros(self._count, dtype=np.uint64)
        for word in table.view(np.uint64).T:
            keys = mix((keys ^ word) + GOLDEN)
        present = table != 0
        starts = np.zeros(self._count + 1, dtype=np.int64)
        np.cumsum(np.count_nonzero(present, axis=1), out=starts[1:])
        return DocumentBatch(SOURCE, table[present], starts, keys)


_DOCUMENT = re.compile(r"(H-?\d+(?:\.\d+)?(?:[+-]\d+(?:\.\d+)?)*B)(-?\d+(?:\.\d+)?)L\n?")


@dataclass(frozen=True)
class Problem:
    """prompt: 'H12+34B', to be put behind BOS; answer: '46', after which the model writes `end`: 'L'; '': the document ends."""

    prompt: str
    answer: str
    end: str = "L"

    def matches(self, completion: str) -> bool:
        """Return whether a completion is exactly the answer and its end 'L'; what follows 'L' does not count."""
        if not self.end:
            return completion == self.answer
        answer, end, _ = completion.partition(self.end)
        return bool(end) and answer == self.answer


def parse_problem(text: str) -> Problem:
    """Read a document: of H12+34B46L the prompt is H12+34B and the answer 46. Raises ValueError when it is no such text."""
    match = _DOCUMENT.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not a sum such as 'H12+34B46L'")
    return Problem(match[1], match[2])


def problem_at(separator: str, text: str) -> Problem | None:
    """Return a document as a prompt, which ends with the separator, and the answer after it; None where it has not both.

    The last separator counts: '1=1; 2=' is a prompt too.
    """
    prompt, found, answer = text.rstrip("\r\n").rpartition(separator)
    return Problem(prompt + separator, answer, "") if found and answer else None


def questions(corpus: ArithmeticCorpus, seed: int) -> Iterator[tuple[str, Problem]]:
    """Yield the corpus's sums, each as a question to a model that chats and as a problem: ('What is 12+34? ...', Problem)."""
    for chunk in chunks(corpus):
        for text in generate(corpus, seed, *chunk).documents():
            problem = parse_problem(text)
            yield f"What is {problem.prompt[1:-1]}? Answer with the number alone.", problem


def held_out_problems(prepared: PreparedData, n: int, seed: int, answer_after: str | None = None) -> list[Problem]:
    """Up to n different problems of the validation split; the same ones for the same seed.

    Equal documents are all in one split, so none of these was trained on. With `answer_after` documents are those of any
    text; those without it, or without anything after it, are no problems.

    Raises:
        UserError: the corpus is not arithmetic, and nothing says where answers begin.
    """
    if prepared.corpus != "arithmetic" and answer_after is None:
        raise UserError(f"data.corpus.kind: exact match needs the arithmetic corpus, this one is {prepared.corpus!r}")
    tokens = prepared.validation.array
    starts = np.flatnonzero(tokens == prepared.tokenizer.bos)
    ends = np.append(starts[1:], len(tokens))
    key = np.array([seed & (2**64 - 1), 0], dtype=np.uint64)
    # Raw output of Philox stays the same over NumPy's versions, so that runs are measured on the same problems for good.
    order = np.argsort(np.random.Philox(key=key).random_raw(len(starts)), kind="stable")
    chosen: dict[str, Problem] = {}
    for i in order:
        if len(chosen) >= n:
            break
        text = prepared.tokenizer.decode(tokens[starts[i] + 1 : ends[i]])
        found = parse_problem(text) if answer_after is None else problem_at(answer_after, text)
        if found is not None:
            chosen.setdefault(text, found)
    return list(chosen.values())
