"""Bringing a run's folder into its mirror: checkpoints first, then metrics, logs and reports as they are now."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windtunnel.checkpoint import Checkpoint, CheckpointStore, checksum
from windtunnel.recipe import UserError

from .lease import Keeper, Lease
from .snapshot import (
    BLOCK_BYTES,
    BLOCKS,
    STATE_BLOCK_BYTES,
    Block,
    Kept,
    Snapshot,
    cut,
    newest_snapshot,
    remove_unused,
    snapshot_key,
    snapshot_keys,
)
from .store import Store

UPLOADS = 4
"""Blocks on their way at a time; each is held in memory."""
SNAPSHOTS_KEPT = 2
STATE = "mirror.json"
"""In the run's folder: where its mirror is and how far it has come. Of this machine; not mirrored."""
FOR_PEOPLE = ("report.html", "recipe.yaml", "manifest.json")
_OWN = ("lock", "stop", STATE)
_NOT_NOW = (".tmp-", "-wal", "-shm", "-journal")


@dataclass(frozen=True)
class Report:
    """What one pass did.

    Attributes:
        step: of the newest checkpoint that the mirror can be gone on from. size: its bytes.
        sent: bytes. lacking: checkpoints that are damaged here, and so are not mirrored.
    """

    step: int
    size: int
    sent: int
    lacking: tuple[str, ...] = ()


class Vanished(Exception):
    """A checkpoint was removed while it was read."""


class Mirror:
    """One process's end of a mirror, under its lease.

    Args:
        run: the folder. keeper: of the lease; asked before anything is written.
    """

    def __init__(self, run: Path, store: Store, lease: Lease, keeper: Keeper) -> None:
        self._run, self._store, self._lease, self._keeper = run, store, lease, keeper
        self._checkpoints = CheckpointStore(run / "checkpoints")
        self._there: dict[str, int] | None = None
        self._sent = self._number = 0
        self._whole: dict[str, dict[str, Kept]] = {}  # checkpoint's folder -> its files, all in the store
        self._steps: dict[str, tuple[int, bool]] = {}  # the same -> its step, and whether one can go on from it
        self._stamps: dict[str, tuple[tuple[int, int], Kept]] = {}
        self._snapshots: list[tuple[str, Snapshot]] = []
        self._cleaned = False
        self._damaged: set[str] = set()

    def sync(self) -> Report:
        """Bring over what has changed.

        Raises:
            StoreError: the store failed; what was sent stays there, and the next call goes on with the rest.
            LeaseTaken: another machine has the run.
            OSError: the run's folder cannot be read.
        """
        self._keeper.require()
        self._sent = 0
        if self._there is None:
            self._look()
        self._bring_checkpoints()
        # After the checkpoints: they must not be ahead of the metrics, whose steps are not run again.
        state = self._bring_state()
        self._write_snapshot(state)
        self._remove_old()
        return Report(*self._newest(), self._sent, tuple(sorted(self._damaged)))

    def copy_for_people(self) -> None:
        """Put the report and the recipe there under their own names too. Raises StoreError."""
        for name in FOR_PEOPLE:
            if (self._run / name).is_file():
                self._keeper.require()
                self._store.put(name, (self._run / name).read_bytes())

    def _look(self) -> None:
        """Find out what is there already, of an earlier session or an upload that was cut short."""
        there = {key.removeprefix(f"{BLOCKS}/"): size for key, size in self._store.sizes(BLOCKS).items()}
        before = newest_snapshot(self._store)
        if before is not None:
            self._snapshots = [before]
        self._there = there

    # Checkpoints

    def _bring_checkpoints(self) -> None:
        """Bring over the newest first; one that has gone here goes there once a newer one is whole there."""
        # Newest first: if the machine goes away in the middle, that is the one to go on from.
        here: dict[str, Checkpoint] = {c.path.name: c for c in reversed(self._checkpoints.every())}
        for name, checkpoint in here.items():
            manifest = f"checkpoints/{name}/checkpoint.json"
            with contextlib.suppress(Vanished):
                # The manifest is small and names all files with their checksums: it tells whether anything changed.
                kept = self._small(checkpoint.path / "checkpoint.json")
                if self._whole.get(name, {}).get(manifest) == kept:
                    continue
                files = self._bring_checkpoint(checkpoint)
                if files is None:
                    self._damaged.add(name)
                    continue
                self._whole[name] = {**files, manifest: kept}
                self._steps[name] = checkpoint.step, checkpoint.has_optimizer
        # Until a newer one is whole there, the old one is the only way back.
        resumable = [step for name, (step, whole) in self._steps.items() if whole and name in here]
        for name in [name for name in self._whole if name not in here]:
            if any(step > self._steps[name][0] for step in resumable):
                del self._whole[name], self._steps[name]

    def _bring_checkpoint(self, checkpoint: Checkpoint) -> dict[str, Kept] | None:
        """Bring over the files of a checkpoint as its manifest describes them; None where one is damaged here."""
        files = {}
        for name, written in checkpoint.files.items():
            path = checkpoint.path / name
            try:
                blocks = self._large(path)
                # Afterwards, so that it is what was sent that is right; blocks of a damaged file belong to no snapshot.
                if checksum(path) != written:
                    return None
            except FileNotFoundError:
                raise Vanished from None
            files[f"checkpoints/{checkpoint.path.name}/{name}"] = Kept(written.bytes, written.checksum, blocks)
        return files

    def _large(self, path: Path) -> tuple[Block, ...]:
        """Send the blocks of a file that does not change, several at a time."""
        size = path.stat().st_size

        def send(start: int) -> Block:
            self._keeper.require()
            with open(path, "rb") as file:
                file.seek(start)
                return self._send(file.read(BLOCK_BYTES))

        # One connection does not fill a link to a store.
        with ThreadPoolExecutor(max_workers=UPLOADS) as pool:
            return tuple(pool.map(send, range(0, size, BLOCK_BYTES)))

    def _send(self, data: bytes) -> Block:
        assert self._there is not None
        block = Block.of(data)
        if self._there.get(block.name) != block.size:  # one of another size is half of it
            self._store.put(block.key, data)
            self._there[block.name] = block.size
            self._sent += block.size
        return block

    # Metrics, logs, reports

    def _bring_state(self) -> dict[str, Kept]:
        files = {}
        for path in sorted(_state_files(self._run)):
            with contextlib.suppress(FileNotFoundError, Vanished):
                files[path.relative_to(self._run).as_posix()] = self._small(path)
        return files

    def _small(self, path: Path) -> Kept:
        """Send a file as it is now; nothing where neither its size nor its time has changed."""
        try:
            found = path.stat()
            stamp = (found.st_size, found.st_mtime_ns)
            name = str(path)
            if path.suffix == ".sqlite":  # what is new may be in its WAL alone
                stamp = (stamp[0], max(stamp[1], time_of(path.with_name(f"{path.name}-wal"))))
            known = self._stamps.get(name)
            if known is not None and known[0] == stamp:
                return known[1]
            data = read_database(path) if path.suffix == ".sqlite" else path.read_bytes()
        except FileNotFoundError:
            raise Vanished from None
        self._keeper.require()
        kept = Kept(len(data), Block.of(data).name, tuple(self._send(piece) for piece in cut(data, STATE_BLOCK_BYTES)))
        self._stamps[name] = stamp, kept
        return kept

    # Snapshots

    def _newest(self) -> tuple[int, int]:
        """Return the step and bytes of the newest checkpoint that can be gone on from; zeros: there is none."""
        step, name = max(((step, name) for name, (step, whole) in self._steps.items() if whole), default=(0, ""))
        return step, sum(kept.size for kept in self._whole.get(name, {}).values())

    def _write_snapshot(self, state: dict[str, Kept]) -> None:
        files = {path: kept for whole in self._whole.values() for path, kept in whole.items()} | state
        made = Snapshot(self._run.name, self._lease.token, self._newest()[0], files)
        # Nothing changed: a snapshot more would only push out an older one.
        if self._snapshots and (self._snapshots[-1][1].files, self._snapshots[-1][1].session) == (files, made.session):
            return
        self._keeper.require()
        self._number += 1
        key = snapshot_key(self._lease.number, self._number)
        self._store.put(key, made.dump())
        self._snapshots.append((key, made))

    def _remove_old(self) -> None:
        """Remove snapshots but the last ones, and blocks that only those needed."""
        assert self._there is not None
        doomed, self._snapshots = self._snapshots[:-SNAPSHOTS_KEPT], self._snapshots[-SNAPSHOTS_KEPT:]
        if not doomed and self._cleaned:
            return
        self._keeper.require()
        kept = {key for key, _ in self._snapshots}
        for key in [key for key, _ in doomed] if self._cleaned else snapshot_keys(self._store):
            if key not in kept:
                self._store.delete(key)
        # The first time also what sessions before this one have left behind; never what another may have just brought.
        candidates = {block.name for _, snapshot in doomed for block in snapshot.blocks()} if self._cleaned else set(self._there)
        for name in remove_unused(self._store, (snapshot for _, snapshot in self._snapshots), candidates):
            self._there.pop(name, None)
        self._cleaned = True


def read_database(path: Path | str) -> bytes:
    """Return a metrics database as one consistent file, also while another process writes it; its writer waits for nothing.

    Raises:
        FileNotFoundError: it is not there.
        OSError: it cannot be read.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(path)
    try:
        with (
            contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10.0)) as source,
            contextlib.closing(sqlite3.connect(":memory:")) as copy,
        ):
            # SQLite's own copy has what is in the WAL too; a copy of the file would lack the last steps.
            source.backup(copy)
            return copy.serialize()
    except sqlite3.Error as error:
        raise OSError(f"{path}: {error}") from None


def _state_files(run: Path) -> Iterator[Path]:
    """Yield the files of a run's folder that are not checkpoints, locks or half written."""
    for folder, folders, names in os.walk(run):
        if Path(folder) == run:
            folders[:] = [name for name in folders if name != "checkpoints"]
        for name in names:
            if name not in _OWN and not any(mark in name for mark in _NOT_NOW) and not (Path(folder) / name).is_symlink():
                yield Path(folder) / name


def time_of(path: Path) -> int:
    """Return when a file, or what is in a folder, has changed, in nanoseconds; 0: it is not there."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def read_state(run: Path) -> dict[str, Any]:
    """Return what a run's folder says of its mirror: among it the sessions that wrote or restored it; {}: nothing."""
    try:
        told: dict[str, Any] = json.loads((run / STATE).read_text(encoding="utf-8"))
        return told
    except (OSError, ValueError):
        return {}


def require_same_history(run: Path, store: Store) -> None:
    """Refuse to write an older state of a run over a newer one that another machine has brought to the mirror.

    Raises:
        UserError: the mirror's newest snapshot was written by a session that this folder knows nothing of.
        StoreError: the store cannot be read.
    """
    found = newest_snapshot(store)
    if found is None:
        return
    if found[1].session not in read_state(run).get("sessions", ()):
        raise UserError(
            f"{store.place} holds a newer state of {run.name}, which another machine brought there: step {found[1].step:,}",
            f"go on from there: windtunnel train --resume {store.place} (after moving {run} out of the way)",
        )
