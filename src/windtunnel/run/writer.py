"""Saving checkpoints in the background: the step loop hands over host arrays and goes on.

Every rank streams its files into one temporary folder; rank 0 waits for all parts, writes
checkpoint.json and renames the folder. Until that rename nothing of the save is visible, and
nothing older is touched until after it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.recipe import Checkpoints, UserError

from .files import fsync_folder, write_json
from .retention import apply_retention
from .store import MODEL_FILE, Checkpoint, CheckpointStore, optimizer_file, write_manifest
from .tensors import Written, file_bytes, write_tensors

MARGIN = 1.05
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DiskFull(UserError):
    """There is no room for a checkpoint. Nothing older was touched."""


@dataclass(frozen=True)
class Saved:
    """A finished save. `path` is None on ranks other than 0, which only wrote their part."""

    step: int
    path: Path | None
    bytes: int
    seconds: float


@dataclass(frozen=True)
class _Job:
    step: int
    folder: Path
    weights: Mapping[str, np.ndarray] | None
    optimizer: Mapping[str, np.ndarray]
    state: dict[str, Any]
    validation_loss: float | None


class CheckpointWriter:
    """One rank's end of saving.

    All ranks call `start` for the same saves in the same order, and share the folder's disk. The
    thread is a daemon: `wait` before leaving, or the save under way is dropped (older ones stay).

    Args:
        store: where to.
        rank, world: this process and how many there are.
        policy: which checkpoints to keep (rank 0 applies it after each save); None keeps all.
        session: text shared by the ranks of one launch and no other; None: from torchrun's environment.
        on_event: called from the background thread as on_event(kind, step, message, level).
        before_commit: called on rank 0 from the background thread before a checkpoint becomes visible.
        part_timeout: seconds rank 0 waits for the other ranks' parts.
    """

    def __init__(
        self,
        store: CheckpointStore,
        rank: int = 0,
        world: int = 1,
        *,
        policy: Checkpoints | None = None,
        session: str | None = None,
        on_event: Callable[[str, int, str, str], None] | None = None,
        before_commit: Callable[[], None] | None = None,
        part_timeout: float = 600.0,
    ) -> None:
        assert 0 <= rank < world
        self.store, self.rank, self.world = store, rank, world
        self._policy, self._on_event, self._part_timeout = policy, on_event, part_timeout
        self._before_commit = before_commit
        self._session = session or _session(world)
        self._attempt = 0
        self._thread: threading.Thread | None = None
        self._outcomes: deque[Saved | BaseException] = deque()
        try:
            store.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"checkpoint folder {store.folder} cannot be made: {error.strerror or error}") from None
        if rank == 0:
            store.clean_stale()

    @property
    def busy(self) -> bool:
        """Whether a save is under way; until it is not, the arrays given to `start` must not change."""
        return self._thread is not None and self._thread.is_alive()

    def start(
        self,
        step: int,
        weights: Mapping[str, np.ndarray] | None,
        optimizer: Mapping[str, np.ndarray],
        state: dict[str, Any],
        validation_loss: float | None = None,
    ) -> None:
        """Begin to save and return at once (after any save still under way has ended).

        Args:
            step: optimizer steps done.
            weights: on rank 0 all weights by name; None elsewhere.
            optimizer: this rank's states, 1-D, by 'parameter|state|start:stop'.
            state: what the trainer needs to go on, JSON (rank 0's counts).
            validation_loss: nats per token at this step, if measured.

        Raises:
            DiskFull: there is not room for the save; nothing was written.
        """
        assert (weights is not None) == (self.rank == 0)
        if self._thread is not None:
            self._thread.join()
        self._attempt += 1
        mine = file_bytes(optimizer) + (file_bytes(weights) if weights is not None else 0)
        others = file_bytes(optimizer) * (self.world - 1) if self.rank == 0 else 0
        self.check_room(mine + others)
        folder = self.store.folder / f"step-{step:08d}.tmp-{self._session}-{self._attempt}"
        text = json.dumps(state)  # now: the trainer may change its state while files are written
        job = _Job(step, folder, weights, optimizer, json.loads(text), validation_loss)
        self._thread = threading.Thread(target=self._run, args=(job,), name=f"checkpoint-{step}", daemon=True)
        self._thread.start()

    def check_room(self, needed: int) -> None:
        """Raise DiskFull unless `needed` bytes and 5 % more are free."""
        free = self.store.free_bytes()
        if free < needed * MARGIN:
            unit, size = ("GiB", 2**30) if needed >= 2**28 else ("MiB", 2**20)
            room = f"{free / size:,.2f} {unit} free; the checkpoint needs {needed * MARGIN / size:,.2f} {unit}"
            raise DiskFull(
                f"the disk of {self.store.folder} has {room}",
                "free space, or keep fewer: --set checkpoints.keep_last=1 --set checkpoints.keep_hourly=false",
            )

    def poll(self) -> Saved | None:
        """The outcome of a save that has ended since the last call, if any. Raises what went wrong with it (UserError)."""
        if not self._outcomes:
            return None
        outcome = self._outcomes.popleft()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def wait(self, timeout: float | None = None) -> Saved | None:
        """Wait for the save under way, then `poll`. None when there was none or `timeout` seconds did not suffice."""
        if self._thread is not None:
            self._thread.join(timeout)
            if self._thread.is_alive():
                return None
        return self.poll()

    def _run(self, job: _Job) -> None:
        began = time.monotonic()
        try:
            files = self._write_part(job)
            path = self._commit(job, files) if self.rank == 0 else None
            size = sum(f.bytes for f in files.values())
        except BaseException as error:
            failure = self._give_up(job, error)
            self._event("checkpoint_failed", job.step, str(failure), "bad")
            self._outcomes.append(failure)
            return
        seconds = time.monotonic() - began
        if path is not None:
            self._event("checkpoint", job.step, f"saved {path.name}: {size / 2**20:.1f} MiB in {seconds:.2f} s", "info")
            self._retain(job.step)
        self._outcomes.append(Saved(job.step, path, size, seconds))

    def _write_part(self, job: _Job) -> dict[str, Written]:
        if self.rank == 0:
            self._remove_abandoned(job)
        job.folder.mkdir(exist_ok=True)
        files = {}
        if job.weights is not None:
            files[MODEL_FILE] = write_tensors(job.folder / MODEL_FILE, job.weights)
        if job.optimizer:
            name = optimizer_file(self.rank, self.world)
            files[name] = write_tensors(job.folder / name, job.optimizer)
        if self.rank != 0:
            part = {name: {"bytes": f.bytes, "checksum": f.checksum} for name, f in files.items()}
            write_json(_part(job.folder, self.rank), {"files": part})
        return files

    def _commit(self, job: _Job, files: dict[str, Written]) -> Path:
        parts = [self._await_part(job.folder, rank) for rank in range(1, self.world)]
        if self._before_commit is not None:
            self._before_commit()
        for part in parts:
            files.update({name: Written(f["bytes"], f["checksum"]) for name, f in part.items()})
        for rank in range(1, self.world):
            _part(job.folder, rank).unlink()
        final = self.store.free_name(job.step)
        write_manifest(Checkpoint(final, job.step, self.world, job.validation_loss, time.time(), job.state, files), job.folder)
        fsync_folder(job.folder)
        os.rename(job.folder, final)
        fsync_folder(self.store.folder)
        return final

    def _await_part(self, folder: Path, rank: int) -> dict[str, Any]:
        limit = time.monotonic() + self._part_timeout
        path = _part(folder, rank)
        while not path.exists():
            if time.monotonic() > limit:
                raise UserError(
                    f"checkpoint {folder.name}: rank {rank} did not write its part within {self._part_timeout:g} s",
                    "every rank must see the run folder on the same disk; check that rank's log",
                )
            time.sleep(0.02)
        part: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if "error" in part:
            raise UserError(f"checkpoint {folder.name}: rank {rank}: {part['error']}")
        return dict(part["files"])

    def _give_up(self, job: _Job, error: BaseException) -> BaseException:
        """Remove what was written of a failed save and say why in a user's words."""
        failure = error
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
            message = f"checkpoint of step {job.step} in {self.store.folder} was not saved: {reason}; older ones are intact"
            failure = DiskFull(message, "free space on that disk") if error.errno in _FULL else UserError(message)
        if self.rank == 0:
            shutil.rmtree(job.folder, ignore_errors=True)
        else:
            (job.folder / optimizer_file(self.rank, self.world)).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # rank 0 then stops waiting at once
                write_json(_part(job.folder, self.rank), {"error": str(failure)})
        return failure

    def _remove_abandoned(self, job: _Job) -> None:
        for path in self.store.folder.glob(f"step-*.tmp-{self._session}-*"):
            if path != job.folder:
                shutil.rmtree(path, ignore_errors=True)

    def _retain(self, step: int) -> None:
        if self._policy is None:
            return
        try:
            apply_retention(self.store, self._policy)
        except OSError as error:
            self._event("retention_failed", step, f"older checkpoints could not be removed: {error}", "warn")

    def _event(self, kind: str, step: int, message: str, level: str) -> None:
        if self._on_event:
            self._on_event(kind, step, message, level)


def _part(folder: Path, rank: int) -> Path:
    return folder / f"part-{rank:05d}.json"


def _session(world: int) -> str:
    if world == 1:
        return uuid.uuid4().hex[:12]
    names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT")
    found = "-".join(os.environ.get(name, "") for name in names)
    assert found.strip("-"), "several ranks need a `session` that they share"
    return "".join(c if c.isalnum() or c == "-" else "_" for c in found)
