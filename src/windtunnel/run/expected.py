"""What was expected of a run, beside what came of it.

The ranges are those that the manifest has held since the run began (of a job of several stages, since the first one's),
whatever the recipe says by now.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from windtunnel.recipe import TrainingStage, load_recipe

from .budget import load_spent
from .folder import RunFolder

EVALUATION = "evaluation.json"
"""What `windtunnel evaluate` writes into a run's folder of its best checkpoint."""
PERCENT = ("accuracy", "gain")


@dataclass(frozen=True)
class Expected:
    """One expectation and what was measured.

    Attributes:
        name: its key in the recipe. low, high: the range; None: open on that side.
        value: what came of it; None: not measured. source: where that is from.
    """

    name: str
    low: float | None
    high: float | None
    value: float | None
    source: str

    @property
    def met(self) -> bool | None:
        """Whether the value is in the range, its ends included; None where there is no value."""
        if self.value is None:
            return None
        return (self.low is None or self.value >= self.low) and (self.high is None or self.value <= self.high)

    def to_json(self) -> dict[str, Any]:
        """Return all fields and `met`."""
        return asdict(self) | {"met": self.met}

    def row(self) -> list[str]:
        """Return name, range, measured value, whether it is met, and where the value is from."""
        if self.low is None or self.high is None:
            limit = f"at least {self._text(self.low)}" if self.high is None else f"at most {self._text(self.high)}"
        else:
            limit = f"{self._text(self.low)} to {self._text(self.high)}"
        measured = "not measured" if self.value is None else self._text(self.value)
        met = "-" if self.met is None else "yes" if self.met else "NO"
        return [self.name.replace("_", " "), limit, measured, met, self.source]

    def _text(self, value: float | None) -> str:
        assert value is not None
        if self.name in PERCENT:
            return f"{100 * value:.1f} %"
        if self.name == "hours":
            return f"{value:.3g} h" if value >= 1 else f"{60 * value:.3g} min"
        return f"${value:,.2f}" if self.name == "dollars" else f"{value:.4g}"


def compare_expected(run: RunFolder) -> tuple[Expected, ...]:
    """Return what was expected of a run with what its training and its evaluation measured, in the recipe's order.

    Of a job of several stages the last one's run is compared, with the hours and dollars of all; of any other stage's run
    nothing is.
    """
    ranges = (run.manifest.get("expect") or {}).get("ranges") or {}
    if not ranges or not _is_last(run):
        return ()
    measured = _of_training(run) | _of_evaluation(run)
    return tuple(Expected(name, low, high, *measured.get(name, (None, ""))) for name, (low, high) in ranges.items())


def _is_last(run: RunFolder) -> bool:
    if run.recipe.stage is None:
        return True
    # The run's own recipe knows one stage alone.
    job = load_recipe(run.job_path)
    names = [stage.name for stage in job.stages.values() if isinstance(stage, TrainingStage)]
    return names[-1:] == [run.recipe.stage] or run.recipe.stage not in names


def _of_training(run: RunFolder) -> dict[str, tuple[float | None, str]]:
    summary, before = run.manifest.get("summary") or {}, run.manifest.get("before") or {}
    spent = load_spent(run.spent_path)
    words = "training" if not before else "all stages"
    found: dict[str, tuple[float | None, str]] = {}
    if spent.seconds:
        found["hours"] = (spent.seconds / 3600 + float(before.get("hours", 0.0)), words)
    if (run.manifest.get("rig") or {}).get("dollars_per_hour") is not None:
        found["dollars"] = (spent.dollars + float(before.get("dollars", 0.0)), words)
    at = "training" if summary.get("best_step") is None else f"training, step {summary['best_step']:,}"
    for name, key in (("validation_loss", "best_loss"), ("accuracy", "best_answers")):
        if summary.get(key) is not None:
            found[name] = (float(summary[key]), at)
    return found


def _of_evaluation(run: RunFolder) -> dict[str, tuple[float | None, str]]:
    """Return what the evaluation of the best checkpoint found, unless another checkpoint has become the best since."""
    report: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        report = json.loads((run.path / EVALUATION).read_text(encoding="utf-8"))
    best = (run.manifest.get("summary") or {}).get("best_step")
    # An evaluation of an earlier best says nothing of this one.
    if not isinstance(report, dict) or (best is not None and report.get("step") != best):
        return {}
    places = {
        "validation_loss": (("validation_loss",),),
        "bits_per_byte": (("bits_per_byte",),),
        "accuracy": (
            ("actions", "accuracy", "value"),
            ("answers", "share"),
            ("exact_match", "share"),
            ("puzzles", "exact", "share"),
        ),
        "macro_f1": (("actions", "macro_f1", "value"),),
        "gain": (("untuned", "gain", "difference"),),
    }
    found: dict[str, tuple[float | None, str]] = {}
    for name, paths in places.items():
        # The first that is there: what an evaluation calls accuracy depends on the data.
        values = [value for path in paths if (value := _at(report, path)) is not None]
        if values:
            found[name] = (values[0], f"evaluation, step {report.get('step') or 0:,}")
    return found


def _at(report: Any, path: tuple[str, ...]) -> float | None:
    for key in path:
        report = report.get(key) if isinstance(report, dict) else None
    return float(report) if isinstance(report, int | float) and not isinstance(report, bool) else None
