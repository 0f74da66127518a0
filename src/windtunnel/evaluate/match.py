"""Share of held-out problems answered exactly, with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from windtunnel.data import Problem
from windtunnel.generate import GenerationJob, Generator

Z95 = 1.959963984540054  # standard deviations of a normal distribution that hold 95 %
ANSWER_TOKENS = 32  # more than a sum has: an answer that goes on is wrong and need not be followed
STOPS = ("L", "\n")  # what ends a sum in the arithmetic corpus, and what a model may write in its place
SHOWN = 5


@dataclass(frozen=True)
class ExactMatch:
    """right of n; low and high bound the share with 95 % confidence. `wrong` are the first few that failed."""

    right: int
    n: int
    low: float
    high: float
    wrong: tuple[dict[str, str], ...] = ()

    @property
    def share(self) -> float:
        """Return right / n."""
        return self.right / self.n

    def to_json(self) -> dict[str, Any]:
        """Return all fields and the share."""
        bounds = {"low": self.low, "high": self.high, "confidence": 0.95, "interval": "Wilson"}
        return {"share": self.share, "right": self.right, "n": self.n, **bounds, "wrong": list(self.wrong)}

    def __str__(self) -> str:
        return f"{self.right} of {self.n} ({self.share:.1%}, 95 % interval {self.low:.1%} to {self.high:.1%})"


def wilson(right: int, n: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson 1927): sound also for few problems and for shares near 0 and 1."""
    if not n:
        return 0.0, 1.0
    share, z2 = right / n, Z95**2
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    low = 0.0 if right == 0 else max(0.0, middle - half)
    high = 1.0 if right == n else min(1.0, middle + half)
    return low, high


def answer_tokens(problems: Sequence[Problem]) -> int:
    """Return how many tokens an answer may have."""
    return max(ANSWER_TOKENS, max(len(p.answer) for p in problems) + 1)


def exact_match(generator: Generator, problems: Sequence[Problem]) -> ExactMatch:
    """Answer each problem greedily until its end: of sums 'L' or a new line, of other documents the end of the document.

    Right is the exact answer, then the end.
    """
    assert problems, "exact match of no problems"
    most = answer_tokens(problems)
    made = generator.generate(
        [
            GenerationJob(
                tuple(generator.text.encode(p.prompt)), most, temperature=0, stop=STOPS if p.end else (), include_stop=True
            )
            for p in problems
        ]
    )
    wrong = [
        {"prompt": p.prompt, "expected": p.answer, "got": done.text}
        for p, done in zip(problems, made, strict=True)
        if not p.matches(done.text)  # the end counts too: 462L is not 46
    ]
    right = len(problems) - len(wrong)
    return ExactMatch(right, len(problems), *wilson(right, len(problems)), tuple(wrong[:SHOWN]))
