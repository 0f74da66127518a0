"""A rehearsal from beginning to end: its folder, its checks in order, its report."""

from __future__ import annotations

import contextlib
import shlex
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from windtunnel.plan import resolve
from windtunnel.recipe import Recipe, UserError, scale_model
from windtunnel.rig import detect_rig, parse_rig

from .checks import View, run_checks
from .page import write_page
from .readiness import Readiness, late_for, write_json_report
from .stages import checks_for
from .state import Rehearsal

DEFAULT_TARGETS = ("8xH100",)
LEAST_STEPS = 24
"""Fewer do not hold two checkpoints and what is to be compared around them."""


@dataclass(frozen=True)
class Options:
    """How `windtunnel rehearse` was called.

    Attributes:
        targets: names of the rigs to be ready for. root: the rehearsal's folder is made here.
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
    targets = [parse_rig(name) for name in options.targets]
    folder = _new_folder(options.root, recipe.name)
    here = detect_rig(folder)
    # The ratio of heads to key/value heads depends on the depth that the target gets.
    there = recipe
    with contextlib.suppress(UserError):  # the check of the plan will say it
        there = resolve(recipe, targets[0])
    scale = scale_model(there) if options.steps is None else scale_model(there, steps=options.steps)
    rehearsal = Rehearsal(recipe, scale, folder, here, targets)
    with _sigterm_interrupts():
        outcomes = run_checks(checks_for(rehearsal), view, rehearsal.log)
    report = Readiness(
        rehearsal=rehearsal,
        outcomes=outcomes,
        late=late_for(rehearsal),
        seconds=time.monotonic() - began,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        called=shlex.join(options.called) or recipe.name,
    )
    write_json_report(report)
    write_page(report)
    return report


def _new_folder(root: Path, name: str) -> Path:
    stem = f"rehearse-{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        for number in range(1, 1000):
            path = root / (stem if number == 1 else f"{stem}-{number}")
            with contextlib.suppress(FileExistsError):
                path.mkdir()
                return path
    except OSError as error:
        raise UserError(f"{root}: no folder can be made there: {error.strerror or error}", "give another --root") from None
    raise UserError(f"{root} already has 999 rehearsals {stem}")


@contextlib.contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """SIGTERM ends a rehearsal as Ctrl-C does: its processes are ended too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
