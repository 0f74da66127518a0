"""The training loop: every rank runs it and does what rank 0's callbacks decide."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from windtunnel.recipe import Layout, UserError

from .callbacks import RESERVE, Budget, Callback, Decision, Health
from .engine import Engine, Pending, StepResult
from .ranks import Ranks
from .telemetry import Journal, validation_readings

if TYPE_CHECKING:
    from .checkpoints import Checkpoints

AfterStep = Callable[[int, Engine], None]


@dataclass(frozen=True)
class Ending:
    """How a session ended: reason, exit code, optimizer steps done over all sessions, and what to change if it failed."""

    reason: str
    exit_code: int
    step: int
    fix: str | None = None


class OutOfMemory(UserError):
    """Memory ran out, on the device or on the host."""

    exit_code = 1


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
        lighter: what to change where memory runs out.
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
        lighter: str | None = None,
    ) -> None:
        assert (deciders is not None) == ranks.first
        self.engine, self.checkpoints, self.step = engine, checkpoints, step
        self.journal = journal or Journal()
        self._ranks, self._callbacks, self._deciders = ranks, list(callbacks), deciders
        self._after_step, self._lighter = after_step, lighter
        self._began_at: int | None = None  # the data's position before the step under way
        self._weights_changed = False  # by it
        self._copied, engine.before_update = engine.before_update, self._before_update
        self._pending: Pending | None = None
        self._since: Pending | None = None
        self._observed = step
        for callback in self._callbacks or [checkpoints]:
            callback.start(self)

    def run(self) -> Ending:
        """Train until a callback says stop, or memory runs out; the last checkpoint is on disk when this returns.

        Raises:
            OutOfMemory: memory ran out on one of several ranks.
        """
        try:
            return self._run()
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            what = short_of(error)
        # The exception is gone by now, and with it what its frames held.
        return self._ran_out(what)

    def _run(self) -> Ending:
        while True:
            decision = self._decide()
            if decision.rewind is not None:
                self._rewind(decision.rewind["step"], decision.rewind["position"])
                continue
            if decision.validate:
                self._validate()
            if decision.save:
                self.checkpoints.begin(self.step, decision)
            if decision.stop is not None:
                self.journal.phase("saving")
                unsaved = self.checkpoints.finish()
                if self._ranks.share(self._deciders.health.rewind_due if self._deciders else None):
                    continue  # the last weights were spoiled
                if unsaved is not None:
                    return Ending(f"{decision.stop}; the last checkpoint could not be saved: {unsaved}", 1, self.step)
                return Ending(decision.stop, decision.exit_code, self.step)
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
        self._began_at, self._weights_changed = self.engine.feed.batches.position, False
        self._pending = self._since = self.engine.step(self.step + 1, progress, self._since)
        self._began_at = None
        self.step += 1
        if self._after_step is not None:
            self._after_step(self.step, self.engine)
        # The step before this one: its results are there, or nearly, while this one computes.
        if previous is not None and self._ranks.first:
            self._observe(previous.result())

    def _before_update(self) -> None:
        self._weights_changed = True
        self._copied()

    def _ran_out(self, what: str) -> Ending:
        """Save the state after the last whole step, if it is still there, and end."""
        whole = self._began_at is None
        reason = f"out of memory {'after' if whole else 'in'} step {self.step + (not whole):,}{what}"
        if self._ranks.world > 1:
            raise OutOfMemory(f"{reason}, on rank {self._ranks.rank}", self._lighter)
        self.journal.event("out_of_memory", reason, "bad", {"advice": self._lighter or ""})
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if self.step and (whole or not self._weights_changed):
            if self._began_at is not None:
                self.engine.feed.batches.seek(self._began_at)
            if self._pending is not None:
                self._observe(self._pending.result())
            unsaved = self.checkpoints.last(self.step)
            reason += f"; the state after step {self.step:,} " + (f"could not be saved: {unsaved}" if unsaved else "is saved")
        return Ending(reason, 1, self.step, self._lighter)

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
            self.checkpoints.start_over(position)
        self.step = self._observed = step
        for callback in self._callbacks or [self.checkpoints]:
            callback.rewound(step)


def out_of_memory(error: BaseException) -> bool:
    """Return whether a failure says that memory ran out: in PyTorch's, CUDA's, cuBLAS's or NCCL's words."""
    text = str(error).lower()
    words = ("out of memory", "can't allocate memory", "cannot allocate memory", "alloc_failed")
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(word in text for word in words)


def short_of(error: BaseException) -> str:
    """Return what could not be had, as ' (...)' in few words; empty where it does not say."""
    found = re.search(r"ried to allocate ([\d.]+) ?(GiB|MiB|KiB|bytes)", str(error))
    if found is None:
        return ""
    size, unit = float(found[1].rstrip(".")), found[2]
    if unit == "bytes":
        size, unit = size / 2**30, "GiB"
    return f" ({size:,.2f} {unit} more were not there)"


def lighter(layout: Layout, stage: str, *, recomputes: bool) -> str:
    """Return what to change so that a run needs less memory.

    Args:
        stage: its name in the recipe.
        recomputes: whether blocks can be computed again.
    """
    share = layout.micro_batch * layout.accumulation
    smaller = [n for n in range(1, layout.micro_batch // 2 + 1) if share % n == 0]
    if smaller:
        return f"go on with smaller micro-batches: --set stages.{stage}.micro_batch={smaller[-1]}"
    if recomputes and layout.recompute == "none":
        return "compute blocks again in the backward pass: --set layout.recompute=block"
    return "a smaller model, shorter sequences (model.sequence), or more GPUs"
