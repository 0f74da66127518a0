"""What the loop calls between steps: budget, health and validation, each with its own state; see `Callback`.

Two more stand in modules of their own: checkpoints in `checkpoints`, metrics and views in `telemetry`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.recipe import Bands, Every
from windtunnel.run import Alert, BandWatch, BudgetClock, StopRequest

from .engine import StepResult

if TYPE_CHECKING:
    from windtunnel.evaluate import Answered, Validation

    from .loop import Loop

FIRST_VALIDATION_SECONDS = 2.0
"""What a validation is taken to last before one has been measured."""
RESERVE = 1.2
"""What the last validation and checkpoint may take, by what they took."""
FINISHED = 0.97
"""A run whose schedule got this far ended as planned."""
SPENT_PERIOD = 5.0
AT_THE_LIMIT = "the schedule comes down with it and a checkpoint is saved: nothing need be done, unless more is wanted"

Values = dict[str, float]
"""Metrics of a step by name; see `windtunnel.run.METRICS`."""


@dataclass
class Decision:
    """What every rank does before its next step; rank 0's callbacks make it, the others follow.

    Attributes:
        progress: share of the run done.
        validate, save: score the held-out data, save a checkpoint.
        answers: after validating, answer held-out questions too.
        weights_only: save it without optimizer states, for which there is no room.
        stop: why the run ends now. exit_code: the code that it ends with then. told: someone outside asked for it, so that
            there may be little time.
        rewind: {"step", "position"}: go back to the checkpoint of that step (0: start over), data from that position on.
        seconds: rank 0 only: what is due before the next step takes, beside the step.
        settled: rank 0 only: no callback is asked any more.
    """

    progress: float = 0.0
    validate: bool = False
    save: bool = False
    answers: bool = False
    weights_only: bool = False
    stop: str | None = None
    exit_code: int = 0
    told: bool = False
    rewind: dict[str, int] | None = None
    seconds: float = 0.0
    settled: bool = False

    @property
    def due(self) -> bool:
        """Return whether anything but a step comes next: then the last step's results are waited for."""
        return self.validate or self.save or self.stop is not None


class Callback:
    """Something that the loop calls between steps. Every hook may be left out.

    All but `rewound` and `close` are called on rank 0 only, in the order of the loop's list; what the others are to do
    as well stands in the `Decision`, which all ranks share.
    """

    loop: Loop

    def start(self, loop: Loop) -> None:
        """Begin with a loop, after state has been loaded; `loop.step` steps are done."""
        self.loop = loop

    def propose(self, step: int, decision: Decision) -> None:
        """Say what is due after `step` steps. The results of the last one may still be on their way."""

    def settle(self, step: int, decision: Decision) -> None:
        """Change what was proposed, now that the last step's results are known if anything is due."""

    def measure(self, result: StepResult, values: Values) -> None:
        """Add the metrics of a step."""

    def after_step(self, result: StepResult, values: Values) -> None:
        """Take note of a step's metrics; each step comes once."""

    def validated(self, step: int, result: Validation, values: Values, seconds: float) -> None:
        """Take note of a validation, its metrics and how long it took."""

    def answered(self, step: int, result: Answered, values: Values, seconds: float) -> None:
        """Take note of held-out questions that were answered, after the step's validation."""

    def reserve(self) -> float:
        """Return the seconds that this callback will need once no further step is taken."""
        return 0.0

    def rewound(self, step: int) -> None:
        """Forget what came after `step`, to which the run went back."""

    def state_dict(self) -> dict[str, Any]:
        """Return JSON for the checkpoint; keys must not be those of another callback or of the engine's facts."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state, which holds what all callbacks gave."""

    def close(self) -> None:
        """End what `start` began; the session ends, well or badly."""


@dataclass
class Timer:
    """When something that happens every so many steps or seconds is due."""

    every: Every
    clock: Callable[[], float] = time.monotonic
    last: float = field(default_factory=time.monotonic)
    step: int = 0

    def due(self, step: int) -> bool:
        """Return whether it is due after `step` steps; once a step at most."""
        # At the step that a run begins or goes on from it was done before, or there is nothing to do yet.
        if step == self.step:
            return False
        if self.every.steps is not None:
            return step % self.every.steps == 0
        return self.clock() - self.last >= (self.every.seconds or 0.0)

    def done(self, step: int) -> None:
        """Note that it happened at `step`."""
        self.last, self.step = self.clock(), step


class Budget(Callback):
    """Ends the run in time: its budget, signals, spot notices. Plans the schedule's length again as steps are measured.

    Args:
        clock: counts what is spent.
        stop: what was asked for from outside.
        spent_path: a file that keeps what was spent, so that a killed session counts too.
    """

    def __init__(self, clock: BudgetClock, stop: StopRequest, spent_path: Path) -> None:
        self.clock, self._stop, self._spent_path = clock, stop, spent_path
        self._spent_at = 0.0
        self._warned: str | None = None

    def progress(self, step: int) -> float:
        """Return the share of the run done at `step`."""
        if self.clock.timed and not self.clock.total_steps:
            # Before a step has been timed: the share of the time that has gone.
            # Compiling can take minutes of a budget in hours: a schedule that stood at 0 until then would warm down too late.
            gone = self.clock.session_seconds
            return min(1.0, gone / max(1e-9, gone + (self.clock.seconds_left or 0.0)))
        return self.clock.progress(step)

    def propose(self, step: int, decision: Decision) -> None:
        """Ask for the end when someone wants it, or when the next step would not fit any more."""
        self._reserved = self.loop.reserve()
        if decision.stop is not None:
            return
        if self._stop.requested is not None:
            decision.stop, decision.exit_code, decision.told = self._stop.requested, 3, True
            return
        pace = (self.clock.step_seconds or 0.0) + decision.seconds
        # At least one step is taken, or a budget that is smaller than the start would end with nothing.
        decision.stop = self.clock.exhausted(step, pace, self._reserved) if step else None
        # The schedule is tied to the budget: where it has come down, running out of money is the planned end and no
        # interruption.
        decision.exit_code = 3 if decision.stop is not None and self.progress(step) < FINISHED else 0

    def settle(self, step: int, decision: Decision) -> None:
        """Plan the schedule's length again and say how far it is."""
        # A validation takes time that steps no longer have, so that the length is planned anew at once.
        if self.clock.timed and step and (step % 10 == 0 or decision.validate):
            self.clock.replan(step, reserve_seconds=self._reserved)
        decision.progress = self.progress(step)

    def measure(self, result: StepResult, values: Values) -> None:
        """Add progress and dollars."""
        self.clock.tick()
        values["progress"] = self.progress(result.step)
        spent = self.clock.dollars_spent
        forecast = self.clock.forecast_dollars(result.step, reserve_seconds=self.loop.reserve())
        if spent is not None:
            values["dollars"] = spent
        if forecast is not None:
            values["dollars_forecast"] = forecast

    def after_step(self, result: StepResult, values: Values) -> None:
        """Keep what was spent, every few seconds; say once that little of the budget is left."""
        told = self.clock.nearly_spent() if self._warned is None else None
        if told is not None:
            self._warned = told
            data = {"advice": AT_THE_LIMIT, "band": "budget", "action": None}
            self.loop.journal.event("band:budget", told, "warn", data)
        # Between two saves of what was spent a kill loses some seconds' cost, which is cheaper than a write a step.
        now = time.monotonic()
        if now - self._spent_at > SPENT_PERIOD:
            self._spent_at = now
            self.clock.save_spent(self._spent_path)

    def state_dict(self) -> dict[str, Any]:
        """Return the clock's state."""
        return {"budget": self.clock.state() | {"warned": self._warned}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the clock's plan."""
        self.clock.load_state(state["budget"])
        # Raised since, a limit may be near once more, and is then told again.
        self._warned = state["budget"].get("warned") if self.clock.nearly_spent() else None

    def close(self) -> None:
        """Keep what was spent."""
        self.clock.save_spent(self._spent_path)


class Health(Callback):
    """Watches the bands: goes back to the last good checkpoint after a bad step, stops a run that overfits.

    Args:
        bands: judges the metrics.
        limits: of the recipe: how often to go back, and how many batches to skip then.
        by_answers: held-out answers decide what is best: then a rising validation loss alone ends nothing.

    Attributes:
        rewinds: how often the run went back. rewind_due: why it must go back now; None: it need not.
    """

    def __init__(self, bands: BandWatch, limits: Bands, *, by_answers: bool = False) -> None:
        self.bands, self._limits, self._by_answers = bands, limits, by_answers
        self.rewinds = 0
        self.rewind_due: str | None = None
        self._stop_due: str | None = None

    def go_back(self, why: str) -> None:
        """Ask to go back before the next step; the first reason stays."""
        self.rewind_due = self.rewind_due or why

    def propose(self, step: int, decision: Decision) -> None:
        """Ask for the end of a run that overfits."""
        decision.stop = self._stop_due

    def settle(self, step: int, decision: Decision) -> None:
        """Turn the decision into a rewind where one is due, or into the end after too many."""
        # Taken once: the rewind is this decision, and another spoiled step asks anew.
        reason, self.rewind_due = self.rewind_due, None
        if reason is None:
            return
        self.rewinds += 1
        # These weights are spoiled: they are neither scored nor saved, and no callback after this one may ask for it.
        decision.settled, decision.validate, decision.answers, decision.save = True, False, False, False
        if self.rewinds > self._limits.rewinds:
            decision.stop = f"{reason}; went back {self._limits.rewinds} times already (bands.rewinds)"
            decision.exit_code = 1
            return
        decision.stop, decision.exit_code = None, 0
        target = self.loop.checkpoints.newest()
        # The same batches would spoil the weights in the same way: those from the bad step on are left out.
        batches, skip = self.loop.engine.feed.batches, self._limits.skip_batches
        decision.rewind = {"step": target, "position": batches.position + skip * batches.step_sequences}
        self.loop.journal.event("rewind", f"{reason}: back to step {target:,}, skipping {skip} batches", "bad")

    def after_step(self, result: StepResult, values: Values) -> None:
        """Judge a step."""
        self._judge(result.step, values, saving=self.loop.checkpoints.was_saving(result.step))

    def validated(self, step: int, result: Validation, values: Values, seconds: float) -> None:
        """Judge a validation."""
        self._judge(step, values)

    def _judge(self, step: int, values: Values, *, saving: bool = False) -> None:
        for alert in self.bands.observe(step, values, saving=saving):
            self._act(alert)

    def _act(self, alert: Alert) -> None:
        data = {"advice": alert.advice, "band": alert.band, "action": alert.action}
        self.loop.journal.event(f"band:{alert.band}", alert.message, alert.level, data)
        if alert.action == "rewind":
            self.go_back(alert.message)
        # A loss that rises while answers still get better is usual in fine-tuning, and no overfitting.
        elif alert.action == "stop_overfit" and not self._by_answers:
            best = self.bands.best_validation
            self._stop_due = f"{alert.message}; the checkpoint to use is of step {best[0]:,}" if best else alert.message

    def rewound(self, step: int) -> None:
        """Forget what was seen since."""
        self.bands.rewound(step)

    def state_dict(self) -> dict[str, Any]:
        """Return what the bands have seen, and how often the run went back."""
        return {"bands": self.bands.state(), "rewinds": self.rewinds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on watching."""
        self.bands.load_state(state["bands"])
        self.rewinds = int(state["rewinds"])


class ValidateEvery(Callback):
    """Says when the held-out data are scored: at its interval, at the end, and before a checkpoint saved by the clock.

    Held-out questions are answered at an interval of their own and at the end, unless the run is told to stop: there may be no
    time. Then the data are scored too and a checkpoint is saved, so that the best can be kept. Asked before the first step,
    what training begins with is among those that may be the best.

    Args:
        every: the interval.
        with_saves: whether checkpoints are saved by the clock: they carry a loss, so that the best can be told.
        answers: the interval of held-out questions; None: there are none.
        answer_seconds: what answering them is taken to last before it has been measured.
        before: whether they are answered before the first step too.
    """

    def __init__(
        self, every: Every, *, with_saves: bool, answers: Every | None = None, answer_seconds: float = 0.0, before: bool = False
    ) -> None:  # fmt: skip
        self._before = before and answers is not None
        self._timer, self._with_saves = Timer(every), with_saves
        self._answers = None if answers is None else Timer(answers)
        self._seconds, self._answer_seconds = FIRST_VALIDATION_SECONDS, answer_seconds

    def start(self, loop: Loop) -> None:
        """Begin; nothing is due at the step that a run goes on from."""
        super().start(loop)
        self._timer.step = loop.step
        if self._answers is not None:
            self._answers.step = loop.step

    def propose(self, step: int, decision: Decision) -> None:
        """Ask for what is due."""
        # Asked for once, also where a rewind comes back to step 0.
        before, self._before = self._before, False
        if before or (self._answers is not None and self._answers.due(step)):
            decision.answers = decision.validate = decision.save = True
            decision.seconds += self._seconds + self._answer_seconds
        elif self._timer.due(step):
            decision.validate = True
            decision.seconds += self._seconds

    def settle(self, step: int, decision: Decision) -> None:
        """Ask for what the end of the run, or a checkpoint, has to have at this step."""
        # A checkpoint saved by the clock falls between two validations, and without a loss of its own it could not become the
        # best.
        if step and step != self._timer.step and (decision.stop is not None or (decision.save and self._with_saves)):
            decision.validate = True
        if self._answers is None or decision.stop is None:
            return
        decision.answers = bool(step) and step != self._answers.step and decision.exit_code in (0, 3) and not decision.told
        decision.validate = decision.validate or decision.answers

    def validated(self, step: int, result: Validation, values: Values, seconds: float) -> None:
        """Remember when it was and how long it took."""
        self._timer.done(step)
        self._seconds = seconds

    def answered(self, step: int, result: Answered, values: Values, seconds: float) -> None:
        """Remember when it was and how long it took."""
        assert self._answers is not None
        self._answers.done(step)
        self._answer_seconds = seconds

    def reserve(self) -> float:
        """Return the seconds of the last validation and answers to come."""
        return self._seconds + (self._answer_seconds if self._answers is not None else 0.0)
