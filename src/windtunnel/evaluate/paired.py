"""What one model has over another on the same cases: in loss, and in right answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .answers import Answered
from .bootstrap import cluster_sums, flip_signs, interval_of, number_clusters
from .match import Z95
from .scored import Scored


@dataclass(frozen=True)
class Paired:
    """What one model has over another on the same cases, with its 95 % interval. how: the interval's method."""

    difference: float
    low: float
    high: float
    how: str

    def to_json(self) -> dict[str, Any]:
        """Return all fields."""
        return {"difference": self.difference, "low": self.low, "high": self.high, "confidence": 0.95, "interval": self.how}


@dataclass(frozen=True)
class Gain(Paired):
    """In the share of right answers. better, worse: questions that only the one, only the other answers rightly. p: by `test`."""

    n: int = 0
    better: int = 0
    worse: int = 0
    p: float = 1.0
    test: str = "McNemar"

    def to_json(self) -> dict[str, Any]:
        """Return all fields."""
        counts = {"n": self.n, "better": self.better, "worse": self.worse}
        return super().to_json() | counts | {"p": self.p, "test": self.test}

    def __str__(self) -> str:
        low, high = f"{100 * self.low:+.1f}", f"{100 * self.high:+.1f}"
        return f"{100 * self.difference:+.1f} points (95 % {low} to {high}), p = {self.p:.2g}"


def loss_difference(mine: Scored, other: Scored) -> Paired:
    """Return mine minus the other's loss, with the interval of a bootstrap over sequences."""
    assert np.array_equal(mine.targets, other.targets)
    sums = np.stack([mine.nats - other.nats, mine.targets], -1)
    found = interval_of(sums, lambda drawn: drawn[..., 0] / drawn[..., 1])
    return Paired(found.value, found.low, found.high, "bootstrap over sequences")


def gain_over(mine: Answered, other: Answered, clusters: Sequence[str] | None = None, of: str = "dates") -> Gain | None:
    """Return mine minus the other's share of right answers, on questions of which both are judged; None where there is none.

    The interval is Bonett and Price's for paired shares (2012, Journal of Educational and Behavioral Statistics 37),
    the p value McNemar's exact one. Both take questions for independent.

    Args:
        mine: answers.
        other: the other's, to the same questions in the same order.
        clusters: what each question belongs to where they are not, such as its date: whole clusters are then drawn again,
            and the p value is that of flipping the signs of theirs.
        of: what clusters are, in words.
    """
    names = clusters or range(len(mine.answers))
    kept = [
        (name, a.right, b.right)
        for name, a, b in zip(names, mine.answers, other.answers, strict=True)
        # A question that one of the two failed to be judged on says nothing of their difference.
        if a.right is not None and b.right is not None
    ]
    n = len(kept)
    if not n:
        return None
    better, worse = (sum(pair[1:] == wanted for pair in kept) for wanted in ((True, False), (False, True)))
    if clusters is not None:
        numbers, count = number_clusters([name for name, _, _ in kept])
        each = np.array([(float(a) - float(b), 1.0) for _, a, b in kept])
        sums = cluster_sums(each, numbers, count)
        found = interval_of(sums, lambda drawn: drawn[..., 0] / drawn[..., 1])
        p = flip_signs(sums[:, 0])
        return Gain(found.value, found.low, found.high, f"bootstrap over {of}", n, better, worse, p, f"signs of {of} flipped")
    # Laplace's correction: one question is added to each side, so that no discordant pair does not mean no doubt.
    up, down = (better + 1) / (n + 2), (worse + 1) / (n + 2)
    half = Z95 * math.sqrt((up + down - (up - down) ** 2) / (n + 2))
    low, high = max(-1.0, up - down - half), min(1.0, up - down + half)
    return Gain((better - worse) / n, low, high, "Bonett-Price", n, better, worse, mcnemar(better, worse))


def mcnemar(better: int, worse: int) -> float:
    """Return the exact two-sided p value that as many or more of the discordant pairs fall on one side by chance."""
    n, few = better + worse, min(better, worse)
    # Exact, since there are often few discordant pairs.
    return min(1.0, 2 * sum(math.comb(n, k) for k in range(few + 1)) / 2**n)
