"""Whether probabilities are what they say: of predictions made with 70 %, seven of ten should be right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .bootstrap import Array

BINS = 10  # as most papers have it; the error depends on their number


@dataclass(frozen=True)
class Bin:
    """Predictions of similar confidence. confidence, right: their mean confidence and the share that is right; n: of them."""

    low: float
    high: float
    n: int
    confidence: float
    right: float


@dataclass(frozen=True)
class Calibration:
    """Probabilities beside what was true.

    Attributes:
        n: predictions with probabilities. without: those without.
        ece: expected calibration error of the likeliest class, ten bins of equal width (Guo et al. 2017, arXiv:1706.04599).
        brier: mean squared distance to the truth summed over the classes, 0 to 2 (Brier 1950).
        prior_brier: the same of always saying the shares of the classes in training.
        log_loss: nats.
        bins: those with predictions in them.
    """

    n: int
    without: int
    ece: float
    brier: float
    prior_brier: float
    log_loss: float
    bins: tuple[Bin, ...]

    @property
    def skill(self) -> float:
        """Share by which the Brier score is below the one of the training shares; 0: no better, 1: perfect."""
        return 1 - self.brier / self.prior_brier if self.prior_brier else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return stable keys."""
        return asdict(self) | {"brier_skill": self.skill, "bins": [asdict(each) for each in self.bins]}


def calibrate(
    truth: Sequence[str], probabilities: Sequence[dict[str, float] | None], prior: dict[str, float]
) -> Calibration | None:
    """Return how good probabilities are; None where there are none.

    Args:
        truth: classes.
        probabilities: of each class, by label; None where there are none.
        prior: share of each class in training, for comparison; its order is that of the labels.
    """
    from sklearn.metrics import brier_score_loss, log_loss

    labels = list(prior)
    pairs = [(labels.index(label), row) for label, row in zip(truth, probabilities, strict=True) if row is not None]
    if not pairs:
        return None
    rows = np.array([[row[label] for label in labels] for _, row in pairs], dtype=np.float64)
    # Rounded in a file of predictions, and scikit-learn takes only what adds up to 1.
    rows /= rows.sum(1, keepdims=True)
    numbers = np.array([number for number, _ in pairs])
    same = np.tile(np.array(list(prior.values())), (len(rows), 1))
    # From 0 to 2, as Brier had it: scikit-learn would halve it for two classes alone.
    scores = [float(brier_score_loss(numbers, each, labels=range(len(labels)), scale_by_half=False)) for each in (rows, same)]
    confidence, right = rows.max(1), rows.argmax(1) == numbers
    bins = reliability(confidence, right)
    ece = sum(each.n * abs(each.right - each.confidence) for each in bins) / len(rows)
    nats = float(log_loss(numbers, rows, labels=range(len(labels))))
    return Calibration(len(rows), len(truth) - len(rows), ece, scores[0], scores[1], nats, bins)


def reliability(confidence: Array, right: Array) -> tuple[Bin, ...]:
    """Return bins of equal width, each open below and closed above, that have (n,) predictions in them."""
    number = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    found = []
    for i in np.unique(number).tolist():
        inside = number == i
        mean, share = float(confidence[inside].mean()), float(right[inside].mean())
        found.append(Bin(i / BINS, (i + 1) / BINS, int(inside.sum()), mean, share))
    return tuple(found)
