"""Intervals by drawing whole clusters again: what happened on one day, or in one document, moves together.

Drawing single predictions would take 500 theses of 20 days for 500 independent ones, and its intervals would be several
times too narrow (Cameron, Gelbach and Miller 2008, Review of Economics and Statistics 90).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
DRAWS = 2000  # the interval's ends then vary by a fiftieth of its width
DRAW_SEED = 107  # fixed: the same answers have the same interval
FLIPS = 10_000  # choices of signs at most
CONFIDENCE = 0.95
FEW = 10  # with fewer clusters an interval says little, however it is made


@dataclass(frozen=True)
class Interval:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def sign(self) -> int:
        """1 or -1 where zero lies outside, else 0."""
        return 1 if self.low > 0 else -1 if self.high < 0 else 0

    def to_json(self) -> dict[str, float]:
        """Return all fields."""
        return {"value": self.value, "low": self.low, "high": self.high}


def number_clusters(names: Sequence[Any]) -> tuple[Array, int]:
    """Return the cluster of each item as a number from 0, (n,) int64, and how many clusters there are."""
    _, numbers = np.unique(np.array([str(name) for name in names]), return_inverse=True)
    return numbers.reshape(-1), int(numbers.max()) + 1 if len(numbers) else 0


def cluster_sums(values: Array, clusters: Array, count: int) -> Array:
    """Return (count, ...) sums of (n, ...) values over each cluster."""
    sums = np.zeros((count, *values.shape[1:]))
    np.add.at(sums, clusters, values)
    return sums


def draw_clusters(count: int, draws: int = DRAWS, seed: int = DRAW_SEED) -> Array:
    """Return (draws, count) how often each cluster is drawn, the same for the same seed and count."""
    return np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=draws).astype(np.float64)


def interval_of(sums: Array, statistic: Callable[[Array], Array], *, small: bool = True) -> Interval:
    """Return a statistic of sums over clusters, with the percentile interval of drawing clusters again.

    Args:
        sums: (clusters, ...) what the statistic needs, summed over each cluster.
        statistic: of (draws, ...) sums over all clusters, (draws,).
        small: widen the interval as Student's t is wider than the normal distribution, for few clusters ("expanded
            percentile", Hesterberg 2015, The American Statistician 69).
    """
    count = len(sums)
    value = float(statistic(sums.sum(0, keepdims=True))[0])
    if count < 2:
        return Interval(value, math.nan, math.nan)
    # Sums suffice, so that a draw is a product of matrices and not a loop over items.
    drawn = statistic(np.tensordot(draw_clusters(count), sums, axes=1))
    # A draw may hold nothing to divide by, such as no answer that is judged.
    drawn = drawn[np.isfinite(drawn)]
    if not len(drawn):
        return Interval(value, math.nan, math.nan)
    outside = _expanded(count) if small else (1 - CONFIDENCE) / 2
    low, high = np.quantile(drawn, [outside, 1 - outside])
    return Interval(value, float(low), float(high))


def flip_signs(differences: Array) -> float:
    """Return the two-sided p value that clusters' differences add up to as much by chance, as if each had either sign.

    Of few clusters every choice of signs is counted, of more a sample of them (Good 2005, Permutation, Parametric and
    Bootstrap Tests of Hypotheses).
    """
    moved = differences[differences != 0]
    if 2 ** len(moved) <= FLIPS:
        signs = 1.0 - 2.0 * (np.arange(2 ** len(moved))[:, None] >> np.arange(len(moved)) & 1)
        # Sums of the same numbers in another order differ in their last bits, and have to count as equal.
        return float((np.abs(signs @ moved) >= abs(moved.sum()) - 1e-9).mean())
    signs = 1.0 - 2.0 * np.random.default_rng(DRAW_SEED).integers(0, 2, (FLIPS, len(moved)))
    return float((1 + (np.abs(signs @ moved) >= abs(moved.sum()) - 1e-9).sum()) / (1 + FLIPS))


def _expanded(count: int) -> float:
    """Return the share to be left out on each side: as if the draws were spread by t and by n - 1 in the place of n."""
    from scipy.stats import t  # takes a moment to import

    widened = math.sqrt(count / (count - 1)) * float(t.ppf((1 + CONFIDENCE) / 2, count - 1))
    return NormalDist().cdf(-widened)
