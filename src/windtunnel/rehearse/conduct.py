"""A rehearsal from beginning to end: its folder, its checks in order, its report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from windtunnel.check import View
from windtunnel.recipe import Recipe, UserError
from windtunnel.rig import parse_rig
from windtunnel.run import new_folder

from .interrupts import sigterm_interrupts
from .page import write_page
from .readiness import Readiness, late_for, write_json_report
from .runner import run_checks
from .stages import rehearsal_checks
from .state import Rehearsal

DEFAULT_TARGETS = ("8xH100",)
LEAST_STEPS = 24
"""Fewer do not hold two checkpoints and what is to be compared around them."""


@dataclass(frozen=True)
class Options:
    """How `windtunnel rehearse` was called.

    Attributes:
        targets: names of the rigs to be ready for, the target last. root: the rehearsal's folder is made here.
        steps: optimizer steps of the scale model; None: its rule's.
        called: recipe and overrides as typed, for the commands that the report gives.
    """

    targets: Sequence[str] = DEFAULT_TARGETS
    root: Path = Path("runs")
    steps: int | None = None
    called: Sequence[str] = ()


def rehearse(recipe: Recipe, options: Options, view: View) -> Readiness:
    """Rehearse a recipe on this machine and write report.html and report.json into a new folder.

    Raises:
        UserError: a target that is no rig, or a folder that cannot be written. Everything else is a failed check.
    """
    began = time.monotonic()
    if options.steps is not None and options.steps < LEAST_STEPS:
        raise UserError(f"--steps {options.steps}: a rehearsal needs at least {LEAST_STEPS}", f"--steps {LEAST_STEPS}")
    for name in options.targets:
        parse_rig(name)
    folder = new_folder(options.root, f"rehearse-{recipe.name}")
    rehearsal = Rehearsal(
        next(iter(options.called), recipe.name),
        (),
        tuple(options.targets),
        folder,
        options.root,
        steps=options.steps,
        given=recipe,
    )
    with sigterm_interrupts():
        outcomes = run_checks(rehearsal_checks(), rehearsal, view)
    report = Readiness(
        context=rehearsal,
        outcomes=outcomes,
        late=late_for(rehearsal, outcomes),
        seconds=time.monotonic() - began,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        called=tuple(options.called) or (recipe.name,),
        rehearsed=True,
    )
    write_json_report(report)
    write_page(report, folder / "report.html")
    return report
