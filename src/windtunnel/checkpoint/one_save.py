"""One save, from the host buffers to a folder with a name: each rank writes and reads back its files, rank 0 publishes them all.

A rank leaves a note of what it wrote; rank 0 waits for all notes, writes checkpoint.json and renames the folder. Until that
rename nothing of the save is visible. PyTorch's Distributed Checkpoint, which takes a second to import, is imported when the
first save is planned.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch.distributed as dist

from windtunnel.files import fsync_folder, write_atomic
from windtunnel.recipe import UserError

from .folder import Checkpoint, Written, checksum, write_manifest
from .staging import Staging
from .store import CheckpointStore

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata
    from torch.distributed.checkpoint.planner import SavePlan

    from .tensors import SavePlanner

OVERHEAD_BYTES = 4096
"""What DCP writes beside the numbers of a box, at most."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)
WAIT_SECONDS = 30.0
"""For a run's folder that was moved, or a link to it, to come back to the old place: `mv` to another disk takes long."""

T = TypeVar("T")


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


class SpoiledWeights(Exception):
    """Weights or optimizer states of a step are not finite, so that they were not saved."""

    def __init__(self, step: int) -> None:
        super().__init__(f"weights after step {step:,} are not finite")
        self.step = step


@dataclass
class Planned:
    """One part's plan: this rank's items, and on rank 0 all ranks' and the list of tensors."""

    mine: SavePlan
    all: list[SavePlan]
    metadata: Metadata | None
    bytes: int


@dataclass(frozen=True)
class Job:
    """A save: what is stored beside the tensors, the temporary folder that it is written to, and its parts."""

    facts: Facts
    folder: Path
    parts: Sequence[str]


@dataclass
class Publication:
    """What all saves of a `Saver` have in common, and how one of them is written and published.

    Attributes:
        store: where to.
        group: the ranks.
        session: in the names of temporary folders; see `Saver`.
        config, beside, before_commit, part_timeout: see `Saver`.
        plans: of each part; staging: the host buffers. Both are made for the first save.
    """

    store: CheckpointStore
    group: Group
    session: str
    config: dict[str, Any]
    beside: dict[str, Written]
    before_commit: Callable[[], None] | None
    part_timeout: float
    plans: Mapping[str, Planned] = field(default_factory=dict)
    staging: Staging | None = None

    def write(self, job: Job) -> dict[str, Any]:
        """Write and read back this rank's files; returns, and on ranks other than 0 leaves, a note of what they are."""
        assert self.staging is not None
        # Before anything is written: spoiled weights must not push good ones out of the folder.
        if not self.staging.finite:
            raise SpoiledWeights(job.facts.step)
        if self.group.rank == 0:
            self._remove_abandoned(job)
        from .writer import HostPlanner, PartWriter

        note: dict[str, Any] = {"files": {}, "extents": {}}
        for part in job.parts:
            folder = job.folder / part
            # Not their parents: a run's folder that was moved must not be made again in its old place.
            for each in (job.folder.parent, job.folder, folder):
                each.mkdir(exist_ok=True)
            planner = HostPlanner(self.staging, part)
            writer = PartWriter(folder)
            results = writer.write_data(self.plans[part].mine, planner).wait()
            note["extents"][part] = [(r.storage_data.offset, r.storage_data.length) for r in results]
            for name, written in writer.files.items():
                # Read back from the disk at once: what is damaged now can be saved again, later it cannot.
                if checksum(folder / name) != written:
                    raise OSError(errno.EIO, f"{part}/{name} does not read back as it was written")
                note["files"][f"{part}/{name}"] = written.to_json()
            fsync_folder(folder)
        if self.group.rank != 0:
            # By a file, not by a message: trainers' collectives are under way, and a second user of their group would mix
            # with them.
            write_atomic(_note(job.folder, self.group.rank), json.dumps(note))
        return note

    def commit(self, job: Job, own: dict[str, Any]) -> Path:
        """Wait for all ranks' files, describe them, and give the folder its name."""
        notes = [own] + [self._await_note(job.folder, rank) for rank in range(1, self.group.world)]
        return retry_once_back(lambda: self._publish(job, notes), self.store.folder)

    def _publish(self, job: Job, notes: Sequence[Mapping[str, Any]]) -> Path:
        """Describe what all ranks wrote, by their notes, and give the folder its name."""
        from .writer import PartWriter, write_results

        # The order from here on is what a kill at any point relies on: everything is on the disk before the folder has a name.
        if self.before_commit is not None:
            self.before_commit()
        files = {name: Written(**file) for note in notes for name, file in note["files"].items()}
        for part in job.parts:
            planned = self.plans[part]
            assert planned.metadata is not None
            # DCP's list of where each tensor lies, put together from what every rank noted.
            results = [write_results(plan, note["extents"][part]) for plan, note in zip(planned.all, notes, strict=True)]
            writer = PartWriter(job.folder / part)
            writer.set_up_storage_writer(True)
            writer.finish(planned.metadata, results)
            files[f"{part}/.metadata"] = checksum(job.folder / part / ".metadata")
            fsync_folder(job.folder / part)
        for rank in range(1, self.group.world):
            _note(job.folder, rank).unlink(missing_ok=True)
        facts, final = job.facts, self.store.free_name(job.facts.step)
        made = Checkpoint(
            final, facts.step, self.group.world, time.time(), dict(facts.state), files, facts.validation_loss, facts.near_loss,
            self.config, self.beside, facts.score, facts.near_score,
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
        # Another rank failed: its words are the ones that help.
        if "error" in note:
            raise UserError(f"checkpoint {folder.name}: rank {rank}: {note['error']}")
        return note

    def give_up(self, job: Job, error: Exception) -> Exception:
        """Remove what was written of a failed save; returns why it failed in a user's words."""
        failure, step = error, job.facts.step
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
            message = f"checkpoint of step {step} in {self.store.folder} was not saved: {reason}; older ones are intact"
            failure = DiskFull(message, "free space on that disk") if error.errno in _FULL else UserError(message)
        # Rank 0's folder is everyone's; another rank takes back its own files alone, since others may still be writing.
        if self.group.rank == 0:
            shutil.rmtree(job.folder, ignore_errors=True)
        else:
            for path in job.folder.glob(f"*/__{self.group.rank}_*"):
                path.unlink(missing_ok=True)
            spoiled = step if isinstance(failure, SpoiledWeights) else None
            with contextlib.suppress(OSError):  # rank 0 then stops waiting at once
                job.folder.mkdir(exist_ok=True)
                write_atomic(_note(job.folder, self.group.rank), json.dumps({"error": str(failure), "spoiled": spoiled}))
        return failure

    def _remove_abandoned(self, job: Job) -> None:
        for path in self.store.folder.glob(f"step-*.tmp-{self.session}-*"):
            # A save of this session that failed and could not remove its folder, such as on a disk that was away.
            if path != job.folder:
                shutil.rmtree(path, ignore_errors=True)


def plan_part(store: CheckpointStore, group: Group, planner: SavePlanner) -> Planned:
    """Agree with all ranks on who writes what."""
    from .writer import PartWriter

    writer = PartWriter(store.folder)
    # DCP leaves the choice of who writes what is on every rank to rank 0, which sees all plans.
    everyone = group.gather(planner.create_local_plan())
    plans: list[SavePlan] = []
    metadata, size = None, 0
    if everyone is not None:
        plans, metadata = planner.create_global_plan(everyone)
        plans = writer.prepare_global_plan(plans)
        size = sum((item.tensor_storage_size() or 0) + OVERHEAD_BYTES for plan in plans for item in plan.items)
    # The whole size goes along: every rank tells how large a checkpoint is.
    sent = [(plan, size) for plan in plans]
    mine, size = group.scatter(sent if everyone is not None else None)
    return Planned(mine, plans, metadata, size)


def _note(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank:05d}.json"


def retry_once_back(attempt: Callable[[], T], folder: Path) -> T:
    """Return what an attempt returns; one that failed because the folder was gone is made once more when it is back.

    Args:
        attempt: writes into the folder, and may be made twice.
        folder: that may be moved, and linked to from its old place, in the meantime.

    Raises:
        OSError: both attempts failed, or the first one for another reason.
    """
    try:
        return attempt()
    except OSError as error:
        if error.errno not in _GONE:
            raise
        until = time.monotonic() + WAIT_SECONDS
        while not folder.is_dir() and time.monotonic() < until:
            time.sleep(0.05)
        return attempt()
