"""What a run has made so far besides curves: samples of what the model says, and the stages of its job."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any

from windtunnel.recipe import UserError, load_recipe
from windtunnel.run import EVALUATION, MetricsReader, RunFolder, list_runs, read_manifest

from .evaluated import LONGEST, evaluation_of

ROLLOUTS = "rollouts"
MOST = 4


def samples_of(run: RunFolder, metrics: MetricsReader | None) -> list[dict[str, Any]]:
    """Return the newest samples, as `title` and `samples`: of the last round, of held-out questions, of the evaluation."""
    found = []
    for title, samples in (_of_round(run.path), _of_answers(metrics), ("Evaluation", _of_evaluation(run.path))):
        if samples:
            found.append({"title": title, "samples": samples[:MOST]})
    return found


def stages_of(run: RunFolder) -> list[dict[str, Any]]:
    """Return the stages of a run's job that train, in their order: `name`, `run` and `status` (None: not begun); [] without."""
    if run.manifest.get("stage") is None:
        return []
    try:
        names = [stage.name for stage in load_recipe(run.job_path).training]
    except UserError:
        return []
    runs = {item.path.name: item for item in list_runs(run.path.parent) if item.recipe == run.manifest.get("recipe")}
    before = {name: _before(item.path) for name, item in runs.items()}
    chain, name = {run.path.name}, before.get(run.path.name)
    # Backwards to the first stage, then forwards to those that follow any of them: a stage may have been run twice.
    while name in runs and name not in chain:
        chain.add(name)
        name = before.get(name)
    while later := [each for each, of in before.items() if of in chain and each not in chain]:
        chain.update(later)
    by_stage = {runs[each].stage: runs[each] for each in sorted(chain) if each in runs}
    return [
        {"name": name, "run": by_stage[name].path.name if name in by_stage else None,
         "status": by_stage[name].status if name in by_stage else None}
        for name in names
    ]  # fmt: skip


def stamp_of(run: Path) -> list[int]:
    """Return what changes when there is a new sample, gate or stage: it is cheap to ask every second."""
    places = [run / "manifest.json", run / EVALUATION, run / ROLLOUTS]
    return [_changed(place) for place in places]


def _of_round(run: Path) -> tuple[str, list[dict[str, Any]]]:
    """Return the best and the worst answers of the newest round of reinforcement learning."""
    files = sorted((run / ROLLOUTS).glob("round-*.jsonl"))
    told: list[dict[str, Any]] = []
    with contextlib.suppress(OSError, ValueError):
        told = [json.loads(line) for line in files[-1].read_text(encoding="utf-8").splitlines()] if files else []
    known = sorted((one for one in told if _number(one.get("reward"))), key=lambda one: -float(one["reward"]))
    # The ends tell most: what is rewarded, and what is not.
    shown = known if len(known) <= MOST else [*known[: MOST // 2], *known[-(MOST // 2) :]]
    number = int(files[-1].stem.partition("-")[2]) if files else 0
    return f"Round {number:,}: best and worst answers", [
        _sample(one.get("prompt"), one.get("answer"), f"reward {one['reward']:.3g}", one.get("why"), good=bool(one.get("right")))
        for one in shown
    ]


def _of_answers(metrics: MetricsReader | None) -> tuple[str, list[dict[str, Any]]]:
    """Return answers to held-out questions that were not right, of the last time they were asked."""
    events = metrics.events("answers", last=1) if metrics is not None else []
    if not events:
        return "", []
    wrong = events[0].data.get("wrong") or []
    return f"Held-out questions at step {events[0].step or 0:,}: answers that are not right", [
        _sample(one.get("prompt"), one.get("answer"), f"expected {one.get('truth')}", one.get("why"), good=False) for one in wrong
    ]


def _of_evaluation(run: Path) -> list[dict[str, Any]]:
    return [_sample(one.prompt, one.text, one.note, None, good=not one.note) for one in evaluation_of(run)[1]]


def _sample(prompt: Any, text: Any, note: str, why: Any, *, good: bool) -> dict[str, Any]:
    return {
        "prompt": str(prompt or "")[-LONGEST:], "text": str(text or "")[:LONGEST],
        "note": note + (f"; {why}" if why else ""), "good": good,
    }  # fmt: skip


def _before(run: Path) -> str | None:
    with contextlib.suppress(UserError):
        return str((read_manifest(run).get("before") or {}).get("run") or "") or None
    return None


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
