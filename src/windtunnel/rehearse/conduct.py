"""A check and a rehearsal from beginning to end: what was asked for, every check in order, the report."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from windtunnel.check import Check, CheckView, Outcome, all_checks
from windtunnel.plan import cheapest, holds, make_plan
from windtunnel.recipe import Recipe, UserError, load_recipe, stage_recipe
from windtunnel.rig import parse_rig
from windtunnel.run import new_folder

from .context import Context, Rehearsal
from .page import write_page
from .readiness import INPUT_CHECKS, Readiness, late_for, write_json_report
from .runner import run_checks, select

DEFAULT_TARGET = "8xH100"
AGAIN_SECONDS = 0.02
LEAST_STEPS = 24
"""Fewer do not hold two checkpoints and what is to be compared around them."""


@dataclass(frozen=True)
class Options:
    """How `windtunnel rehearse` was called.

    Attributes:
        targets: names of the rigs to be ready for, the target last; none: see `default_target`.
        root: the rehearsal's folder is made here.
        steps: optimizer steps of the scale model; None: its rule's.
        called: recipe and overrides as typed, for the commands that the report gives.
    """

    targets: Sequence[str] = ()
    root: Path = Path("runs")
    steps: int | None = None
    called: Sequence[str] = ()


def rehearse(recipe: Recipe, options: Options, view: CheckView) -> Readiness:
    """Rehearse a recipe on this machine and write report.html and report.json into a new folder.

    Raises:
        UserError: a target that is no rig, or a folder that cannot be made. Everything else is a failed check, and a report that
            cannot be written is told by the report that is returned.
    """
    began = time.monotonic()
    if options.steps is not None and options.steps < LEAST_STEPS:
        raise UserError(f"--steps {options.steps}: a rehearsal needs at least {LEAST_STEPS}", f"--steps {LEAST_STEPS}")
    # A misspelt target is told now, not at the end of the rehearsal, where it is first needed.
    for name in options.targets:
        parse_rig(name)
    targets = tuple(options.targets) or (default_target(recipe),)
    folder = new_folder(options.root, f"rehearse-{recipe.name}")
    rehearsal = Rehearsal(
        next(iter(options.called), recipe.name),
        (),
        targets,
        folder,
        options.root,
        steps=options.steps,
        given=recipe,
    )
    with sigterm_interrupts():
        outcomes = run_checks(rehearsal_checks(rehearsal), rehearsal, view)
    report = Readiness(
        context=rehearsal,
        outcomes=outcomes,
        late=late_for(rehearsal, outcomes),
        seconds=time.monotonic() - began,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        called=tuple(options.called) or (recipe.name,),
        rehearsed=True,
        named=bool(options.targets),
    )
    return write_reports(report)


def write_reports(report: Readiness) -> Readiness:
    """Write report.json and report.html into the rehearsal's folder; where that fails, the report that is returned says why."""
    try:
        write_json_report(report)
        write_page(report, report.context.folder / "report.html")
    except UserError as error:
        return replace(report, unwritten=error.message)
    return report


@dataclass(frozen=True)
class CheckOptions:
    """How `windtunnel check` was called.

    Attributes:
        source: a recipe's name or file. overrides: 'key.path=value'.
        on: names of the rigs to be ready for, the target last; none: see `default_target`. only: names of checks; empty: all.
        root: where runs will be written. resume: a run to be gone on with, its folder or its name under `root`.
        sbatch: a batch script.
    """

    source: str
    overrides: Sequence[str] = ()
    on: Sequence[str] = ()
    only: Sequence[str] = ()
    root: Path = Path("runs")
    resume: Path | None = None
    sbatch: Path | None = None


def check_recipe(options: CheckOptions, view: CheckView | None = None) -> Readiness:
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
        on = tuple(options.on) or (_default_of(options),)
        folder = Path(tempfile.mkdtemp(prefix="windtunnel-check-"))
        keep = False
        try:
            context = Context(options.source, tuple(options.overrides), on, folder, options.root, resume, options.sbatch)
            outcomes = _outcomes(checks, options, context, view)
            # A traceback that the report names must still be there.
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
        named=bool(options.on),
    )


def default_target(recipe: Recipe) -> str:
    """Return the rig to be ready for where none is named: 8xH100, or the cheapest node that holds what is too large for that."""
    rig = parse_rig(DEFAULT_TARGET)
    stages = [stage_recipe(recipe, stage.name) for stage in recipe.training] if recipe.staged else [recipe]
    plans = [make_plan(stage, rig) for stage in stages]
    offered = ({a.rig for a in plan.alternatives if a.rig} for plan in plans if not holds(plan))
    # Of each stage the rigs that hold it; a job runs on one that holds all.
    other = cheapest({name for name in names if parse_rig(name).nodes == 1} for names in offered)
    return other or DEFAULT_TARGET


def _default_of(options: CheckOptions) -> str:
    """Return the default target of the recipe as it was called; of one that cannot be read or planned, which its check says."""
    try:
        return default_target(load_recipe(options.source, options.overrides))
    except UserError:
        return DEFAULT_TARGET


def _outcomes(checks: list[Check], options: CheckOptions, context: Context, view: CheckView | None) -> list[Outcome]:
    """Run the checks; of a recipe or a rig that cannot be read those alone that say so, here and at once."""
    try:
        _ = context.loaded, context.rigs
    except UserError:
        if not options.only:
            return run_checks([check for check in checks if check.name in INPUT_CHECKS], context, view, isolate=False)
    return run_checks(checks, context, view)


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt meanwhile, in the main thread only.

    Python throws away what is raised in what it calls by itself: a finalizer, or what logging does after each fork. There the
    signal is sent once more.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def unraisable(lost: sys.UnraisableHookArgs) -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            shown(lost)
            return
        # Not from here, where it would be lost again.
        timer = threading.Timer(AGAIN_SECONDS, os.kill, (os.getpid(), signal.SIGTERM))
        timer.daemon = True
        timer.start()

    before, shown = signal.signal(signal.SIGTERM, interrupt), sys.unraisablehook
    sys.unraisablehook = unraisable
    try:
        yield
    finally:
        sys.unraisablehook = shown
        signal.signal(signal.SIGTERM, before)


def stages() -> list[Check]:
    """Return the stages of a rehearsal; they share what they find through it."""
    from . import after, climbing, conversion, policy, serving, staged, trading, training, tuning

    modules = (training, after, trading, staged, serving, tuning, policy, climbing)
    return [*conversion.CHECKS, *policy.BEFORE, *(stage for module in modules for stage in module.CHECKS)]


def rehearsal_checks(context: Context) -> list[Check]:
    """Return checks, then stages. A check whose proof a stage repeats at a larger scale is left out."""
    later = stages()
    try:
        proven = {stage.name for stage in later if stage.applies(context)}
    except UserError:  # the check of the recipe says it
        proven = {stage.name for stage in later}
    # Not run twice: training, killing and resuming takes minutes.
    return [check for check in all_checks() if check.stage not in proven] + later
