"""What predicted actions are worth: scores, baselines, calibration and latency, as JSON and as tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from windtunnel.recipe import ACTIONS

from .bootstrap import Interval
from .calibration import Calibration, calibrate
from .classification import Baselines, Classification, baselines, classify
from .predictions import Prediction

if TYPE_CHECKING:
    from .tuned import Untuned

SHORT = {"STRONG_BUY": "S.BUY", "STRONG_SELL": "S.SELL"}
CLASS_COLUMNS = ("class", "precision", "recall", "F1", "of", "said", "")
FEW_PROBABILITIES = 100  # ten a bin


@dataclass(frozen=True)
class Latency:
    """Seconds a prediction, each beside others."""

    mean: float
    p50: float
    p95: float

    def to_json(self) -> dict[str, float]:
        """Return all fields."""
        return {"mean": self.mean, "p50": self.p50, "p95": self.p95}

    def __str__(self) -> str:
        return f"{_seconds(self.p50)}, {_seconds(self.p95)}"


@dataclass(frozen=True)
class ActionReport:
    """What a model's actions are worth.

    Attributes:
        scores: accuracy, F1 and the confusion matrix, with intervals over dates. base: what no model is needed for.
        calibration: None: no answer names an action.
        cut: answers that were longer than they may be.
    """

    scores: Classification
    base: Baselines
    calibration: Calibration | None
    latency: Latency
    cut: int

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to know of the numbers."""
        found = list(self.scores.warnings)
        if self.calibration is not None and self.calibration.n < FEW_PROBABILITIES:
            found.append(f"calibration of {self.calibration.n} predictions: its error is mostly chance")
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        """Return stable keys."""
        calibration = None if self.calibration is None else self.calibration.to_json()
        return {
            **self.scores.to_json(),
            "baselines": self.base.to_json(),
            "calibration": calibration,
            "latency_s": self.latency.to_json(),
            "cut": self.cut,
            "warnings": list(self.warnings),
        }


def report_actions(made: Sequence[Prediction], training: dict[str, int]) -> ActionReport:
    """Return what predictions are worth; training: how often each action occurs there."""
    truth = [prediction.action for prediction in made]
    scores = classify(truth, [p.predicted for p in made], [p.as_of_date for p in made], ACTIONS)
    base = baselines(scores, training)
    calibration = calibrate(truth, [p.probabilities for p in made], base.share)
    return ActionReport(scores, base, calibration, latency_of(made), sum(p.cut for p in made))


def latency_of(made: Sequence[Prediction]) -> Latency:
    """Return how long predictions took; there must be some."""
    seconds = np.array([prediction.latency_s for prediction in made])
    # The mean hides the slow ones that users wait for.
    p50, p95 = np.percentile(seconds, [50, 95])
    return Latency(float(seconds.mean()), float(p50), float(p95))


# Tables


def action_rows(mine: ActionReport, untuned: Untuned | None = None) -> list[list[str]]:
    """Return rows (name, this model, the untuned one, the difference with its interval) of both models' actions."""
    other = None if untuned is None else untuned.actions

    def each(name: str, value: Any, difference: str = "") -> list[str]:
        return [name, value(mine), "-" if other is None else value(other), difference]

    gain = None if untuned is None else untuned.gain
    better = "" if gain is None else _difference(gain.difference, gain.low, gain.high, 100, 1)
    told = "" if gain is None else f"p = {gain.p:.2g}"
    change = None if untuned is None else untuned.macro_f1
    f1 = "" if change is None else _difference(change.value, change.low, change.high, 1, 2)
    return [
        each("theses, dates", lambda a: f"{a.scores.n:,}, {a.scores.count:,}"),
        each("accuracy", lambda a: f"{a.scores.accuracy.value:.1%}", better),
        each("  95 %, by dates", lambda a: _ends(a.scores.accuracy), told),
        each("macro F1", lambda a: f"{a.scores.macro_f1.value:.3f}", f1),
        each("  95 %, by dates", lambda a: _ends(a.scores.macro_f1, percent=False)),
        each("above majority", lambda a: f"{100 * a.base.ahead.value:+.1f}"),
        each("  95 %, by dates", lambda a: _ends(a.base.ahead, signed=True)),
        each("unparsable, cut", lambda a: f"{a.scores.unparsable:,}, {a.cut:,}"),
        each("mean steps off", lambda a: _or_dash(a.scores.steps_off, ".2f")),
        each("Brier score", lambda a: "-" if a.calibration is None else f"{a.calibration.brier:.3f}"),
        each("calibration error", lambda a: "-" if a.calibration is None else f"{a.calibration.ece:.1%}"),
        each("latency p50, p95", lambda a: str(a.latency)),
    ]


def _difference(value: float, low: float, high: float, scale: float, digits: int) -> str:
    first, *ends = (f"{scale * number:+.{digits}f}" for number in (value, low, high))
    return f"{first} ({ends[0]} to {ends[1]})" if math.isfinite(low) else first


def baseline_rows(base: Baselines) -> list[list[str]]:
    """Return rows (baseline, accuracy, macro F1) of what no model is needed for."""
    own = base.majority
    return [
        [f"majority of training, {base.label}", f"{own.accuracy.value:.1%}", f"{own.macro_f1.value:.3f}"],
        ["drawing from training's shares", f"{base.prior:.1%}", "-"],
    ]


def class_rows(scores: Classification) -> list[list[str]]:
    """Return a row of CLASS_COLUMNS for each class."""
    return [
        [
            c.label,
            *(_or_dash(value, ".3f") for value in (c.precision, c.recall, c.f1)),
            f"{c.support:,}",
            f"{c.predicted:,}",
            c.note,
        ]
        for c in scores.classes
    ]


def confusion_columns(scores: Classification) -> list[str]:
    """Return the headings of `confusion_rows`."""
    return ["truth \\ said", *(SHORT.get(label, label) for label in scores.labels), "none"]


def confusion_rows(scores: Classification) -> list[list[str]]:
    """Return a row for each true class: how often each class was said, and how often none could be read."""
    return [[SHORT.get(label, label), *map(str, row)] for label, row in zip(scores.labels, scores.confusion, strict=True)]


def prediction_columns() -> list[str]:
    """Return the headings of `prediction_rows`."""
    return ["ticker", "as of", "action", *(SHORT.get(action, action) for action in ACTIONS), "took"]


def prediction_rows(made: Sequence[Prediction]) -> list[list[str]]:
    """Return a row for each prediction: its action, the probability of each in percent, and how long it took."""
    return [
        [
            one.ticker, one.as_of_date, SHORT.get(one.predicted or "", one.predicted or "none"),
            *("-" if one.probabilities is None else f"{one.probabilities[action]:.0%}" for action in ACTIONS),
            _seconds(one.latency_s),
        ]
        for one in made
    ]  # fmt: skip


def _ends(interval: Interval, *, percent: bool = True, signed: bool = False) -> str:
    if not math.isfinite(interval.low):
        return "one date only"
    if signed:
        return f"{100 * interval.low:+.1f} to {100 * interval.high:+.1f}"
    return f"{interval.low:.1%} to {interval.high:.1%}" if percent else f"{interval.low:.3f} to {interval.high:.3f}"


def _or_dash(value: float, how: str) -> str:
    return format(value, how) if math.isfinite(value) else "-"


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 0.1 else f"{1000 * value:.1f} ms"
