"""The training loop: every rank runs it and does what rank 0's supervisor decides."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from windtunnel.recipe import UserError
from windtunnel.run import CheckpointWriter

from .job import Job
from .schedule import scalars
from .step import Pending
from .supervisor import Directive, Supervisor

AfterStep = Callable[[int, Job], None]


@dataclass(frozen=True)
class Ending:
    """How a session ended: reason, exit code and optimizer steps done over all sessions."""

    reason: str
    exit_code: int
    step: int


class Loop:
    """One rank's loop.

    Args:
        supervisor: rank 0's; None on the others.
        after_step: called after each step with the number of steps done; tests inject faults here.
    """

    def __init__(
        self,
        job: Job,
        writer: CheckpointWriter,
        supervisor: Supervisor | None,
        *,
        step: int = 0,
        after_step: AfterStep | None = None,
    ) -> None:
        self.job, self.writer, self.supervisor, self.step = job, writer, supervisor, step
        self._after_step = after_step
        self._pending: Pending | None = None
        self._since: Pending | None = None
        self._staged: tuple[int, dict[str, Any], float | None] | None = None
        self._unsaved: str | None = None

    def run(self) -> Ending:
        """Train until the supervisor says stop; the last checkpoint is on disk when this returns."""
        while True:
            directive = self._directive()
            if directive.rewind is not None:
                self._rewind(directive.rewind)
                continue
            if directive.validate:
                self._validate()
            if directive.save:
                self._stage()
            if directive.stop is not None:
                unsaved = self._finish_save()
                if self.job.ranks.share(self.supervisor.rewind_due if self.supervisor else None):
                    continue  # the last weights were spoiled
                if unsaved is not None:
                    return Ending(f"{directive.stop}; the last checkpoint could not be saved: {unsaved}", 1, self.step)
                return Ending(directive.stop, directive.exit_code, self.step)
            self._write_staged()
            self._advance(directive.progress)

    def _directive(self) -> Directive:
        decided = self.supervisor.decide(self.step, self._pending).as_dict() if self.supervisor else None
        return Directive(**self.job.ranks.share(decided))

    def _advance(self, progress: float) -> None:
        job, previous = self.job, self._pending
        recipe = job.recipe.pretrain
        now = scalars(
            recipe.schedule,
            momentum=recipe.optimizer.momentum,
            weight_decay=job.rates.weight_decay.value,
            step=self.step,
            progress=progress,
        )
        self.step += 1
        self._pending = self._since = job.run_step(job.parts, now, self.step, self._since)
        if self._after_step is not None:
            self._after_step(self.step, job)
        # The step before this one: its results are there, or nearly, while this one computes.
        if previous is not None and self.supervisor is not None:
            self.supervisor.observe(previous.result())

    def _validate(self) -> None:
        if self.supervisor:
            self.supervisor.phase("validating")
        began, self._since = time.monotonic(), None
        result = self.job.validate()
        if self.supervisor:
            self.supervisor.validation(self.step, result, time.monotonic() - began)

    def _stage(self) -> None:
        """Begin to copy the present state to the host; it is written once the copy is done."""
        self._write_staged(wait=True)
        if self.writer.busy:
            self._await_writer()
        self.job.staging.begin()
        state: dict[str, Any] = {"position": self.job.loader.position, "updates": self.job.optimizer.adamw_steps}
        loss = None
        if self.supervisor is not None:
            state |= self.supervisor.state()
            validated = self.supervisor.validated
            loss = validated[1].loss if validated is not None and validated[0] == self.step else None
            self.supervisor.saving(self.step)
        self._staged = (self.step, state, loss)

    def _write_staged(self, *, wait: bool = False) -> None:
        if self._staged is None or not (wait or self.job.staging.done):
            return
        (step, state, loss), self._staged = self._staged, None
        weights, states = self.job.staging.finish()
        if self.supervisor is not None and not self.job.staging.finite:
            self.supervisor.spoiled(step)
            return
        try:
            self.writer.start(step, weights, states, state, loss)
        except UserError as error:
            self._save_failed(error)

    def _await_writer(self) -> None:
        try:
            self.writer.wait()
        except UserError as error:
            self._save_failed(error)

    def _save_failed(self, error: UserError) -> None:
        """Training goes on without this one; the supervisor tries again later. On other ranks: rank 0 knows and tells."""
        self._unsaved = error.message
        if self.supervisor is not None:
            self.supervisor.event("checkpoint_failed", error.message, "bad", {"advice": error.fix or ""})

    def _finish_save(self) -> str | None:
        """Wait for the last checkpoint; why it could not be saved, if it could not."""
        self._unsaved = None
        if self.supervisor:
            self.supervisor.phase("saving")
        self._write_staged(wait=True)
        self._await_writer()
        return self._unsaved

    def _rewind(self, to: dict[str, Any]) -> None:
        self._staged = self._pending = self._since = None
        if to["step"]:
            self.job.load(self.writer.store.at(to["step"]), position=to["position"])
        else:
            self.job.start_over(to["position"])
        self.step = to["step"]
        if self.supervisor is not None:
            self.supervisor.rewound(self.step)
