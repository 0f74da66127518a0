"""The callback that saves checkpoints: at its interval and at the end, retried after a full disk, never of spoiled weights."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from windtunnel.evaluate import Validation
from windtunnel.recipe import Every, UserError
from windtunnel.run import DiskFull

from .callbacks import Callback, Decision, Timer, Values
from .saver import Saver

if TYPE_CHECKING:
    from .loop import Loop

DISK_BYTES_PER_SECOND = 500e6
"""A slow disk's pace, before the first save has been measured."""
RETRY_SECONDS = 60.0


class Checkpoints(Callback):
    """Saves checkpoints. There is one on every rank; rank 0's says when.

    Args:
        saver: this rank's.
        every: the interval.
        needed: bytes that a checkpoint takes on the disk.
        facts: gives what the other callbacks want to find again.
        spoiled: told where weights that were to be saved are not finite.
    """

    def __init__(
        self, saver: Saver, every: Every, needed: int, *, facts: Callable[[], dict[str, Any]] = dict,
        spoiled: Callable[[str], None] = lambda why: None,
    ) -> None:  # fmt: skip
        self._saver, self._needed, self._facts, self._spoiled = saver, needed, facts, spoiled
        self._timer = Timer(every)
        self._saved: set[int] = set()
        self._seconds: float | None = None
        self._retry_at = 0.0
        self._loss: tuple[int, float] | None = None
        self._unsaved: str | None = None

    def start(self, loop: Loop) -> None:
        """Begin; what a run goes on from is saved already."""
        super().start(loop)
        self._timer.step = loop.step
        self._saved = {loop.step} if loop.step else set()

    # Deciding, on rank 0

    def propose(self, step: int, decision: Decision) -> None:
        """Ask for a save when one is due and none is under way."""
        self._collect()
        if self._timer.due(step) and not self._saver.busy and time.monotonic() >= self._retry_at:
            decision.save = True

    def settle(self, step: int, decision: Decision) -> None:
        """Ask for one at the end, unless this step is saved; drop it where there is no room."""
        if step and decision.stop is not None and step not in self._saved:
            decision.save = True
        if not decision.save:
            return
        try:
            self._saver.writer.check_room(self._needed)
        except DiskFull as error:
            self._retry_at = time.monotonic() + RETRY_SECONDS
            self.loop.journal.event("disk_full", error.message, "bad", {"advice": error.fix or ""})
            decision.save = False
            if decision.stop is not None:
                decision.stop = f"{decision.stop}; the last checkpoint could not be saved: no room on the disk"
                decision.exit_code = 1

    def validated(self, step: int, result: Validation, values: Values, seconds: float) -> None:
        """Remember the loss that a checkpoint of this step carries."""
        self._loss = step, result.loss

    def reserve(self) -> float:
        """Return the seconds of the last save."""
        return self._seconds if self._seconds is not None else 1.0 + self._needed / DISK_BYTES_PER_SECOND

    def newest(self) -> int:
        """Wait for a save under way; the step of the newest good checkpoint, 0 where there is none."""
        self._await_writer()
        checkpoint = self._saver.newest()
        return checkpoint.step if checkpoint else 0

    # Doing, on every rank

    def begin(self, step: int) -> None:
        """Begin to copy the present state to the host; it is written once the copy is done."""
        self._write()
        if self._saver.busy:
            self._await_writer()
        loss = self._loss[1] if self._loss is not None and self._loss[0] == step else None
        self._saver.begin(step, self.loop.engine.state_dict(), self._facts(), loss)
        self._timer.done(step)
        self._saved.add(step)

    def go_on(self) -> None:
        """Write what has been copied, if the copy is done."""
        if self._saver.copied:
            self._write()

    def finish(self) -> str | None:
        """Wait for the last checkpoint; why it could not be saved, if it could not."""
        self._unsaved = None
        self._write()
        self._await_writer()
        return self._unsaved

    def last(self, step: int) -> str | None:
        """Save `step`, unless it is saved, and wait; why that failed, if it did."""
        if step not in self._saved:
            try:
                self.begin(step)
            except (MemoryError, RuntimeError) as error:
                return str(error).partition("\n")[0]
        return self.finish() or (None if step in self._saved else "its weights are not finite")

    def load(self, step: int, **changes: Any) -> dict[str, Any]:
        """Go to the checkpoint of a step; a save that was not yet written is dropped. See `Saver.load`."""
        self._saver.drop()
        return self._saver.load(step, changes)

    def rewound(self, step: int) -> None:
        """Forget what was saved after `step`."""
        self._saver.drop()
        self._saved = {saved for saved in self._saved if saved <= step}

    def _write(self) -> None:
        try:
            spoiled = self._saver.write()
        except UserError as error:
            self._failed(error)
            return
        if spoiled is not None:
            self._saved.discard(spoiled)
            self._spoiled(f"weights after step {spoiled:,} are not finite")

    def _await_writer(self) -> None:
        try:
            saved = self._saver.wait()
        except UserError as error:
            self._failed(error)
            return
        if saved is not None:
            self._seconds = saved.seconds

    def _collect(self) -> None:
        try:
            saved = self._saver.poll()
        except Exception as error:
            self.loop.journal.event("checkpoint_failed", f"checkpoint not saved: {error}", "bad")
            return
        if saved is not None:
            self._seconds = saved.seconds

    def _failed(self, error: UserError) -> None:
        """Training goes on without this one, which is tried again later."""
        self._unsaved = error.message
        self.loop.journal.event("checkpoint_failed", error.message, "bad", {"advice": error.fix or ""})
