"""The runs in a folder: listed, and the newest."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from windtunnel.recipe import UserError

from .budget import load_spent
from .ending import outcome
from .folder import read_manifest, read_own_recipe
from .metrics import MetricsReader


@dataclass(frozen=True)
class RunSummary:
    """A line of the list of runs. `problem` says what is unreadable about a damaged one.

    Attributes:
        status: running, done, stopped, failed (also when it says running and no process trains it); 'damaged'.
        step, loss, validation_loss, dollars: the latest logged, if any.
        best_step: step of the checkpoint with the lowest validation loss, as listed (not verified).
        stage: of the recipe, where it has stages; gates: name -> whether it held, once they were judged.
        lost: it says running, and nobody trains it: killed, or its machine is gone.
        spent_*, planned_*: of all its sessions, and of its plan; None: not known, or no price.
    """

    path: Path
    recipe: str
    created: float | None
    status: str
    reason: str | None = None
    step: int | None = None
    loss: float | None = None
    validation_loss: float | None = None
    dollars: float | None = None
    best_step: int | None = None
    problem: str | None = None
    stage: str | None = None
    gates: dict[str, bool] | None = None
    spent_hours: float | None = None
    spent_dollars: float | None = None
    planned_hours: float | None = None
    planned_dollars: float | None = None
    lost: bool = False


def list_runs(root: Path | str) -> list[RunSummary]:
    """Return the runs in a folder, newest first. Damaged ones are listed with their problem; other folders are not."""
    root = Path(root)
    if not root.is_dir():
        return []
    members = [p for p in root.iterdir() if (p / "manifest.json").exists() or (p / "recipe.yaml").exists()]
    # A link such as `latest` to a run beside it would be that run once more.
    members = [p for p in members if not (p.is_symlink() and p.resolve() in {m.resolve() for m in members if m != p})]
    return sorted((_summary(p) for p in members), key=lambda s: (s.created or 0.0, s.path.name), reverse=True)


def newest_run(root: Path | str, recipe: str | None = None, *, called: str | None = None) -> Path:
    """Return the newest run, of a recipe if given.

    Args:
        root: the folder of runs.
        recipe: its name.
        called: what the command called the recipe, for the one that starts a run; None: its name.

    Raises:
        UserError: there is none; or the newest is damaged: an older one is not taken in its place.
    """
    damaged: RunSummary | None = None
    for run in list_runs(root):
        if run.status == "damaged":
            # A manifest that cannot be read does not tell the recipe, but the folder is named after it.
            mine = recipe in (None, run.recipe) or (run.recipe == "?" and run.path.name.startswith(f"{recipe}-"))
            damaged = damaged or (run if mine else None)
        elif recipe in (None, run.recipe):
            # The newest one is what is meant. To take the next older one silently could train over what somebody is looking
            # for.
            if damaged is None:
                return run.path
            raise UserError(
                f"the newest run, {damaged.path}, cannot be used: {damaged.problem}",
                f"put that right, or take the one before it: --run {run.path}",
            )
    if damaged is not None:
        raise UserError(f"{damaged.path} cannot be used: {damaged.problem}", "put that right, or start a new run")
    what = f"run of recipe {recipe}" if recipe else "run"
    raise UserError(f"no {what} in {root}", f"start one with `windtunnel train {shlex.quote(called or recipe or 'charlm')}`")


def _summary(path: Path) -> RunSummary:
    try:
        manifest = read_manifest(path)
    except UserError as error:
        return RunSummary(path, _name_of(path), _made(path), "damaged", problem=error.message)
    stands = outcome(path, manifest)
    latest: dict[str, Any] = {}
    best, problem = None, manifest.get("mended")
    if any(path.glob("metrics.sqlite.damaged-*")):
        problem = "earlier metrics were damaged: see metrics.sqlite.damaged-1"
    try:
        best = _best_step(path / "checkpoints")
        if (path / "metrics.sqlite").exists():
            with MetricsReader(path / "metrics.sqlite") as reader:
                latest = reader.latest()
    except UserError as error:
        problem = error.message
    value = {name: point.value for name, point in latest.items()}
    created = manifest.get("created")
    return RunSummary(
        path,
        str(manifest.get("recipe", "?")),
        created if isinstance(created, int | float) else None,
        stands.status,
        stands.reason,
        max((p.step for p in latest.values()), default=None),
        value.get("loss"),
        value.get("validation_loss"),
        value.get("dollars"),
        best,
        problem,
        manifest.get("stage"),
        _gates(manifest.get("gates")),
        *_spending(path, manifest.get("plan")),
        lost=stands.lost,
    )


def _spending(path: Path, plan: Any) -> tuple[float | None, float | None, float | None, float | None]:
    """Return (hours, dollars, planned hours, planned dollars) of a run."""
    known = plan if isinstance(plan, dict) else {}
    spent = load_spent(path / "spent.json") if (path / "spent.json").exists() else None
    # Zero dollars of a rig without a price is not zero dollars.
    priced = spent is not None and (spent.dollars > 0 or known.get("dollars_per_hour") is not None)
    return (
        None if spent is None else spent.seconds / 3600,
        spent.dollars if spent is not None and priced else None,
        known.get("hours"),
        known.get("dollars"),
    )


def _name_of(path: Path) -> str:
    """Return the recipe's name of a run whose manifest cannot be read; '?' where nothing tells."""
    try:
        return read_own_recipe(path).name
    except UserError:
        return "?"


def _made(path: Path) -> float | None:
    """When a run was made, as the name of its folder tells, in seconds since the epoch."""
    found = re.search(r"-(\d{8}-\d{6})(-\d+)?$", path.name)
    return datetime.strptime(found[1], "%Y%m%d-%H%M%S").replace(tzinfo=UTC).timestamp() if found else path.stat().st_mtime


def _best_step(checkpoints: Path) -> int | None:
    """Return the step with the most right answers, or the lowest validation loss, that checkpoints tell of.

    The room `checkpoint` reads them properly.
    """
    scored: list[tuple[float, float, int]] = []
    for path in checkpoints.glob("step-*/checkpoint.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # damaged, or deleted just now
            data = json.loads(path.read_text(encoding="utf-8"))
            # More right answers first, a lower loss among equals.
            scored.append((-(data.get("score") or 0.0), float(data["validation_loss"]), int(data["step"])))
    return min(scored)[2] if scored else None


def _gates(judged: Any) -> dict[str, bool] | None:
    """Name -> whether it held, as far as the manifest tells."""
    if not isinstance(judged, list):
        return None
    return {str(gate["name"]): bool(gate.get("held")) for gate in judged if isinstance(gate, dict) and "name" in gate}
