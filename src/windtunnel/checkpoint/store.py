"""The checkpoints of a run: which there are, which are good, and which to use. No torch."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from windtunnel.recipe import UserError
from windtunnel.run import RunFolder

from .folder import Checkpoint, DamagedCheckpoint, differing_file, read_checkpoint

_FOLDER = re.compile(r"step-(\d{8,})(?:\.(\d+))?")
_TEMPORARY = re.compile(r"step-.*\.tmp-.*")

Which = Literal["best", "newest"] | int


class NoGoodCheckpoint(UserError):
    """No checkpoint is left that could be used. The CLI exits with 1."""

    exit_code = 1


class CheckpointStore:
    """The folder of a run's checkpoints.

    Reading changes nothing, so evaluators and servers may open it while training writes.

    Args:
        folder: `checkpoints/` of a run; it need not exist.

    Attributes:
        problems: what was wrong with each damaged checkpoint that was passed over, once.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._verified: dict[Path, tuple[tuple[int, ...], list[str]]] = {}
        self.problems: list[str] = []

    def all(self) -> list[Checkpoint]:
        """Return checkpoints whose checkpoint.json is sound, oldest first; the latest save of each step."""
        # A step is saved again where a run went back and came to it a second time: the later save is what it came to.
        latest = {checkpoint.step: checkpoint for checkpoint in self.every()}
        return [latest[step] for step in sorted(latest)]

    def every(self) -> list[Checkpoint]:
        """Return sound checkpoints including earlier saves of the same step, oldest first."""
        found = []
        for number, path in self._folders():
            try:
                found.append((number, read_checkpoint(path)))
            # Passed over and told, not raised: the one before it is there for this.
            except DamagedCheckpoint as error:
                self._tell(error.message)
        return [c for _, c in sorted(found, key=lambda item: (item[1].step, item[0]))]

    def newest_good(self, *, with_optimizer: bool = False) -> Checkpoint | None:
        """Return the newest checkpoint that verifies; None if there is none."""
        for checkpoint in reversed(self.every()):
            if (checkpoint.has_optimizer or not with_optimizer) and self.is_good(checkpoint):
                return checkpoint
        return None

    def best(self) -> Checkpoint | None:
        """Return the good checkpoint with the most right answers or the lowest loss; the newest if none was ever measured."""
        return next((c for c in self.best_first() if self.is_good(c)), None)

    def best_first(self) -> list[Checkpoint]:
        """Return all checkpoints in the order of `Checkpoint.standing`."""
        return sorted(self.every(), key=lambda c: c.standing)

    def at(self, step: int) -> Checkpoint:
        """Return the verified checkpoint of a step. Raises UserError naming those there are."""
        for checkpoint in reversed(self.every()):
            if checkpoint.step == step and self.is_good(checkpoint):
                return checkpoint
        there = ", ".join(str(c.step) for c in self.all()) or "none"
        damaged = "".join(f"; {problem}" for problem in self.problems if f"step-{step:08d}" in problem)
        raise UserError(f"{self.folder}: no good checkpoint of step {step}{damaged}", f"steps that were kept: {there}")

    def is_good(self, checkpoint: Checkpoint) -> bool:
        """Return whether every file is what was written. Read once; again only when a file's size or time changed."""
        # Verifying reads everything: not again for every question while nothing on the disk has changed.
        stamp = _stamp(checkpoint)
        known = self._verified.get(checkpoint.path)
        if known is None or known[0] != stamp:
            known = (stamp, checkpoint.verify())
            self._verified[checkpoint.path] = known
        for problem in known[1]:
            self._tell(f"damaged checkpoint passed over: {problem}")
        return not known[1]

    def trust(self, checkpoint: Checkpoint) -> None:
        """Remember that a checkpoint verifies: its writers have just read it back."""
        self._verified[checkpoint.path] = (_stamp(checkpoint), [])

    def free_name(self, step: int) -> Path:
        """Return the folder that the next save of a step gets."""
        # Never a name that is taken, not even by a damaged folder: that one may be what somebody wants to look at.
        numbers = [number for number, path in self._folders() if _step_of(path) == step]
        name = f"step-{step:08d}"
        return self.folder / (name if not numbers else f"{name}.{max(numbers) + 1}")

    def free_bytes(self) -> int:
        """Return the bytes free to this user on the disk that holds the checkpoints."""
        # The folder itself is made by the first save.
        place = next(path for path in (self.folder, *self.folder.absolute().parents) if path.exists())
        return shutil.disk_usage(place).free

    def clean_stale(self) -> list[str]:
        """Remove what dead writers left half done. Only for the process that holds the run's lock."""
        removed = []
        for path in self.folder.glob("step-*"):
            # Only names that this package gives to what is half done.
            if _TEMPORARY.fullmatch(path.name) and path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
                removed.append(path.name)
        return removed

    def _folders(self) -> list[tuple[int, Path]]:
        try:
            # A file of that name too: what lies in a checkpoint's place is a damaged one, and is told.
            names = [(m, p) for p in self.folder.iterdir() if (m := _FOLDER.fullmatch(p.name))]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UserError(f"checkpoint folder {self.folder} cannot be read: {error.strerror or error}") from None
        return sorted((int(m[2] or 1), p) for m, p in names)

    def _tell(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)


@dataclass(frozen=True)
class Chosen:
    """A run, the checkpoint of it to use, and what its user should know: which better ones were damaged."""

    run: RunFolder
    checkpoint: Checkpoint
    warnings: tuple[str, ...] = ()


def choose_checkpoint(run: Path, which: Which, purpose: str = "") -> Chosen:
    """Return a run's checkpoint that is best by held-out answers or validation loss, the newest good one, or that of a step.

    Args:
        run: the run's folder.
        which: 'best', 'newest' or a step.
        purpose: what it is for, as in "to serve", for the error's words.

    Raises:
        UserError: no run folder, none of that step, or a file beside it (the tokenizer) has changed.
        NoGoodCheckpoint: there is none, or all are damaged.
    """
    folder = RunFolder.open(run)
    store = CheckpointStore(folder.checkpoints_dir)
    if isinstance(which, int):
        chosen: Checkpoint | None = store.at(which)
    else:
        # The newest where nothing was ever measured, since `best` falls back to it.
        chosen = store.best() if which == "best" else store.newest_good()
    if chosen is None:
        found = "; ".join(store.problems[:2]) or "it has saved none"
        raise NoGoodCheckpoint(
            f"{run} has no {f'good checkpoint {purpose}'.rstrip()}: {found}",
            f"go on with: windtunnel train --run {run} --resume",
        )
    # Weights under another tokenizer would answer nonsense, and nothing would say why.
    for name, written in chosen.beside.items():
        problem = differing_file(folder.path, name, written)
        if problem:
            raise UserError(
                f"{problem} since checkpoint {chosen.path.name} was saved",
                f"bring back {folder.path / name}; `windtunnel train --resume --run {run}` writes it again",
            )
    return Chosen(folder, chosen, _warnings(store, chosen, which))


def _warnings(store: CheckpointStore, chosen: Checkpoint, which: Which) -> tuple[str, ...]:
    """Say which checkpoints that would have been preferred are damaged, and what is used instead."""
    if not store.problems or isinstance(which, int):
        return ()
    step, _, measured = str(chosen).partition(", ")
    used = f"{step} ({measured})" if measured else step
    return tuple(f"{problem}; {used} is used instead" for problem in store.problems)


def _step_of(path: Path) -> int:
    match = _FOLDER.fullmatch(path.name)
    assert match
    return int(match[1])


def _stamp(checkpoint: Checkpoint) -> tuple[int, ...]:
    """Return numbers that change whenever a file of the checkpoint is replaced or rewritten."""
    stamp: list[int] = []
    for name in sorted(checkpoint.files):
        try:
            # The inode as well: a file that was put in another's place may have its size and time.
            found = (checkpoint.path / name).stat()
            stamp += [found.st_ino, found.st_size, found.st_mtime_ns]
        except OSError:
            stamp.append(-1)
    return tuple(stamp)
