"""A check from beginning to end: what was asked for, every check in order, the readiness report."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from windtunnel.check import View, all_checks

from .context import Context
from .interrupts import sigterm_interrupts
from .readiness import Readiness, late_for
from .runner import run_checks, select


@dataclass(frozen=True)
class CheckOptions:
    """How `windtunnel check` was called.

    Attributes:
        source: a recipe's name or file. overrides: 'key.path=value'.
        on: names of the rigs to be ready for, the target last. only: names of checks; empty: all.
        root: where runs will be written. resume: a run to be gone on with, its folder or its name under `root`.
        sbatch: a batch script.
    """

    source: str
    overrides: Sequence[str] = ()
    on: Sequence[str] = ("8xH100",)
    only: Sequence[str] = ()
    root: Path = Path("runs")
    resume: Path | None = None
    sbatch: Path | None = None


def check_recipe(options: CheckOptions, view: View | None = None) -> Readiness:
    """Prove all that can be proven without the rig. Nothing stays on disk but prepared data and the logs of checks that broke.

    Raises:
        UserError: a name in `only` that is no check. Everything else is a failed check.
    """
    began = time.monotonic()
    checks = select(all_checks(), options.only) if options.only else all_checks()
    resume = options.resume
    if resume is not None and not resume.exists() and (options.root / resume).is_dir():
        resume = options.root / resume
    with sigterm_interrupts():
        folder = Path(tempfile.mkdtemp(prefix="windtunnel-check-"))
        context = Context(
            options.source, tuple(options.overrides), tuple(options.on), folder, options.root, resume, options.sbatch
        )
        keep = False
        try:
            outcomes = run_checks(checks, context, view)
            keep = any(outcome.log for outcome in outcomes)
        finally:
            if not keep:
                shutil.rmtree(folder, ignore_errors=True)
    parts = [options.source, *(word for value in options.overrides for word in ("--set", value))]
    return Readiness(
        context=context,
        outcomes=outcomes,
        late=late_for(context, outcomes),
        seconds=time.monotonic() - began,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        called=tuple(parts),
    )
