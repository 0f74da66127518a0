"""Which checkpoints stay: the last N, the best K, one an hour; optimizer states only with the last N.

The last N all keep their optimizer states: were the newest damaged, the one before must still
resume exactly. What is damaged does not count: each new checkpoint is read back and verified before
an older one may go. Safe under SIGKILL at any point: a folder is renamed out of the way before it is
deleted, and a checkpoint forgets its optimizer files before they go.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from windtunnel.files import fsync_folder
from windtunnel.recipe import Checkpoints

from .folder import OPTIMIZER, Checkpoint, write_manifest
from .store import CheckpointStore


@dataclass(frozen=True)
class Retained:
    """What was removed: names of folders deleted, and of those reduced to weights."""

    deleted: tuple[str, ...] = ()
    reduced: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = []
        if self.deleted:
            parts.append(f"deleted {', '.join(self.deleted)}")
        if self.reduced:
            parts.append(f"dropped the optimizer states of {', '.join(self.reduced)}")
        return "; ".join(parts) or "nothing could be deleted"


def choose(checkpoints: Sequence[Checkpoint], policy: Checkpoints) -> tuple[set[Path], set[Path]]:
    """Return the paths to keep, and the part of them that keeps optimizer states. `checkpoints` oldest first."""
    full = {c.path for c in checkpoints[-policy.keep_last :]}
    keep = set(full)
    # Where held-out answers decide, a checkpoint without answers of its own is among the best of nothing.
    answers = any(c.score is not None for c in checkpoints)
    scored = [c for c in checkpoints if (c.score if answers else c.validation_loss) is not None]
    keep |= {c.path for c in sorted(scored, key=lambda c: c.standing)[: policy.keep_best]}
    if policy.keep_hourly:
        first: dict[int, Path] = {}
        for c in checkpoints:  # the first of each hour: that choice never changes later
            first.setdefault(int(c.created // 3600), c.path)
        keep |= set(first.values())
    return keep, full


def apply_retention(store: CheckpointStore, policy: Checkpoints) -> Retained:
    """Delete and reduce what the policy does not keep; damaged folders are left alone. Raises OSError."""
    # What is damaged takes no place among the last N: it would push a good one out.
    sound = [c for c in store.all() if store.is_good(c)]
    if not sound:
        return Retained()
    keep, full = choose(sound, policy)
    # Optimizer states are most of a checkpoint's bytes, and nobody goes on from an old one.
    reduced = [c for c in sound if c.path in keep - full and c.has_optimizer]
    for checkpoint in reduced:
        _drop_optimizer(checkpoint)
    doomed = [c for c in sound if c.path not in keep] + _shadowed(store, sound)
    _delete(store, doomed)
    for checkpoint in sound:  # files that a checkpoint forgot just before a kill
        if not checkpoint.has_optimizer:
            shutil.rmtree(checkpoint.path / OPTIMIZER, ignore_errors=True)
    return Retained(tuple(c.path.name for c in doomed), tuple(c.path.name for c in reduced))


def make_room(store: CheckpointStore, needed: int) -> Retained:
    """Delete what is least worth keeping until `needed` bytes are free, for the last checkpoint of a run.

    In this order: damaged ones, optimizer states of all but the newest, older weights, the newest one's optimizer
    states, its weights. The best checkpoint's weights stay whatever happens, so that a save that fails after this
    loses no model. Raises OSError.
    """
    deleted: list[str] = []
    reduced: list[str] = []
    for checkpoint, whole in _least_worth_first(store):
        if store.free_bytes() >= needed:
            break
        if whole:
            _delete(store, [checkpoint])
            deleted.append(checkpoint.path.name)
        else:
            _drop_optimizer(checkpoint)
            reduced.append(checkpoint.path.name)
    return Retained(tuple(deleted), tuple(name for name in reduced if name not in deleted))


def _least_worth_first(store: CheckpointStore) -> Iterator[tuple[Checkpoint, bool]]:
    """Yield (checkpoint, whether all of it goes or its optimizer states alone)."""
    good = [c for c in store.all() if store.is_good(c)]
    for checkpoint in store.every():
        if not store.is_good(checkpoint):
            yield checkpoint, True
    for checkpoint in _shadowed(store, good):
        if store.is_good(checkpoint):
            yield checkpoint, True
    best = store.best()
    if best is None:
        return
    for checkpoint in good[:-1]:
        if checkpoint.has_optimizer:
            yield checkpoint, False
    for checkpoint in good[:-1]:
        if checkpoint.path != best.path:
            yield checkpoint, True
    if good[-1].has_optimizer:
        yield good[-1], False
    if good[-1].path != best.path:
        yield good[-1], True


def _shadowed(store: CheckpointStore, checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Return sound checkpoints of the same steps as these that were saved earlier."""
    # The same step saved again: only the later save is asked for by anybody.
    paths, steps = {c.path for c in checkpoints}, {c.step for c in checkpoints}
    return [c for c in store.every() if c.path not in paths and c.step in steps]


def _delete(store: CheckpointStore, checkpoints: Sequence[Checkpoint]) -> None:
    for checkpoint in checkpoints:
        # Deleting a folder takes many steps: under this name no reader takes what is left of it for a checkpoint.
        away = checkpoint.path.with_name(f"{checkpoint.path.name}.tmp-delete-{os.getpid()}")
        os.rename(checkpoint.path, away)
        shutil.rmtree(away, ignore_errors=True)
    if checkpoints:
        fsync_folder(store.folder)


def _drop_optimizer(checkpoint: Checkpoint) -> None:
    # The manifest first: a kill in between leaves files that nobody knows of, not a manifest whose files are missing.
    kept = {name: f for name, f in checkpoint.files.items() if not name.startswith(f"{OPTIMIZER}/")}
    write_manifest(replace(checkpoint, files=kept), checkpoint.path)
    shutil.rmtree(checkpoint.path / OPTIMIZER, ignore_errors=True)
