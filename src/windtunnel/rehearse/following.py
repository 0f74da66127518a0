"""A run of `windtunnel train` in a process of its own, as a rehearsal follows it: begun, watched, asked to stop, read."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windtunnel.check import CheckFailed, Say
from windtunnel.recipe import Recipe, UserError, dump_recipe

from .context import Rehearsal
from .processes import TICK, Child

MEMORY_SECONDS = 1.0


def train_command(recipe: Path, *, root: Path | None = None, run: Path | None = None) -> list[str]:
    """Return the arguments of `windtunnel train` for a new run under a root, or to go on with a run."""
    where = ["--root", str(root)] if run is None else ["--run", str(run), "--resume"]
    return ["-m", "windtunnel", "train", str(recipe), *where, "--yes", "--json"]


class Follower:
    """Reads a training process's progress, tells it, and samples its memory."""

    def __init__(self, rehearsal: Rehearsal, child: Child, say: Say) -> None:
        self._child, self._say = child, say
        self._memory = rehearsal.memory.setdefault(child.log.stem, [])
        self._sampled = 0.0
        self.step = 0
        say("starting")

    def look(self) -> None:
        """Read what is new."""
        for moment in self._child.moments():
            if "step" in moment:
                self.step = int(moment["step"])
                self._say(_describe(moment))
            elif "message" in moment and self.step == 0:
                self._say(str(moment["message"]).splitlines()[0].strip())
        now = time.monotonic()
        # Before the first step it is the memory of imports.
        if self.step and now - self._sampled > MEMORY_SECONDS and self._child.running:
            self._sampled = now
            self._memory.append((float(self.step), self._child.memory_gib()))


def _describe(moment: dict[str, Any]) -> str:
    of = f" of {moment['total_steps']:,}" if moment.get("total_steps") else ""
    loss = f", loss {moment['loss']:.3f}" if isinstance(moment.get("loss"), float) else ""
    speed = f", {moment['tokens_per_second']:,.0f} tokens/s" if isinstance(moment.get("tokens_per_second"), float) else ""
    return f"{moment.get('phase', 'training')}: step {moment['step']:,}{of}{loss}{speed}"


def await_run(child: Child, root: Path, follow: Follower) -> Path:
    """Wait for the run that a process makes under `root` and return its folder. Raises CheckFailed: it made none."""
    while True:
        follow.look()
        found = [path.parent for path in root.glob("*/manifest.json")]
        if found:
            return found[0]
        if not child.running:
            raise CheckFailed(
                f"`windtunnel train` ended before training with exit code {child.process.returncode}: {child.last_words()}"
            )
        time.sleep(0.05)


@dataclass(frozen=True)
class Ended:
    """How a run ended: its folder, None where it has none; its exit code; the last that it printed."""

    run: Path | None
    code: int
    words: str


class Uninterrupted:
    """The same recipe trained without a kill beyond the step where the other resumed, and stopped by SIGTERM there.

    A context manager; leaving it ends the process. `look` is to be called again and again.

    Attributes:
        ended: how it ended, once it has.
    """

    def __init__(self, rehearsal: Rehearsal, say: Say) -> None:
        self._root, self._goal = rehearsal.folder / "reference", rehearsal.resumed_from + rehearsal.steps_beyond
        log = rehearsal.folder / "reference.log"
        self._child = Child(train_command(rehearsal.recipe_file, root=self._root), log, rehearsal.environment)
        self._follow = Follower(rehearsal, self._child, say)
        self._run: Path | None = None
        self._asked = False
        self.ended: Ended | None = None

    def __enter__(self) -> Uninterrupted:
        return self

    def __exit__(self, *exception: object) -> None:
        self._child.__exit__(*exception)

    def look(self) -> None:
        """Follow it, and ask it to stop once it has logged the step."""
        running = self._child.running
        self._follow.look()
        self._run = self._run or next((path.parent for path in self._root.glob("*/manifest.json")), None)
        if self._run is not None and not self._asked and running:
            self._asked = ask_at(self._child, self._run, self._goal)
        if not running and self.ended is None:
            self.ended = Ended(self._run, self._child.process.wait(), self._child.last_words())

    def finish(self) -> Ended:
        """Wait for its end."""
        while self.ended is None:
            self.look()
            time.sleep(TICK)
        return self.ended


def stop_at(child: Child, run: Path, step: int, each: Callable[[], None]) -> int:
    """Ask the run to stop once it has logged `step`; return its exit code."""
    asked = False
    while child.running:
        each()
        asked = asked or ask_at(child, run, step)
        time.sleep(TICK)
    each()
    return child.process.wait()


def ask_at(child: Child, run: Path, step: int) -> bool:
    """Ask the run to stop if it has logged `step`; return whether it was asked."""
    from windtunnel.run import holder

    # Read from the database, as a person would look: what was printed may be seconds behind.
    if max(series(run, "loss", wait=True), default=0) < step:
        return False
    by = holder(run)  # rank 0
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        os.kill(by.pid if by else child.process.pid, signal.SIGTERM)
    return True


def series(run: Path, name: str, *, wait: bool = False) -> dict[int, float]:
    """Return a metric of a run by step; wait: none where there are no metrics yet, as of a run that has just begun."""
    from windtunnel.run import MetricsReader

    try:
        with MetricsReader(run / "metrics.sqlite") as metrics:
            return {point.step: point.value for point in metrics.series(name)}
    except UserError:
        if not wait:
            raise
        return {}


def train_to_end(rehearsal: Rehearsal, recipe: Recipe, name: str, say: Say, *, of: str) -> Path:
    """Train a recipe by the command to its end; returns the folder of its runs.

    Args:
        rehearsal: in whose folder the recipe, its runs and its log are kept.
        recipe: what to train.
        name: of these files.
        say: told how far it is.
        of: what is trained, for the failure.

    Raises:
        CheckFailed: the command failed.
    """
    path, root = rehearsal.folder / f"{name}.yaml", rehearsal.folder / name
    path.write_text(dump_recipe(recipe), encoding="utf-8")
    with Child(train_command(path, root=root), rehearsal.folder / f"{name}.log", rehearsal.environment) as child:
        code = child.wait(Follower(rehearsal, child, say).look)
        words = child.last_words()
    if code != 0:
        raise CheckFailed(f"`windtunnel train` of {of} ended with exit code {code}: {words}")
    return root
