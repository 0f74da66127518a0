"""How well classes are told apart: accuracy, precision, recall, F1 and the confusion matrix, by scikit-learn, with intervals.

A prediction of None is an answer that could not be read. It is wrong, and stands in a column of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from .bootstrap import CONFIDENCE, FEW, Array, Interval, cluster_sums, interval_of, number_clusters
from .match import wilson

UNPARSABLE = "unparsable"
HOW = "bootstrap over dates"


@dataclass(frozen=True)
class ClassScore:
    """One class. support: how often it is the truth; predicted: how often it was said. NaN: nothing to divide by."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int
    predicted: int

    @property
    def note(self) -> str:
        """What is missing of it, if anything."""
        if not self.support:
            return "never the truth" + ("" if self.predicted else ", never predicted")
        return "" if self.predicted else "never predicted"

    def to_json(self) -> dict[str, Any]:
        """Return all fields, null for NaN, and the note."""
        scores = {name: _number(getattr(self, name)) for name in ("precision", "recall", "f1")}
        return {"label": self.label, **scores, "support": self.support, "predicted": self.predicted, "note": self.note}


@dataclass(frozen=True)
class Classification:
    """Predictions beside the truth.

    Attributes:
        labels: the classes, in their order from one end to the other.
        truth: (n,) number of the true class. predicted: (n,) of the predicted one; len(labels): none could be read.
        clusters: (n,) what moves together, as numbers from 0; count: of them.
    """

    labels: tuple[str, ...]
    truth: Array = field(repr=False)
    predicted: Array = field(repr=False)
    clusters: Array = field(repr=False)
    count: int

    @property
    def n(self) -> int:
        """Predictions."""
        return len(self.truth)

    @property
    def unparsable(self) -> int:
        """Answers that could not be read."""
        return int((self.predicted == len(self.labels)).sum())

    @cached_property
    def confusion(self) -> Array:
        """Return (K, K + 1) int64: rows the truth, columns what was predicted, the last one answers that could not be read."""
        from sklearn.metrics import confusion_matrix

        size = len(self.labels) + 1
        return np.asarray(confusion_matrix(self.truth, self.predicted, labels=range(size))[:-1])

    @cached_property
    def classes(self) -> tuple[ClassScore, ...]:
        """Every class, also those that never occur."""
        from sklearn.metrics import precision_recall_fscore_support

        numbers = range(len(self.labels))
        scores = precision_recall_fscore_support(self.truth, self.predicted, labels=numbers, zero_division=np.nan)
        said = self.confusion.sum(0)
        return tuple(
            ClassScore(label, float(p), float(r), float(f), int(s), int(said[i]))
            for i, (label, p, r, f, s) in enumerate(zip(self.labels, *scores, strict=True))
        )

    @property
    def occurring(self) -> list[int]:
        """Return numbers of the classes that are the truth somewhere; means over classes are over these."""
        return np.flatnonzero(self.confusion.sum(1)).tolist()

    @cached_property
    def macro(self) -> dict[str, float]:
        """Unweighted means of precision, recall and F1 over the classes that occur; what has nothing to divide by is 0."""
        from sklearn.metrics import precision_recall_fscore_support

        scores = precision_recall_fscore_support(
            self.truth, self.predicted, labels=self.occurring, average="macro", zero_division=0.0
        )
        return {name: float(value) for name, value in zip(("precision", "recall", "f1"), scores[:3], strict=True)}

    @cached_property
    def sums(self) -> Array:
        """Return (clusters, K, K + 1) confusion matrix of each cluster."""
        size = len(self.labels)
        cells = np.zeros((self.count, size, size + 1))
        np.add.at(cells, (self.clusters, self.truth, self.predicted), 1.0)
        return cells

    @cached_property
    def accuracy(self) -> Interval:
        """Share that is right, with its interval: Wilson's of as many answers as dates where all are right, or none."""
        found = interval_of(self.sums, accuracy_of)
        if found.value in (0.0, 1.0):  # every draw is alike, and says nothing of how sure that is
            return Interval(found.value, *wilson(self.count if found.value else 0, self.count))
        return found

    @cached_property
    def macro_f1(self) -> Interval:
        """Macro F1, with its interval."""
        found = interval_of(self.sums, lambda cells: macro_f1_of(cells, self.occurring))
        # The value is scikit-learn's; draws leave out classes that they lack, which it does not.
        return Interval(self.macro["f1"], found.low, found.high)

    @property
    def steps_off(self) -> float:
        """Mean distance of what could be read from the truth, in steps of the labels' order; NaN: nothing could be read."""
        read = self.predicted < len(self.labels)
        return float(np.abs(self.truth - self.predicted)[read].mean()) if read.any() else math.nan

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to know of the numbers."""
        found = [f"{score.label}: {score.note}, so it has no recall" for score in self.classes if not score.support]
        if self.count < FEW:
            dates = "one date" if self.count == 1 else f"{self.count} different dates"
            found.append(f"only {dates}: the intervals say little")
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        """Return stable keys."""
        return {
            "n": self.n,
            "accuracy": self.accuracy.to_json(),
            "macro_f1": self.macro_f1.to_json(),
            "macro_precision": self.macro["precision"],
            "macro_recall": self.macro["recall"],
            "macro_over": [self.labels[i] for i in self.occurring],
            "unparsable": self.unparsable,
            "steps_off": _number(self.steps_off),
            "interval": {"confidence": CONFIDENCE, "how": HOW, "clusters": self.count},
            "classes": [score.to_json() for score in self.classes],
            "confusion": {"rows": "truth", "columns": [*self.labels, UNPARSABLE], "counts": self.confusion.tolist()},
        }


def classify(
    truth: Sequence[str], predicted: Sequence[str | None], clusters: Sequence[Any], labels: Sequence[str]
) -> Classification:
    """Return predictions beside the truth; there must be some. Of `predicted` None could not be read.

    `clusters` are what each belongs to and moves with, such as its date; `labels` are in their order.
    """
    assert truth, "a classification of nothing"
    number = {label: i for i, label in enumerate(labels)}
    numbers, count = number_clusters(clusters)
    said = np.array([len(labels) if label is None else number[label] for label in predicted])
    return Classification(tuple(labels), np.array([number[label] for label in truth]), said, numbers, count)


def accuracy_of(cells: Array) -> Array:
    """Return the accuracy of (..., K, K + 1) confusion matrices."""
    return np.asarray(np.trace(cells[..., :-1], axis1=-2, axis2=-1) / cells.sum((-2, -1)))


def macro_f1_of(cells: Array, classes: Sequence[int]) -> Array:
    """Return the mean F1 over `classes` of (draws, K, K + 1) confusion matrices, without those of which a draw has nothing."""
    right = np.diagonal(cells[..., :-1], axis1=-2, axis2=-1)[..., classes]
    both = (cells.sum(-1) + cells[..., :-1].sum(-2))[..., classes]
    there = both > 0
    # F1 is 2 TP / (2 TP + FP + FN): the sums of a row and a column of the matrix.
    f1 = np.where(there, 2 * right / np.where(there, both, 1.0), 0.0)
    return np.asarray(f1.sum(-1) / np.maximum(there.sum(-1), 1))


def accuracy_over(mine: Classification, other: Classification) -> Interval:
    """Return mine minus the other's accuracy on the same items, with the interval of drawing clusters for both together."""
    assert np.array_equal(mine.truth, other.truth)
    assert np.array_equal(mine.clusters, other.clusters)
    right = [np.asarray(one.truth == one.predicted, dtype=float) for one in (mine, other)]
    each = np.stack([right[0] - right[1], np.ones(mine.n)], -1)
    return interval_of(cluster_sums(each, mine.clusters, mine.count), lambda sums: sums[..., 0] / sums[..., 1])


def macro_f1_over(mine: Classification, other: Classification) -> Interval:
    """Return mine minus the other's macro F1 on the same items, likewise."""
    assert np.array_equal(mine.truth, other.truth)
    both, classes = np.stack([mine.sums, other.sums], 1), mine.occurring
    found = interval_of(both, lambda cells: macro_f1_of(cells[:, 0], classes) - macro_f1_of(cells[:, 1], classes))
    return Interval(mine.macro["f1"] - other.macro["f1"], found.low, found.high)


@dataclass(frozen=True)
class Baselines:
    """What can be had without looking at what is asked.

    Attributes:
        majority: always the class that is most frequent in training, as predictions. ahead: accuracy over it, paired.
        label: that class.
        prior: expected accuracy of drawing from the training distribution.
        share: of each class in training.
    """

    label: str
    majority: Classification
    ahead: Interval
    prior: float
    share: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """Return stable keys."""
        own = {"label": self.label, "accuracy": self.majority.accuracy.value, "macro_f1": self.majority.macro_f1.value}
        return {"majority": own, "ahead_of_majority": self.ahead.to_json(), "prior": self.prior, "training": self.share}


def baselines(found: Classification, training: dict[str, int]) -> Baselines:
    """Return the baselines of predictions; training: how often each class occurs there, one at least."""
    total = sum(training.values())
    share = {label: training.get(label, 0) / total for label in found.labels}
    # Of training, not of what is tested: the test's own majority cannot be known before.
    label = max(found.labels, key=lambda name: share[name])
    constant = np.full(found.n, found.labels.index(label))
    majority = Classification(found.labels, found.truth, constant, found.clusters, found.count)
    occurs = np.bincount(found.truth, minlength=len(found.labels)) / found.n
    prior = float(sum(share[name] * occurs[i] for i, name in enumerate(found.labels)))
    return Baselines(label, majority, accuracy_over(found, majority), prior, share)


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
