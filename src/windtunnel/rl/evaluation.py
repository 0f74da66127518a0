"""Evaluate a run of any kind of stage. What a policy is examined by is imported for a policy alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from windtunnel.evaluate import EvaluationReport, evaluate_run
from windtunnel.run import RunFolder


def evaluate_trained(run: Path | str, *arguments: Any, **more: Any) -> EvaluationReport:
    """Measure a run of any kind of stage; see `windtunnel.evaluate.evaluate_run`."""
    if RunFolder.open(Path(run)).recipe.rl is None:
        return evaluate_run(run, *arguments, **more)
    from .examination import examine_policy

    return evaluate_run(run, *arguments, **more, examine=examine_policy)
