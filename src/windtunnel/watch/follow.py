"""Following a run from outside: its metrics database is read, nothing is disturbed."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from windtunnel.run import MetricsReader, Point, RunFolder, Spent, Stretch, load_spent, outcome, silence, step_values, stretches

from .live import TerminalView
from .snapshot import Snapshot
from .text import count

# The time left follows the pace of now: a run may have become slower since its beginning.
RECENT_STEPS = 20
MOST_LOSSES = 2000
MOST_ALERTS = 20


def watch_run(folder: Path, *, once: bool = False, interval: float = 2.0) -> None:
    """Show a run until it ends; Ctrl-C stops looking, not the run.

    Raises:
        UserError: not a run folder, or its metrics are damaged.
    """
    try:
        with TerminalView() as view:
            while True:
                now = read_snapshot(folder)
                view.update(now)
                # A run that has ended is shown once.
                if once or now.phase not in ("training", "starting"):
                    return
                time.sleep(interval)
    except KeyboardInterrupt:
        return


def read_snapshot(run: Path | RunFolder) -> Snapshot:
    """Return the newest moment of a running or finished run, by its folder or as it was just opened.

    Raises:
        UserError: not a run folder, or its metrics are damaged.
    """
    if isinstance(run, Path):
        run = RunFolder.open(run)
    phase = _phase(run)
    if not run.metrics_path.exists():
        quiet = silence(run.path, None) if phase == "training" else None
        starting = "starting" if phase == "training" else phase
        return Snapshot(phase=starting, title=_title(run), silent=quiet.seconds if quiet else None)
    with MetricsReader(run.metrics_path) as reader:
        latest = reader.latest()
        step = max((p.step for p in latest.values()), default=0)
        losses = stretches(reader, "loss", MOST_LOSSES)
        steps = losses or stretches(reader, "step_seconds", MOST_LOSSES)
        # Twice as many steps: not every step need have a point.
        seconds = reader.series("step_seconds", since=step - 2 * RECENT_STEPS)
        events = reader.events(last=200)
        quiet = silence(run.path, reader) if phase == "training" else None
    alerts = [(e.level, e.message, str(e.data.get("advice", ""))) for e in events if e.level in ("warn", "bad")]
    values = {name: point.value for name, point in latest.items()}
    spent = load_spent(run.spent_path)  # more than the last step saw, once held-out answers or a checkpoint came after it
    total = _total(latest, step)
    left = None
    if total is not None and seconds and phase == "training":
        left = (total - step) * statistics.median(point.value for point in seconds[-RECENT_STEPS:])
    return Snapshot(
        step=step,
        total_steps=total,
        elapsed=max(_elapsed(steps), spent.seconds),
        eta=left,
        losses=[math.nan if part.mean is None else part.mean for part in losses],
        alerts=alerts[-MOST_ALERTS:],
        silent=quiet.seconds if quiet else None,
        phase=phase,
        title=_title(run),
        dollars_budget=run.recipe.budget.dollars,
        memory_limit_gib=_memory_limit(latest),
        step_losses=step_values(values, "loss"),
        validation_steps=step_values(values, "validation_loss"),
        bpb_steps=step_values(values, "bits_per_byte"),
        **{field: latest[name].value for field, name in _FIELDS.items() if name in latest} | _dollars(latest, spent),
    )


# Snapshot's field -> the metric's name (`windtunnel.run.METRICS`).
_FIELDS = {
    "loss": "loss",
    "validation": "validation_loss",
    "bpb": "validation_bits_per_byte",
    "answers": "answers_right",
    "tokens_per_second": "tokens_per_second",
    "mfu": "mfu",
    "gradient_norm": "gradient_norm",
    "memory_gib": "memory_gib",
    "gpu_utilisation": "gpu_utilisation",
    "data_wait": "data_wait_share",
    "dollars": "dollars",
    "dollars_forecast": "dollars_forecast",
}


def _dollars(latest: Mapping[str, Point], spent: Spent) -> dict[str, float]:
    seen = latest["dollars"].value if "dollars" in latest else 0.0
    return {"dollars": max(seen, spent.dollars)} if max(seen, spent.dollars) else {}


def _phase(run: RunFolder) -> str:
    stands = outcome(run.path, run.manifest)
    if stands.status == "running":
        return "training"
    return f"{stands.status}: {stands.reason}" if stands.reason else stands.status


def _total(latest: Mapping[str, Point], step: int) -> int | None:
    progress = latest.get("progress")
    if progress is None or not progress.value > 0:
        return None
    # The horizon is not logged, and follows from the share of it that is done.
    return max(step, round(progress.step / progress.value))


def _elapsed(points: Sequence[Stretch]) -> float:
    """Time the run was stepping: pauses between sessions, which are far longer than a step, count as one step."""
    gaps = [after.time - before.time for before, after in itertools.pairwise(points)]
    if not gaps:
        return 0.0
    # A validation or a save is part of stepping; a night between two sessions is not.
    longest = 60.0 + 20 * statistics.median(gaps)
    return sum(gap if gap < longest else statistics.median(gaps) for gap in gaps)


def _memory_limit(latest: Mapping[str, Point]) -> float | None:
    used, share = latest.get("memory_gib"), latest.get("memory_share")
    return used.value / share.value if used and share and share.value > 0 else None


def _title(run: RunFolder) -> str:
    manifest: dict[str, Any] = run.manifest
    plan, rig = manifest.get("plan") or {}, manifest.get("rig") or {}
    parts = [run.recipe.name]
    depth = getattr(run.recipe.model, "depth", None)
    if isinstance(depth, int):
        parts.append(f"d{depth}")
    if isinstance(plan.get("params"), int | float):
        parts.append(f"{count(plan['params'])} parameters")
    if rig.get("name"):
        parts.append(f"on {rig['name']}")
    return "  ".join([*parts, str(run.path)])
