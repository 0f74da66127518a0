"""The training loop: every rank runs it and does what rank 0's callbacks decide."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .callbacks import RESERVE, Budget, Callback, Decision, Health
from .engine import Engine, Pending, StepResult
from .ranks import Ranks
from .telemetry import Journal, validation_readings

if TYPE_CHECKING:
    from .checkpoints import Checkpoints

AfterStep = Callable[[int, Engine], None]


@dataclass(frozen=True)
class Ending:
    """How a session ended: reason, exit code and optimizer steps done over all sessions."""

    reason: str
    exit_code: int
    step: int


@dataclass(frozen=True)
class Deciders:
    """Rank 0's callbacks that decide, beside checkpoints: how to go on, and when to end."""

    health: Health
    budget: Budget


class Loop:
    """One rank's loop.

    Args:
        checkpoints: this rank's.
        callbacks: rank 0's, in the order in which they are called, `checkpoints` among them; empty elsewhere.
        deciders: two of them; None elsewhere.
        step: steps that are done.
        after_step: called after each step with the number of steps done; tests inject faults here.
    """

    def __init__(
        self,
        engine: Engine,
        ranks: Ranks,
        checkpoints: Checkpoints,
        callbacks: Sequence[Callback] = (),
        deciders: Deciders | None = None,
        *,
        journal: Journal | None = None,
        step: int = 0,
        after_step: AfterStep | None = None,
    ) -> None:
        assert (deciders is not None) == ranks.first
        self.engine, self.checkpoints, self.step = engine, checkpoints, step
        self.journal = journal or Journal()
        self._ranks, self._callbacks, self._deciders = ranks, list(callbacks), deciders
        self._after_step = after_step
        self._pending: Pending | None = None
        self._since: Pending | None = None
        self._observed = step
        for callback in self._callbacks or [checkpoints]:
            callback.start(self)

    def run(self) -> Ending:
        """Train until a callback says stop; the last checkpoint is on disk when this returns."""
        while True:
            decision = self._decide()
            if decision.rewind is not None:
                self._rewind(decision.rewind["step"], decision.rewind["position"])
                continue
            if decision.validate:
                self._validate()
            if decision.save:
                self.checkpoints.begin(self.step)
            if decision.stop is not None:
                self.journal.phase("saving")
                unsaved = self.checkpoints.finish()
                if self._ranks.share(self._deciders.health.rewind_due if self._deciders else None):
                    continue  # the last weights were spoiled
                if unsaved is not None:
                    return Ending(f"{decision.stop}; the last checkpoint could not be saved: {unsaved}", 1, self.step)
                return Ending(decision.stop, decision.exit_code, self.step)
            self.checkpoints.go_on()
            self._advance(decision.progress)

    def reserve(self) -> float:
        """Return the seconds to keep free for what comes after the last step."""
        return RESERVE * sum(callback.reserve() for callback in self._callbacks)

    def progress(self, step: int) -> float:
        """Return the share of the run done at `step`, on rank 0."""
        assert self._deciders is not None
        return self._deciders.budget.progress(step)

    def close(self) -> None:
        """Let the callbacks end what they began, after a run or an error in it."""
        for callback in self._callbacks:
            callback.close()

    def _decide(self) -> Decision:
        """Return what rank 0's callbacks decide, on every rank. Waits for the device only when something is due."""
        self._ranks.heartbeat.step = self.step
        decision = Decision()
        for callback in self._callbacks:
            callback.propose(self.step, decision)
        if decision.due and self._pending is not None:
            self._observe(self._pending.result())
        for callback in self._callbacks:
            if not decision.settled:
                callback.settle(self.step, decision)
        return Decision(**self._ranks.share(decision.as_dict() if self._ranks.first else None))

    def _advance(self, progress: float) -> None:
        previous = self._pending
        self.step += 1
        self._pending = self._since = self.engine.step(self.step, progress, self._since)
        if self._after_step is not None:
            self._after_step(self.step, self.engine)
        # The step before this one: its results are there, or nearly, while this one computes.
        if previous is not None and self._ranks.first:
            self._observe(previous.result())

    def _observe(self, result: StepResult) -> None:
        """Tell a step's results to the callbacks, once."""
        if result.step <= self._observed:
            return
        self._observed = result.step
        values: dict[str, float] = {}
        for callback in self._callbacks:
            callback.measure(result, values)
        for callback in self._callbacks:
            callback.after_step(result, values)

    def _validate(self) -> None:
        self.journal.phase("validating")
        began, self._since = time.monotonic(), None
        result = self.engine.validate()
        seconds, values = time.monotonic() - began, validation_readings(result)
        for callback in self._callbacks:
            callback.validated(self.step, result, values, seconds)

    def _rewind(self, step: int, position: int) -> None:
        self._pending = self._since = None
        if step:
            self.checkpoints.load(step, position=position)
        else:
            self.engine.start_over(position)
        self.step = self._observed = step
        for callback in self._callbacks or [self.checkpoints]:
            callback.rewound(step)
