"""Saving checkpoints while training goes on: every rank copies what it owns to its host and writes it, nobody holds it all.

What is saved is planned once, over all ranks: which rank writes which box of which tensor. A save then
needs no communication between the trainers. Each rank copies its boxes into host buffers (on a GPU on a
stream of its own, while the next step computes), and a thread writes them into one temporary folder,
reads them back, and leaves a note. Rank 0's thread waits for all notes, writes checkpoint.json and
renames the folder. Until that rename nothing of the save is visible, and nothing older is touched
until after it.
"""

from __future__ import annotations

import _thread
import contextlib
import json
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from windtunnel.recipe import Checkpoints, UserError

from .folder import MODEL, checksum
from .one_save import OVERHEAD_BYTES, DiskFull, Facts, Group, Job, Publication, SpoiledWeights, plan_part, retry_once_back
from .retention import apply_retention, make_room
from .slices import Slice, Value
from .staging import Staging
from .store import CheckpointStore

MARGIN = 1.05
BEGIN_SECONDS = 10.0
"""After which a thread that has not begun is taken for dead."""


@dataclass(frozen=True)
class Saved:
    """A finished save. `path` is None on ranks other than 0, which only wrote their part."""

    step: int
    path: Path | None
    bytes: int
    seconds: float


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
        part_timeout: seconds rank 0 waits for the other ranks' parts; see `wait_for_parts`.
    """

    def __init__(
        self, store: CheckpointStore, parts: Mapping[str, Mapping[str, Value]], *, group: Group | None = None,
        config: Mapping[str, Any] | None = None, beside: Iterable[Path] = (), policy: Checkpoints | None = None,
        on_event: Callable[[str, int, str, str], None] | None = None, before_commit: Callable[[], None] | None = None,
        part_timeout: float = 600.0,
    ) -> None:  # fmt: skip
        self.store, self._group, self._parts = store, group or Group(), parts
        self._policy, self._on_event, self._attempt = policy, on_event, 0
        self._writing: Background | None = None
        self._outcomes: deque[Saved | Exception] = deque()
        try:
            store.folder.mkdir(parents=True, exist_ok=True)
            hashed = {path.name: checksum(path) for path in beside}
        except OSError as error:
            raise UserError(f"checkpoint folder {store.folder} cannot be made: {error.strerror or error}") from None
        if self._group.rank == 0:
            # Rank 0 holds the run's lock: nobody else writes here.
            store.clean_stale()
        # In the names of temporary folders: one that a save of this very process left is told from a dead process's.
        session = self._group.scatter([uuid.uuid4().hex[:12]] * self._group.world if self._group.rank == 0 else None)
        self._publication = Publication(store, self._group, session, dict(config or {}), hashed, before_commit, part_timeout)
        if self._group.world > 1:
            self._planned()  # all ranks together, now that they are at the same place

    def _planned(self) -> Staging:
        """Return the host buffers, once it is planned who writes what.

        Planning over all ranks is communication, which a save in the background must not have, since the trainers' collectives
        are under way. A rank alone plans when it first has to, not before the first step: what plans takes long to import.
        """
        made = self._publication
        if made.staging is None:
            from .writer import planner_of

            planners = {part: planner_of(values) for part, values in self._parts.items()}
            plans = {part: plan_part(self.store, self._group, planner) for part, planner in planners.items()}
            wanted = {  # boxes that this rank writes, as they lie on the device
                (part, item.index): cast(Tensor, planners[part].resolve_data(item)).detach()
                for part, planned in plans.items()
                for item in planned.mine.items
            }
            made.plans, made.staging = plans, Staging(wanted)
        return made.staging

    def wait_for_parts(self, seconds: float) -> None:
        """Let rank 0 wait so long for the other ranks' parts from now on."""
        self._publication.part_timeout = seconds

    def alone(self, parts: Mapping[str, Mapping[str, Value]]) -> Saver:
        """Return a saver of values that this rank has whole, into the same folder, which needs no other rank."""
        made = self._publication
        saver = Saver(self.store, parts, config=made.config, on_event=self._on_event, before_commit=made.before_commit)
        # Hashed already, and no reason to read the files again while memory or a peer is gone.
        saver._publication.beside = made.beside
        return saver

    # Before a save

    def bytes(self, parts: Sequence[str] | None = None) -> int:
        """Return about how many bytes a checkpoint takes on the disk, all ranks."""
        if self._publication.staging is None:  # of a rank alone: what it holds
            held = [value for part in parts or self._parts for value in self._parts[part].values()]
            return sum(local.numel() * local.element_size() + OVERHEAD_BYTES for local in map(local_of, held))
        plans = self._publication.plans
        return sum(plans[part].bytes for part in parts or plans)

    def check_room(self, parts: Sequence[str] | None = None) -> None:
        """Raise DiskFull unless a checkpoint and 5 % more fit on the disk."""
        free, needed = self.store.free_bytes(), round(self.bytes(parts) * MARGIN)
        if free < needed:
            # What a small model lacks would be 0.00 GiB.
            unit, size = ("GiB", 2**30) if needed >= 2**28 else ("MiB", 2**20)
            room = f"{free / size:,.2f} {unit} free; the checkpoint needs {needed / size:,.2f} {unit}"
            raise DiskFull(
                f"the disk of {self.store.folder} has {room}",
                "free space, or keep fewer: --set checkpoints.keep_last=1 --set checkpoints.keep_hourly=false",
            )

    def wanted(self) -> tuple[int, int]:
        """Return the bytes that the next checkpoint needs, and that one and all which are kept, beside what is there."""
        one, kept = round(self.bytes() * MARGIN), 0
        if self._policy is not None:
            kept = self._policy.keep_last * self.bytes() + self._policy.keep_best * self.bytes([MODEL])
        if not kept or self.store.free_bytes() > 2 * (one + kept):
            return one, one
        # A store of its own: this is asked from another thread, while checkpoints come and go.
        held = sum(checkpoint.bytes for checkpoint in CheckpointStore(self.store.folder).every())
        return one, one + max(0, kept - held)

    def room_for_last(self) -> tuple[str, ...]:
        """Return what of the run's last checkpoint can be saved, after making room for it at the cost of older ones.

        Everything if possible, else the weights alone. Only for rank 0, which tells the others; every change is an event.

        Raises:
            DiskFull: not even the weights fit, with everything deleted but the best older model.
        """
        everything = tuple(self._parts)
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
        """Return whether a save is under way."""
        return self._writing is not None and self._writing.is_alive()

    def save(self, facts: Facts, parts: Sequence[str] | None = None) -> None:
        """Begin to save and return: at once on a GPU, after copying on a CPU (and after any save still under way).

        On a GPU the values may change only after `before_update`. The outcome comes from `poll` or `wait`.

        Args:
            facts: what is stored beside the tensors; its state is copied before this returns.
            parts: what to save; None: everything.
        """
        self.wait_idle()
        staging = self._planned()
        # From here on the copy is under way; the next update waits for it on the device.
        staging.begin()
        self._attempt += 1
        folder = self.store.folder / f"step-{facts.step:08d}.tmp-{self._publication.session}-{self._attempt}"
        # Copied now: the trainer may change its state while files are written.
        own = replace(facts, state=json.loads(json.dumps(facts.state)))
        job = Job(own, folder, tuple(parts or self._parts))
        if staging.done and not staging.finite and self._group.world == 1:
            self._outcomes.append(SpoiledWeights(facts.step))  # known at once on a CPU: no step is lost on it
            return
        # Everything that a save needs is handed over: the trainer goes on and may change what it likes.
        writing = Background(lambda: self._run(staging, job))
        try:
            writing.start()
        except MemoryError as error:  # or the processes that a user may have are used up: better a pause than no save
            self._event("saved_in_place", facts.step, f"{error}: training waits while the checkpoint is written", "warn")
            self._run(staging, job)
        else:
            self._writing = writing

    def before_update(self) -> None:
        """Let the next update on the GPU wait for the copy; the host goes on."""
        if self._publication.staging is not None:
            self._publication.staging.before_update()

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
        if self._writing is not None:
            self._writing.join(timeout)

    # In the background

    def _run(self, staging: Staging, job: Job) -> None:
        began, publication = time.monotonic(), self._publication
        try:
            staging.finish()
            note = retry_once_back(lambda: publication.write(job), self.store.folder)
            path = publication.commit(job, note) if self._group.rank == 0 else None
        except Exception as error:
            failure = publication.give_up(job, error)
            if not isinstance(failure, SpoiledWeights):
                self._event("checkpoint_failed", job.facts.step, str(failure), "bad")
            self._outcomes.append(failure)
            return
        seconds, size = time.monotonic() - began, sum(file["bytes"] for file in note["files"].values())
        if path is not None:
            # Of all ranks, as planned: rank 0 has seen its own files alone.
            size = self.bytes(job.parts)
            words = f"saved {path.name}: {size / 2**20:.1f} MiB in {seconds:.2f} s"
            self._event("checkpoint", job.facts.step, words, "info")
            self._retain(job.facts.step)
        self._outcomes.append(Saved(job.facts.step, path, size, seconds))

    def _retain(self, step: int) -> None:
        if self._policy is None:
            return
        try:
            apply_retention(self.store, self._policy)
        # The checkpoint is saved; that older ones stay costs room, no work.
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


def local_of(value: Value) -> Tensor:
    """Return what this rank holds of a value."""
    local: Tensor = value.local if isinstance(value, Slice) else value
    return local


class Background:
    """Runs a function once in a thread of its own, for which the process does not wait when it ends.

    `threading.Thread.start` waits without end for a thread that has died of too little memory before its first line.

    Args:
        function: must raise nothing.
    """

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function
        self._begun, self._ended, self._lock, self._given_up = threading.Event(), threading.Event(), threading.Lock(), False

    def start(self) -> None:
        """Begin. Raises MemoryError: the system gives no thread, or the thread does not begin."""
        try:
            _thread.start_new_thread(self._work, ())
        except RuntimeError as error:
            raise MemoryError(str(error)) from None
        # A thread without memory for its stack ends before its first line, and nothing tells so.
        if not self._begun.wait(BEGIN_SECONDS):
            with self._lock:
                self._given_up = not self._begun.is_set()
            if self._given_up:
                raise MemoryError("a thread was started and did not begin")

    def is_alive(self) -> bool:
        """Return whether the function is still at work."""
        return not self._ended.is_set()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the function has returned, at most `timeout` seconds."""
        self._ended.wait(timeout)

    def _work(self) -> None:
        with self._lock:
            if self._given_up:
                return
            self._begun.set()
        try:
            self._function()
        finally:
            self._ended.set()
