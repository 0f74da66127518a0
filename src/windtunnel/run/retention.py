"""Which checkpoints stay: the last N, the best K, one an hour; optimizer states only with the last N.

The last N all keep their optimizer states: were the newest damaged, the one before must still
resume exactly. What is damaged does not count: each new checkpoint is read back and verified before
an older one may go. Safe under SIGKILL at any point: a folder is renamed out of the way before it is
deleted, and a checkpoint forgets its optimizer files before they go. Damaged folders are left alone.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from windtunnel.recipe import Checkpoints

from .files import fsync_folder
from .store import Checkpoint, CheckpointStore, write_manifest


@dataclass(frozen=True)
class Retained:
    """What a pass of `apply_retention` did: names of folders deleted, and of those reduced to weights."""

    deleted: tuple[str, ...]
    reduced: tuple[str, ...]


@dataclass(frozen=True)
class DiskNeed:
    """Bytes on disk: `peak` while one more checkpoint is being written, `kept` after it."""

    peak: int
    kept: int


def choose(checkpoints: Sequence[Checkpoint], policy: Checkpoints) -> tuple[set[Path], set[Path]]:
    """Paths to keep, and the part of them that keeps optimizer states. `checkpoints` oldest first."""
    full = {c.path for c in checkpoints[-policy.keep_last :]}
    keep = set(full)
    scored = [c for c in checkpoints if c.validation_loss is not None]
    keep |= {c.path for c in sorted(scored, key=lambda c: (c.validation_loss, -c.step))[: policy.keep_best]}
    if policy.keep_hourly:
        first: dict[int, Path] = {}
        for c in checkpoints:  # the first of each hour: that choice never changes later
            first.setdefault(int(c.created // 3600), c.path)
        keep |= set(first.values())
    return keep, full


def apply_retention(store: CheckpointStore, policy: Checkpoints) -> Retained:
    """Delete and reduce what the policy does not keep. Raises OSError."""
    sound = [c for c in store.all() if store.is_good(c)]
    if not sound:
        return Retained((), ())
    keep, full = choose(sound, policy)
    reduced = [c for c in sound if c.path in keep - full and c.has_optimizer]
    for checkpoint in reduced:
        _drop_optimizer(checkpoint)
    doomed = [c.path for c in sound if c.path not in keep] + store.shadowed_by(sound)
    for path in doomed:
        away = path.with_name(f"{path.name}.tmp-delete-{os.getpid()}")
        os.rename(path, away)
        shutil.rmtree(away, ignore_errors=True)
    if doomed:
        fsync_folder(store.folder)
    _forgotten_files(sound)
    return Retained(tuple(p.name for p in doomed), tuple(c.path.name for c in reduced))


def disk_needed(policy: Checkpoints, weights_bytes: int, optimizer_bytes: int, hours: float) -> DiskNeed:
    """Disk for checkpoints over a run of `hours`; sizes in bytes summed over ranks."""
    hourly = math.ceil(max(0.0, hours)) + 1 if policy.keep_hourly else 0  # a run may begin late in a clock hour
    kept = policy.keep_last * (weights_bytes + optimizer_bytes) + (policy.keep_best + hourly) * weights_bytes
    return DiskNeed(kept + weights_bytes + optimizer_bytes, kept)


def _drop_optimizer(checkpoint: Checkpoint) -> None:
    names = [name for name in checkpoint.files if name.startswith("optimizer-")]
    slim = replace(checkpoint, files={n: f for n, f in checkpoint.files.items() if n not in names})
    write_manifest(slim, checkpoint.path)
    for name in names:
        (checkpoint.path / name).unlink(missing_ok=True)


def _forgotten_files(checkpoints: Sequence[Checkpoint]) -> None:
    """Optimizer files whose checkpoint forgot them just before a kill."""
    for checkpoint in checkpoints:
        if not checkpoint.has_optimizer and checkpoint.path.exists():
            for path in checkpoint.path.glob("optimizer-*"):
                path.unlink(missing_ok=True)
