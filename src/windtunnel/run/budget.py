"""The budget: when a run ends, and how far along it is.

A run ends at whichever limit comes first. Limits in tokens, epochs and steps are a number of steps,
known at once: progress is then a pure function of the step. Limits in dollars and hours are time:
the number of steps that still fit is planned again and again from measured step time, so that the
learning rate's warm-down finishes when the money does.
"""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from windtunnel.files import write_json
from windtunnel.recipe import Budget, UserError

WARN_SHARE = 0.8  # of a limit in dollars or hours: from here on it is said once
WARN_EPOCHS = 4.0  # repeating data costs almost nothing up to here (Muennighoff et al. 2023, arXiv:2305.16264)
CONFIRM_EPOCHS = 16.0  # and is worth almost nothing from here
STARTED = "WINDTUNNEL_STARTED"
"""Environment: seconds since the epoch when the command began; start-up is paid for too."""


class BudgetSpent(UserError):
    """A limit of the budget was reached before anything could be done."""


@dataclass(frozen=True)
class Spent:
    """What a run's sessions used up: wall seconds and dollars."""

    seconds: float = 0.0
    dollars: float = 0.0


@dataclass(frozen=True)
class EpochsVerdict:
    """How often the training tokens will be seen, and what is to be said about it."""

    epochs: float
    level: str  # 'ok', 'warn' or 'confirm'
    message: str


class BudgetClock:
    """Counts what a run spends against its budget. One per run, on rank 0; others follow its decisions.

    Args:
        budget: the recipe's; all null: `default_tokens` decides.
        dollars_per_hour: of the whole rig; None: unknown.
        batch_tokens: tokens per optimizer step, all ranks.
        epoch_tokens: tokens of the training split.
        default_tokens: length when the budget names no limit.
        clock: seconds that only go forward.
        spent: what earlier sessions used.
        elapsed: seconds this session has already lasted (start-up is paid for too).
        stage: of a recipe with stages, the one that is run: advice then names the keys that such a recipe has.

    Raises:
        UserError: dollars without a price; no length at all.
    """

    def __init__(
        self,
        budget: Budget,
        *,
        dollars_per_hour: float | None,
        batch_tokens: int,
        epoch_tokens: int,
        default_tokens: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        spent: Spent | None = None,
        elapsed: float = 0.0,
        stage: str | None = None,
    ) -> None:
        # A rig that costs nothing has no limit in dollars; the budget's other limits end the run.
        if budget.dollars is not None and dollars_per_hour is None:
            raise UserError(
                f"budget.dollars is {budget.dollars:g}, and this rig has no known price",
                "set WINDTUNNEL_PRICE to dollars per hour of the whole rig, or name it in your rigs file",
            )
        self.budget, self.dollars_per_hour, self.batch_tokens = budget, dollars_per_hour, batch_tokens
        self._stage = stage
        self._clock, self._before = clock, spent or Spent()
        # The clock of this process began late: importing and compiling are paid for as well.
        self._began = clock() - elapsed
        self.step_limits = _step_limits(budget, batch_tokens, epoch_tokens, default_tokens)
        self.time_limits = self._time_limits()
        if not self.step_limits and not self.time_limits:
            raise UserError("the budget has no limit", "give one, for example --set budget.hours=1")
        self._anchor = (0, 0.0)  # (step, progress) from which progress runs straight to 1 at the horizon
        self._horizon = min(self.step_limits.values(), default=0)
        # Of a long run the last 2,000: what a step took yesterday, before validation or the data changed, says little.
        self._ticks: deque[float] = deque(maxlen=2000)
        self._settled = False
        self._last_tick: float | None = None

    @property
    def timed(self) -> bool:
        """Whether a limit in dollars or hours applies, so that the horizon depends on the clock."""
        return bool(self.time_limits)

    @property
    def seconds(self) -> float:
        """Wall seconds spent, earlier sessions included."""
        return self._before.seconds + self.session_seconds

    @property
    def session_seconds(self) -> float:
        """Wall seconds of this session."""
        return self._clock() - self._began

    @property
    def dollars_spent(self) -> float | None:
        """Dollars spent, earlier sessions included (at their own prices); None if the price is unknown."""
        if self.dollars_per_hour is None:
            return self._before.dollars or None
        return self._before.dollars + self.session_seconds * self.dollars_per_hour / 3600

    @property
    def spent(self) -> Spent:
        """What to hand to the next session."""
        return Spent(self.seconds, self.dollars_spent or 0.0)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the first limit in time; None when there is none. Negative when it has passed."""
        return min(self.time_limits.values()) - self.session_seconds if self.time_limits else None

    def nearly_spent(self) -> str | None:
        """Say which limit in dollars or hours is spent but for a fifth, and what is left of it; None while there is more."""
        for name, seconds in sorted(self.time_limits.items(), key=lambda item: item[1]):
            limit = float(getattr(self.budget, name))
            spent = self.seconds / 3600 if name == "hours" else self.dollars_spent or 0.0
            if spent >= WARN_SHARE * limit:
                used = f"${spent:,.2f} of ${limit:,.2f}" if name == "dollars" else f"{spent:.2f} of {limit:g} h"
                left = max(0.0, seconds - self.session_seconds) / 60
                return f"{spent / limit:.0%} of budget.{name} is spent, {used}: the run ends in {left:,.1f} min at the latest"
        return None

    @property
    def total_steps(self) -> int:
        """The horizon: steps the run is planned to have. 0 before the first `replan` of a timed budget without other limits."""
        return self._horizon

    def require_left(self, step: int) -> None:
        """Raise BudgetSpent if a limit has been reached already at `step`."""
        for name, limit in self.step_limits.items():
            if step >= limit:
                raise BudgetSpent(
                    f"budget.{name} is already spent: the run has done {step:,} steps of {limit:,}",
                    self._raise(name, step / limit),
                )
        for name, seconds in self.time_limits.items():
            if seconds <= self.session_seconds:
                spent = self.dollars_spent or 0.0 if name == "dollars" else self.seconds / 3600
                used = f"${spent:.2f}" if name == "dollars" else f"{spent:.2f} h"
                given = float(getattr(self.budget, name))
                raise BudgetSpent(
                    f"budget.{name} is already spent: {used} of {given:g}",
                    self._raise(name, spent / given if given else 1.0),
                )

    def _raise(self, name: str, share: float) -> str:
        """How to give a limit more. A stage knows what is left for it of hours and dollars, not what all were given.

        Args:
            name: of the limit.
            share: of it that is used; what is advised is beyond that, so that it works.
        """
        # Twice the limit at least, and more where more is used: advice that would be refused again is none.
        times = int(share + 0.5) + 1
        if self._stage is None:
            return f"raise it, for example --set budget.{name}={_more(self.budget, name, times)}"
        if name in self.time_limits:
            return f"give all stages together more with --set budget.{name}=..."
        return f"raise it, for example --set stages.{self._stage}.budget.{name}={_more(self.budget, name, times)}"

    def tick(self) -> None:
        """Call once after every step: measures wall time per step, everything between two steps included."""
        now = self._clock()
        if self._last_tick is not None:
            self._ticks.append(now - self._last_tick)
        self._last_tick = now
        if not self._settled and len(self._ticks) == 5:  # the first steps hold compilation
            self._settled = True
            self._ticks.popleft()
            self._ticks.popleft()

    @property
    def step_seconds(self) -> float | None:
        """Wall seconds a step takes now: the median of the last 50 plus the run's mean of validations and other pauses."""
        ticks = list(self._ticks)
        if not self._settled:
            return min(ticks, default=None)
        # The median knows nothing of rare long pauses, the mean nothing of a change in pace: their difference is what pauses
        # cost a step.
        overhead = statistics.fmean(ticks) - statistics.median_high(ticks)
        return statistics.median_high(ticks[-50:]) + max(0.0, overhead)

    def replan(self, step: int, reserve_seconds: float = 0.0) -> int:
        """Set the horizon so that the schedule ends when the first limit does. Returns `total_steps`.

        Args:
            step: steps done.
            reserve_seconds: kept free for the last validation and checkpoint.
        """
        pace = self.step_seconds
        if not self.time_limits or pace is None:
            return self._horizon
        left = max(0.0, (self.seconds_left or 0.0) - reserve_seconds)
        horizon = min([step + int(left / pace), *self.step_limits.values()])
        # The anchor by the old horizon, before it moves: progress goes on from where it is, and never falls.
        self._anchor = (step, self.progress(step))
        self._horizon = max(horizon, step)
        return self._horizon

    def progress(self, step: int) -> float:
        """Share of the run done at `step`, 0 to 1; never falls as steps go on, whatever was planned again."""
        anchor, done = self._anchor
        if self._horizon <= anchor:
            return 1.0 if self._horizon and step >= self._horizon else done
        return min(1.0, done + (1.0 - done) * max(0, step - anchor) / (self._horizon - anchor))

    def exhausted(self, step: int, next_step_seconds: float | None = None, reserve_seconds: float = 0.0) -> str | None:
        """Return why the run must end before another step, or None.

        Args:
            step: optimizer steps done.
            next_step_seconds: what that step will take, with the validation or save due in it; None: as measured.
            reserve_seconds: as in `replan`.
        """
        for name, limit in self.step_limits.items():
            if step >= limit:
                return f"budget.{name}: {step:,} steps done"
        # Before the step, not after it: one that would end too late is not begun, and its budget saves and validates.
        pace = next_step_seconds if next_step_seconds is not None else (self.step_seconds or 0.0)
        for name, seconds in self.time_limits.items():
            if self.session_seconds + pace + reserve_seconds > seconds:
                unit = {"dollars": f"${self.budget.dollars}", "hours": f"{self.budget.hours} h"}[name]
                return f"budget.{name}: the next step would not fit into {unit} any more"
        return None

    def forecast_dollars(self, step: int, reserve_seconds: float = 0.0) -> float | None:
        """Dollars spent when the run reaches its horizon; None if the price or pace is unknown."""
        pace = self.step_seconds
        if self.dollars_per_hour is None or self.dollars_spent is None or pace is None:
            return None
        ahead = max(0, self._horizon - step) * pace + reserve_seconds
        return self.dollars_spent + ahead * self.dollars_per_hour / 3600

    def seconds_to_go(self, step: int) -> float | None:
        """Seconds until the horizon; None before the first measurement."""
        pace = self.step_seconds
        return None if pace is None else max(0, self._horizon - step) * pace

    def state(self) -> dict[str, Any]:
        """JSON for the checkpoint and for the other ranks."""
        return {"anchor": list(self._anchor), "horizon": self._horizon, "spent": asdict(self.spent)}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over anchor and horizon. What was spent comes from `load_spent`, which also knows of work that was lost.

        For a budget without a limit in time the horizon is the budget's own, so that a raised
        budget takes effect and progress stays a pure function of the step.
        """
        if self.time_limits:
            step, done = state["anchor"]
            self._anchor = (int(step), float(done))
            self._horizon = min([int(state["horizon"]), *self.step_limits.values()])

    def save_spent(self, path: Path) -> None:
        """Record what was spent, so that a killed session counts too. Call every few seconds.

        A full disk costs the record, not the run.
        """
        with contextlib.suppress(OSError):
            write_json(path, asdict(self.spent), durable=False)

    def _time_limits(self) -> dict[str, float]:
        """Limits as seconds of this session, by the budget's key."""
        limits = {}
        if self.budget.hours is not None:
            limits["hours"] = self.budget.hours * 3600 - self._before.seconds
        if self.budget.dollars is not None and self.dollars_per_hour:
            limits["dollars"] = (self.budget.dollars - self._before.dollars) / self.dollars_per_hour * 3600
        return limits


def load_spent(path: Path, state: dict[str, Any] | None = None) -> Spent:
    """Return what earlier sessions spent: the larger of the run folder's record and a checkpoint's `state`."""
    # The larger: the record is newer where the run was killed, the checkpoint's where the record could not be written.
    found = [Spent(**state["spent"])] if state else []
    # Never written, or damaged: the checkpoint's is at most one interval behind.
    with contextlib.suppress(OSError, ValueError, TypeError):
        recorded = Spent(**json.loads(path.read_text(encoding="utf-8")))
        if 0 <= recorded.seconds < math.inf and 0 <= recorded.dollars < math.inf:
            found.append(recorded)
    return Spent(max((s.seconds for s in found), default=0.0), max((s.dollars for s in found), default=0.0))


def epochs_over_data(tokens: int, epoch_tokens: int) -> EpochsVerdict:
    """How often `tokens` of training see a corpus of `epoch_tokens`: fine up to 4, to be confirmed past 16."""
    epochs = tokens / max(1, epoch_tokens)
    seen = f"{tokens:,} tokens are {epochs:.1f} epochs over {epoch_tokens:,} training tokens"
    if epochs > CONFIRM_EPOCHS:
        return EpochsVerdict(epochs, "confirm", f"{seen}; past {CONFIRM_EPOCHS:g} more repetition is worth almost nothing")
    if epochs > WARN_EPOCHS:
        return EpochsVerdict(epochs, "warn", f"{seen}; past {WARN_EPOCHS:g} their worth decays: watch validation loss")
    return EpochsVerdict(epochs, "ok", seen)


def _step_limits(budget: Budget, batch_tokens: int, epoch_tokens: int, default_tokens: int | None) -> dict[str, int]:
    limits = {}
    if budget.steps is not None:
        limits["steps"] = budget.steps
    if budget.tokens is not None:
        limits["tokens"] = max(1, budget.tokens // batch_tokens)
    if budget.epochs is not None:
        # Down: the last step of an epoch would otherwise begin the next.
        limits["epochs"] = max(1, math.floor(budget.epochs * epoch_tokens / batch_tokens))
    nothing_named = not limits and budget.hours is None and budget.dollars is None
    if nothing_named and default_tokens is not None:
        limits["tokens"] = max(1, default_tokens // batch_tokens)
    return limits


def _more(budget: Budget, name: str, times: int) -> str:
    value = getattr(budget, name)
    return "..." if value is None else f"{times * value:g}" if isinstance(value, float) else str(times * value)
