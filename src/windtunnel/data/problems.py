"""Sums to answer: prompts and exact answers taken from arithmetic documents."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from windtunnel.recipe import UserError

if TYPE_CHECKING:
    from .prepared import PreparedData

_DOCUMENT = re.compile(r"(H-?\d+(?:\.\d+)?(?:[+-]\d+(?:\.\d+)?)*B)(-?\d+(?:\.\d+)?)L\n?")


@dataclass(frozen=True)
class Problem:
    """prompt: 'H12+34B', to be put behind BOS; answer: '46', after which the model writes 'L'."""

    prompt: str
    answer: str

    def matches(self, completion: str) -> bool:
        """Whether a completion is exactly the answer and its end 'L'; what follows 'L' does not count."""
        answer, end, _ = completion.partition("L")
        return bool(end) and answer == self.answer


def parse_problem(text: str) -> Problem:
    """'H12+34B46L\\n' -> Problem('H12+34B', '46'). Raises ValueError when the text is no such document."""
    match = _DOCUMENT.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not a sum such as 'H12+34B46L'")
    return Problem(match[1], match[2])


def held_out_problems(prepared: PreparedData, n: int, seed: int) -> list[Problem]:
    """Up to n different problems of the validation split; the same ones for the same seed.

    Equal documents are all in one split, so none of these was trained on.

    Raises:
        UserError: the corpus is not arithmetic.
    """
    if prepared.corpus != "arithmetic":
        raise UserError(f"data.corpus.kind: exact match needs the arithmetic corpus, this one is {prepared.corpus!r}")
    tokens = prepared.validation.array
    starts = np.flatnonzero(tokens == prepared.tokenizer.bos)
    ends = np.append(starts[1:], len(tokens))
    key = np.array([seed & (2**64 - 1), 0], dtype=np.uint64)
    order = np.argsort(np.random.Philox(key=key).random_raw(len(starts)), kind="stable")
    chosen: dict[str, Problem] = {}
    for i in order:
        if len(chosen) >= n:
            break
        text = prepared.tokenizer.decode(tokens[starts[i] + 1 : ends[i]])
        chosen.setdefault(text, parse_problem(text))
    return list(chosen.values())
