"""How a run that did not end by itself has ended: found out, and recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windtunnel.recipe import UserError

from .folder import RunFolder, Status
from .metrics import Metrics, MetricsReader
from .processes import holder, last_holder
from .signals import STOPPING

LAST_LINES = 20


@dataclass(frozen=True)
class Outcome:
    """How a run stands.

    Attributes:
        status: running, done, stopped or failed. reason: why it ended, or None.
        lost: it says running, and nobody trains it: it was killed, or its machine is gone.
    """

    status: str
    reason: str | None
    lost: bool = False


def outcome(folder: Path, manifest: dict[str, Any]) -> Outcome:
    """Return how a run stands: what its manifest says, unless that says running and nobody trains it."""
    status, reason = str(manifest.get("status", "running")), manifest.get("reason")
    if status != "running" or holder(folder) is not None:
        return Outcome(status, reason)
    was = last_holder(folder)
    if was is None:
        return Outcome("failed", "no process trains it", lost=True)
    if was.alive is None:
        return Outcome("failed", f"{was} no longer holds it: it was killed, or that machine is gone", lost=True)
    cause = "killed" if was.booted_now else "the machine was restarted"
    return Outcome("failed", f"{was} is gone without a word: {cause}", lost=True)


def interrupted(reason: str | None) -> bool:
    """Return whether a run was stopped for its machine, by a notice or a signal, and not for its budget or at somebody's wish."""
    return (reason or "").startswith((*(number.name for number in STOPPING), "spot notice"))


def record_end(folder: Path, cause: str, *, status: Status = "failed", lines: Sequence[str] = ()) -> bool:
    """Record why a run ended whose process could not: status, reason, last lines and an event.

    Args:
        folder: the run's.
        cause: why, in one line.
        status: what the run is from now on.
        lines: what its process printed last.

    Returns:
        whether it was recorded; False where the run has recorded an end of its own or another process has it.
    """
    try:
        run = RunFolder.open(folder)
        # It ended by itself and said so, which knows more than whoever looks on.
        if run.manifest.get("status") != "running":
            return False
        # So that two who find it lost do not both write.
        run.lock()
    except UserError:
        return False
    # A full disk may be why it ended: then nothing can be recorded either.
    with run, contextlib.suppress(OSError):
        step = _last_step(run)
        run.update(exit_code=1 if status == "failed" else 3, last_lines=list(lines)[-LAST_LINES:],
                   summary={**(run.manifest.get("summary") or {}), "step": step})  # fmt: skip
        run.finish(status, cause)
        with contextlib.suppress(UserError), Metrics(run.metrics_path) as metrics:
            metrics.event("crash" if status == "failed" else "end", step, cause, "bad" if status == "failed" else "info")
        return True
    return False


def _last_step(run: RunFolder) -> int:
    with contextlib.suppress(UserError), MetricsReader(run.metrics_path) as reader:
        return max((point.step for point in reader.latest().values()), default=0)
    return 0
