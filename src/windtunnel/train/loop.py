"""The training loop: every rank runs it and does what rank 0's callbacks decide."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import torch

from windtunnel.model import out_of_memory
from windtunnel.run import KEEPING

from .callbacks import RESERVE, Budget, Callback, Decision, Health
from .engine import Engine, Pending, StepResult
from .failures import Abandoned, OutOfMemory, PeerLost, lost_peer, short_of
from .ranks import Ranks
from .telemetry import Journal, answer_readings, validation_readings

if TYPE_CHECKING:
    from windtunnel.evaluate import Answered

    from .checkpoints import Checkpoints

FEWER_ANSWERS = (
    "answer fewer at a time: --set stages.sft.answers.prompts=8, or only in the end: --set stages.sft.answers.every=null"
)
AfterStep = Callable[[int, Engine], None]


@dataclass(frozen=True)
class Ending:
    """How a session ended: reason, exit code, optimizer steps done over all sessions, and what to change if it failed."""

    reason: str
    exit_code: int
    step: int
    fix: str | None = None


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
        ask: answers held-out questions, on all ranks together; the judged answers on rank 0.
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
        ask: Callable[[], Answered | None] | None = None,
    ) -> None:
        # Ranks that are not the first decide nothing: they would decide by clocks and disks of their own.
        assert (deciders is not None) == ranks.first
        self.engine, self.checkpoints, self.step = engine, checkpoints, step
        self.journal = journal or Journal()
        self._ranks, self._callbacks, self._deciders = ranks, list(callbacks), deciders
        self._after_step, self._lighter, self._ask = after_step, lighter, ask
        self._began_at: int | None = None  # the data's position before the step under way
        self._weights_changed = False  # by it
        self._copied, engine.before_update = engine.before_update, self._before_update
        # The last step, whose results nobody has waited for yet; and the same where nothing but steps came after it, so that
        # the next one can be timed from its end.
        self._pending: Pending | None = None
        self.epochs: dict[int, float] = {}
        self._since: Pending | None = None
        self._observed = step
        for callback in self._callbacks or [checkpoints]:
            callback.start(self)

    def run(self) -> Ending:
        """Train until a callback says stop, or memory runs out; the last checkpoint is on disk when this returns.

        After a failure in a step the state before it is saved where it is still there. What is raised says so in a note.

        Raises:
            OutOfMemory: memory ran out on one of several ranks.
            PeerLost: another rank is gone.
        """
        try:
            return self._run()
        # Abandoned is no Exception, so that nothing on the way here, inside PyTorch or a callback, swallows it.
        except (Exception, Abandoned) as error:
            failure = self._explained(error)
        # The exception is gone by now, and with it what its frames held, unless it is to be raised again.
        kept = self._keep(of_this_rank=not isinstance(failure, PeerLost))
        if isinstance(failure, OutOfMemory) and self._ranks.world == 1:
            reason = f"{failure.message}; {kept}" if kept else failure.message
            self.journal.event("out_of_memory", reason, "bad", {"advice": self._lighter or ""})
            return Ending(reason, 1, self.step, self._lighter)
        if kept:
            failure.add_note(kept)
        raise failure

    def _explained(self, error: BaseException) -> BaseException:
        """Return a failure in a user's words; what is not known stays as it is."""
        # Whether all of the last step was taken, or memory ran out in the middle of the next one.
        whole = self._began_at is None
        if out_of_memory(error):
            where = f", on rank {self._ranks.rank}" if self._ranks.world > 1 else ""
            reason = f"out of memory {'after' if whole else 'in'} step {self.step + (not whole):,}{short_of(error)}{where}"
            return OutOfMemory(reason, self._lighter)
        if self._ranks.world > 1 and lost_peer(error):
            return PeerLost(f"rank {self._ranks.rank} waited for a rank that is gone")
        return error

    def _run(self) -> Ending:
        while True:
            decision = self._decide()
            if decision.rewind is not None:
                self._rewind(decision.rewind["step"], decision.rewind["position"])
                continue
            if decision.validate:
                self._validate()
            if decision.answers:
                self._answer()
            if decision.save:
                self._ranks.heartbeat.beat("saving")
                self.checkpoints.begin(self.step, decision)
            if decision.stop is not None:
                self._phase("saving")
                unsaved = self.checkpoints.finish()
                # The last save reads every weight: only now is it known whether they are finite.
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
        # Two rounds: what is due is asked first, and the last step's loss is waited for only where something is. Then
        # callbacks that need that loss have their say.
        decision = Decision()
        for callback in self._callbacks:
            callback.propose(self.step, decision)
        if decision.due and self._pending is not None:
            self._observe(self._pending.result())
        for callback in self._callbacks:
            if not decision.settled:
                callback.settle(self.step, decision)
        return Decision(**self._ranks.share(asdict(decision) if self._ranks.first else None))

    def _advance(self, progress: float) -> None:
        self._ranks.heartbeat.beat("training")
        previous = self._pending
        # Noted before the step: a failure inside it puts the data back to here, and saves only while the weights are the old
        # ones.
        self._began_at, self._weights_changed = self.engine.feed.batches.position, False
        taken = self.engine.step(self.step + 1, progress, self._since)
        if taken is None:  # told to stop, which is decided next
            self.engine.feed.batches.seek(self._began_at)
            self._began_at = None
            return
        self._pending = self._since = taken
        self._began_at = None
        self.step += 1
        # By now the next step's data may have been taken too, or not, when a step's results are told.
        before = {step: epochs for step, epochs in self.epochs.items() if step == self.step - 1}
        self.epochs = before | {self.step: self.engine.feed.batches.epochs}
        if self._after_step is not None:
            self._after_step(self.step, self.engine)
        # The step before this one: its results are there, or nearly, while this one computes.
        # One step behind the device: waiting for this one's loss here would leave the GPU idle while the host prepares the
        # next.
        if previous is not None and self._ranks.first:
            self._observe(previous.result())

    def _phase(self, name: str) -> None:
        """Say what this rank does now, to those who watch it and those who watch the run."""
        self._ranks.heartbeat.beat(name)
        self.journal.phase(name)

    def _before_update(self) -> None:
        self._weights_changed = True
        self._copied()

    def _keep(self, *, of_this_rank: bool) -> str:
        """Save the state after the last whole step, if it is still there; what came of it, in words for the user.

        Every rank writes its part and needs no other one for it.

        Args:
            of_this_rank: the failure was this rank's own. On a GPU a rank that lost another one cannot tell what of the work
                that it has queued was done.
        """
        self._ranks.heartbeat.beat(KEEPING)
        # The others wait for this rank in a collective: they have to notice at once, while their own state is still whole.
        self._ranks.leave()
        if not of_this_rank and self._ranks.device.type == "cuda":
            return ""
        self.checkpoints.hurry()
        if self._began_at is not None and self._weights_changed:
            return "its update had begun, so that the last checkpoint is what there is"
        if not self.step:
            return ""
        try:
            if torch.cuda.is_available():
                # What the failed step left is in the allocator's pool; copying the state needs some of it.
                torch.cuda.empty_cache()
            if self._began_at is not None:
                self.engine.feed.batches.seek(self._began_at)
            if self._pending is not None:
                self._observe(self._pending.result())
            unsaved = self.checkpoints.last(self.step, alone=self._ranks.world > 1)
        except Exception as error:  # whatever it is, the failure that came first is the one to tell
            unsaved = str(error).partition("\n")[0]
        return f"the state after step {self.step:,} " + (f"could not be saved: {unsaved}" if unsaved else "is saved")

    def _observe(self, result: StepResult) -> None:
        """Tell a step's results to the callbacks, once."""
        # A step's results may be asked for twice: when something is due after it, and by the step that follows.
        if result.step <= self._observed:
            return
        self._observed = result.step
        values: dict[str, float] = {}
        for callback in self._callbacks:
            callback.measure(result, values)
        for callback in self._callbacks:
            callback.after_step(result, values)

    def _validate(self) -> None:
        self._phase("validating")
        began, self._since = time.monotonic(), None
        result = self.engine.validate()
        if result is None:
            return
        seconds, values = time.monotonic() - began, validation_readings(result)
        for callback in self._callbacks:
            callback.validated(self.step, result, values, seconds)

    def _answer(self) -> None:
        assert self._ask is not None
        self._phase("answering")
        began, self._since = time.monotonic(), None
        try:
            result = self._ask()
        except (MemoryError, RuntimeError) as error:
            if self._ranks.world > 1 or not out_of_memory(error):
                raise
            # One rank alone can go on: nothing that trains has changed.
            text = f"held-out answers of step {self.step:,} are left out: out of memory{short_of(error)}"
            self.journal.event("answers_failed", text, "warn", {"advice": FEWER_ANSWERS})
            return
        if result is not None:
            seconds, values = time.monotonic() - began, answer_readings(result)
            for callback in self._callbacks:
                callback.answered(self.step, result, values, seconds)

    def _rewind(self, step: int, position: int) -> None:
        self._pending = self._since = None
        if step:
            self.checkpoints.load(step, position=position)
        else:
            self.checkpoints.start_over(position)
        self.step = self._observed = step
        for callback in self._callbacks or [self.checkpoints]:
            callback.rewound(step)
