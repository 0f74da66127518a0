"""Saving checkpoints while training goes on: every rank copies what it owns to its host and writes it, nobody holds it all.

What is saved is planned once, over all ranks: which rank writes which box of which tensor. A save then
needs no communication between the trainers. Each rank copies its boxes into host buffers (on a GPU on a
stream of its own, while the next step computes), and a thread writes them into one temporary folder,
reads them back, and leaves a note. Rank 0's thread waits for all notes, writes checkpoint.json and
renames the folder. Until that rename nothing of the save is visible, and nothing older is touched
until after it.
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan

from windtunnel.files import fsync_folder, write_atomic
from windtunnel.recipe import Checkpoints, UserError

from .folder import MODEL, Checkpoint, CheckpointStore, Written, checksum, write_manifest
from .moved import retry_once_back
from .retention import apply_retention, make_room
from .slices import Value
from .staging import Staging
from .tensors import SavePlanner
from .writer import HostPlanner, PartWriter, planner_of, write_results

MARGIN = 1.05
OVERHEAD_BYTES = 4096
"""What DCP writes beside the numbers of a box, at most."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DiskFull(UserError):
    """There is no room for a checkpoint."""


@dataclass(frozen=True)
class Group:
    """The ranks that save together: this one's number, how many, and a process group on their hosts."""

    rank: int = 0
    world: int = 1
    hosts: dist.ProcessGroup | None = None

    def gather(self, mine: Any) -> list[Any] | None:
        """Return what every rank gave, on rank 0; None elsewhere."""
        if self.world == 1:
            return [mine]
        found: list[Any] | None = [None] * self.world if self.rank == 0 else None
        dist.gather_object(mine, found, dst=0, group=self.hosts)
        return found

    def scatter(self, theirs: list[Any] | None) -> Any:
        """Return this rank's of the values that rank 0 has for each."""
        if self.world == 1:
            assert theirs is not None
            return theirs[0]
        mine: list[Any] = [None]
        dist.scatter_object_list(mine, theirs, src=0, group=self.hosts)
        return mine[0]


@dataclass(frozen=True)
class Facts:
    """What is stored with the tensors of one save.

    Attributes:
        step: optimizer steps done.
        state: what the trainer needs to go on, JSON (rank 0's counts).
        validation_loss: nats per token at this step, if measured.
        near_loss: of the last validation until then.
        score, near_score: likewise the share of held-out answers that are right, where they decide what is best.
    """

    step: int
    state: Mapping[str, Any] = field(default_factory=dict)
    validation_loss: float | None = None
    near_loss: float | None = None
    score: float | None = None
    near_score: float | None = None


@dataclass(frozen=True)
class Saved:
    """A finished save. `path` is None on ranks other than 0, which only wrote their part."""

    step: int
    path: Path | None
    bytes: int
    seconds: float


class SpoiledWeights(Exception):
    """Weights or optimizer states of a step are not finite, so that they were not saved."""

    def __init__(self, step: int) -> None:
        super().__init__(f"weights after step {step:,} are not finite")
        self.step = step


@dataclass
class _Planned:
    """One part's plan: this rank's items, and on rank 0 all ranks' and the list of tensors."""

    mine: SavePlan
    all: list[SavePlan]
    metadata: Metadata | None
    bytes: int


@dataclass(frozen=True)
class _Job:
    facts: Facts
    folder: Path
    parts: Sequence[str]


class Saver:
    """One rank's end of saving.

    All ranks call `save` for the same steps in the same order, and share the folder's disk. The thread is a daemon:
    `wait` before leaving, or the save under way is dropped (older ones stay).

    Args:
        store: where to.
        parts: what to save: `{"model": {...}, "optimizer": {...}}`, flat mappings from name to Tensor (the same on every
            rank, written once), DTensor or Slice. The tensors' memory is read at every save: they must stay where they are.
        group: the ranks; all must make their Saver together.
        config: files that describe the model, by name, as JSON.
        beside: files that belong to the checkpoint and stand in the run folder (the tokenizer's).
        policy: which checkpoints to keep (rank 0 applies it after each save); None keeps all.
        on_event: called from the background thread as on_event(kind, step, message, level).
        before_commit: called on rank 0 from the background thread before a checkpoint becomes visible.
        part_timeout: seconds rank 0 waits for the other ranks' parts; it may be changed later.
    """

    def __init__(
        self, store: CheckpointStore, parts: Mapping[str, Mapping[str, Value]], *, group: Group | None = None,
        config: Mapping[str, Any] | None = None, beside: Iterable[Path] = (), policy: Checkpoints | None = None,
        on_event: Callable[[str, int, str, str], None] | None = None, before_commit: Callable[[], None] | None = None,
        part_timeout: float = 600.0,
    ) -> None:  # fmt: skip
        self.store, self._group = store, group or Group()
        self._config, self._policy = dict(config or {}), policy
        self._on_event, self._before_commit, self.part_timeout = on_event, before_commit, part_timeout
        self._attempt = 0
        self._thread: threading.Thread | None = None
        self._outcomes: deque[Saved | Exception] = deque()
        try:
            store.folder.mkdir(parents=True, exist_ok=True)
            self._beside = {path.name: checksum(path) for path in beside}
        except OSError as error:
            raise UserError(f"checkpoint folder {store.folder} cannot be made: {error.strerror or error}") from None
        if self._group.rank == 0:
            store.clean_stale()
        # In the names of temporary folders: one that a save of this very process left is told from a dead process's.
        self._session = self._group.scatter([uuid.uuid4().hex[:12]] * self._group.world if self._group.rank == 0 else None)
        planners = {part: planner_of(values) for part, values in parts.items()}
        self._plans = {part: self._plan(planner) for part, planner in planners.items()}
        # Boxes that this rank writes, as they lie on the device. Found once: planning over all ranks is communication, which a
        # save in the background must not have, since the trainers' collectives are under way.
        wanted = {
            (part, item.index): cast(Tensor, planners[part].resolve_data(item)).detach()
            for part, planned in self._plans.items()
            for item in planned.mine.items
        }
        self._staging = Staging(wanted)

    def _plan(self, planner: SavePlanner) -> _Planned:
        """Agree with all ranks on who writes what."""
        writer = PartWriter(self.store.folder)
        everyone = self._group.gather(planner.create_local_plan())
        plans: list[SavePlan] = []
        metadata, size = None, 0
        if everyone is not None:
            plans, metadata = planner.create_global_plan(everyone)
            plans = writer.prepare_global_plan(plans)
            size = sum((item.tensor_storage_size() or 0) + OVERHEAD_BYTES for plan in plans for item in plan.items)
        sent = [(plan, size) for plan in plans]
        mine, size = self._group.scatter(sent if everyone is not None else None)
        return _Planned(mine, plans, metadata, size)

    def alone(self, parts: Mapping[str, Mapping[str, Value]]) -> Saver:
        """Return a saver of values that this rank has whole, into the same folder, which needs no other rank."""
        saver = Saver(self.store, parts, config=self._config, on_event=self._on_event, before_commit=self._before_commit)
        saver._beside = self._beside
        return saver

    # Before a save

    def bytes(self, parts: Sequence[str] | None = None) -> int:
        """Return about how many bytes a checkpoint takes on the disk, all ranks."""
        return sum(self._plans[part].bytes for part in parts or self._plans)

    def check_room(self, parts: Sequence[str] | None = None) -> None:
        """Raise DiskFull unless a checkpoint and 5 % more fit on the disk."""
        free, needed = self.store.free_bytes(), round(self.bytes(parts) * MARGIN)
        if free < needed:
            unit, size = ("GiB", 2**30) if needed >= 2**28 else ("MiB", 2**20)
            room = f"{free / size:,.2f} {unit} free; the checkpoint needs {needed / size:,.2f} {unit}"
            raise DiskFull(
                f"the disk of {self.store.folder} has {room}",
                "free space, or keep fewer: --set checkpoints.keep_last=1 --set checkpoints.keep_hourly=false",
            )

    def room_for_last(self) -> tuple[str, ...]:
        """Return what of the run's last checkpoint can be saved, after making room for it at the cost of older ones.

        Everything if possible, else the weights alone. Only for rank 0, which tells the others; every change is an event.

        Raises:
            DiskFull: not even the weights fit, with everything deleted but the best older model.
        """
        everything = tuple(self._plans)
        with contextlib.suppress(DiskFull):
            self.check_room()
            return everything
        self.wait_idle()
        try:
            made = make_room(self.store, round(self.bytes() * MARGIN))
        except OSError as error:
            raise DiskFull(f"older checkpoints in {self.store.folder} cannot be removed: {error.strerror or error}") from None
        self._event("room_made", 0, f"the disk is full; to save the last checkpoint: {made}", "warn")
        try:
            self.check_room()
            return everything
        except DiskFull:
            self.check_room([MODEL])
            self._event("weights_only", 0, "the last checkpoint is saved without optimizer states: there is no room", "warn")
            return (MODEL,)

    # Saving

    @property
    def busy(self) -> bool:
        """Whether a save is under way."""
        return self._thread is not None and self._thread.is_alive()

    def save(self, facts: Facts, parts: Sequence[str] | None = None) -> None:
        """Begin to save and return: at once on a GPU, after copying on a CPU (and after any save still under way).

        On a GPU the values may change only after `before_update`. The outcome comes from `poll` or `wait`.

        Args:
            facts: what is stored beside the tensors; its state is copied before this returns.
            parts: what to save; None: everything.
        """
        self.wait_idle()
        self._staging.begin()
        self._attempt += 1
        folder = self.store.folder / f"step-{facts.step:08d}.tmp-{self._session}-{self._attempt}"
        # Copied now: the trainer may change its state while files are written.
        own = replace(facts, state=json.loads(json.dumps(facts.state)))
        job = _Job(own, folder, tuple(parts or self._plans))
        if self._staging.done and not self._staging.finite and self._group.world == 1:
            self._outcomes.append(SpoiledWeights(facts.step))  # known at once on a CPU: no step is lost on it
            return
        self._thread = threading.Thread(target=self._run, args=(job,), name=f"checkpoint-{facts.step}", daemon=True)
        self._thread.start()

    def before_update(self) -> None:
        """Let the next update on the GPU wait for the copy; the host goes on."""
        self._staging.before_update()

    def poll(self) -> Saved | None:
        """Return the outcome of a save that has ended since the last call, if any.

        Raises:
            UserError: it failed. SpoiledWeights: it was not written, as weights are not finite.
        """
        if not self._outcomes:
            return None
        outcome = self._outcomes.popleft()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def wait(self, timeout: float | None = None) -> Saved | None:
        """Wait for the save under way, then `poll`. None when there was none or `timeout` seconds did not suffice."""
        self.wait_idle(timeout)
        return None if self.busy else self.poll()

    def wait_idle(self, timeout: float | None = None) -> None:
        """Wait for the save under way."""
        if self._thread is not None:
            self._thread.join(timeout)

    # In the background

    def _run(self, job: _Job) -> None:
        began = time.monotonic()
        try:
            self._staging.finish()
            note = retry_once_back(lambda: self._write(job), self.store.folder)
            path = self._commit(job, note) if self._group.rank == 0 else None
        except Exception as error:
            failure = self._give_up(job, error)
            if not isinstance(failure, SpoiledWeights):
                self._event("checkpoint_failed", job.facts.step, str(failure), "bad")
            self._outcomes.append(failure)
            return
        seconds, size = time.monotonic() - began, sum(file["bytes"] for file in note["files"].values())
        if path is not None:
            size = sum(self._plans[part].bytes for part in job.parts)
            words = f"saved {path.name}: {size / 2**20:.1f} MiB in {seconds:.2f} s"
            self._event("checkpoint", job.facts.step, words, "info")
            self._retain(job.facts.step)
        self._outcomes.append(Saved(job.facts.step, path, size, seconds))

    def _write(self, job: _Job) -> dict[str, Any]:
        """Write and read back this rank's files; returns, and on ranks other than 0 leaves, a note of what they are."""
        if not self._staging.finite:
            raise SpoiledWeights(job.facts.step)
        if self._group.rank == 0:
            self._remove_abandoned(job)
        note: dict[str, Any] = {"files": {}, "extents": {}}
        for part in job.parts:
            folder = job.folder / part
            # Not their parents: a run's folder that was moved must not be made again in its old place.
            for each in (job.folder.parent, job.folder, folder):
                each.mkdir(exist_ok=True)
            planner = HostPlanner(self._staging, part)
            writer = PartWriter(folder)
            results = writer.write_data(self._plans[part].mine, planner).wait()
            note["extents"][part] = [(r.storage_data.offset, r.storage_data.length) for r in results]
            for name, written in writer.files.items():
                if checksum(folder / name) != written:
                    raise OSError(errno.EIO, f"{part}/{name} does not read back as it was written")
                note["files"][f"{part}/{name}"] = written.to_json()
            fsync_folder(folder)
        if self._group.rank != 0:
            write_atomic(_note(job.folder, self._group.rank), json.dumps(note))
        return note

    def _commit(self, job: _Job, own: dict[str, Any]) -> Path:
        """Wait for all ranks' files, describe them, and give the folder its name."""
        notes = [own] + [self._await_note(job.folder, rank) for rank in range(1, self._group.world)]
        return retry_once_back(lambda: self._publish(job, notes), self.store.folder)

    def _publish(self, job: _Job, notes: Sequence[Mapping[str, Any]]) -> Path:
        """Describe what all ranks wrote, by their notes, and give the folder its name."""
        # The order from here on is what a kill at any point relies on: everything is on the disk before the folder has a name.
        if self._before_commit is not None:
            self._before_commit()
        files = {name: Written(**file) for note in notes for name, file in note["files"].items()}
        for part in job.parts:
            planned = self._plans[part]
            assert planned.metadata is not None
            results = [write_results(plan, note["extents"][part]) for plan, note in zip(planned.all, notes, strict=True)]
            writer = PartWriter(job.folder / part)
            writer.set_up_storage_writer(True)
            writer.finish(planned.metadata, results)
            files[f"{part}/.metadata"] = checksum(job.folder / part / ".metadata")
            fsync_folder(job.folder / part)
        for rank in range(1, self._group.world):
            _note(job.folder, rank).unlink(missing_ok=True)
        facts, final = job.facts, self.store.free_name(job.facts.step)
        made = Checkpoint(
            final, facts.step, self._group.world, time.time(), dict(facts.state), files, facts.validation_loss, facts.near_loss,
            self._config, self._beside, facts.score, facts.near_score,
        )  # fmt: skip
        write_manifest(made, job.folder)
        fsync_folder(job.folder)
        os.rename(job.folder, final)
        fsync_folder(self.store.folder)  # the rename itself is lost in a power cut until its folder is synchronised
        self.store.trust(made)  # every rank has read its files back
        return final

    def _await_note(self, folder: Path, rank: int) -> dict[str, Any]:
        began = time.monotonic()
        path = _note(folder, rank)
        while not path.exists():
            if time.monotonic() - began > self.part_timeout:
                raise UserError(
                    f"checkpoint {folder.name}: rank {rank} did not write its part within {self.part_timeout:g} s",
                    "every rank must see the run folder on the same disk; check that rank's log",
                )
            time.sleep(0.02)
        note: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if note.get("spoiled"):
            raise SpoiledWeights(note["spoiled"])
        if "error" in note:
            raise UserError(f"checkpoint {folder.name}: rank {rank}: {note['error']}")
        return note

    def _give_up(self, job: _Job, error: Exception) -> Exception:
        """Remove what was written of a failed save; returns why it failed in a user's words."""
        failure, step = error, job.facts.step
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
            message = f"checkpoint of step {step} in {self.store.folder} was not saved: {reason}; older ones are intact"
            failure = DiskFull(message, "free space on that disk") if error.errno in _FULL else UserError(message)
        # Rank 0's folder is everyone's; another rank takes back its own files alone, since others may still be writing.
        if self._group.rank == 0:
            shutil.rmtree(job.folder, ignore_errors=True)
        else:
            for path in job.folder.glob(f"*/__{self._group.rank}_*"):
                path.unlink(missing_ok=True)
            spoiled = step if isinstance(failure, SpoiledWeights) else None
            with contextlib.suppress(OSError):  # rank 0 then stops waiting at once
                job.folder.mkdir(exist_ok=True)
                write_atomic(_note(job.folder, self._group.rank), json.dumps({"error": str(failure), "spoiled": spoiled}))
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
        except (OSError, UserError) as error:
            self._event("retention_failed", step, f"older checkpoints could not be removed: {error}", "warn")

    def _event(self, kind: str, step: int, message: str, level: str) -> None:
        if self._on_event:
            self._on_event(kind, step, message, level)


def save_now(store: CheckpointStore, parts: Mapping[str, Mapping[str, Value]], facts: Facts, **options: Any) -> Saved:
    """Save once and wait until it is on the disk; all ranks call it together.

    Args:
        store: where to.
        parts: as of `Saver`: flat mappings from name to Tensor, DTensor or Slice.
        facts: what is stored beside the tensors.
        options: the rest of `Saver`'s arguments.

    Raises:
        UserError: it could not be written. SpoiledWeights: something in it is not finite.
    """
    saver = Saver(store, parts, **options)
    saver.save(facts)
    saved = saver.wait()
    assert saved is not None
    return saved


def _note(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank:05d}.json"
