"""Rank 0's judgement: what to do before the next step, and what to make of the last one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from windtunnel.evaluate import Validation
from windtunnel.recipe import Every, Recipe
from windtunnel.run import (
    Alert,
    BandWatch,
    BudgetClock,
    CheckpointWriter,
    DiskFull,
    Metrics,
    RunFolder,
    StopRequest,
    described,
    step_values,
)

from .job import Job
from .readings import step_readings, validation_readings
from .schedule import learning_rate_scale
from .step import Pending, StepResult
from .telemetry import GpuMonitor, memory

# Before the first save and validation have been measured: a slow disk's pace, and a few seconds.
DISK_BYTES_PER_SECOND = 500e6
FIRST_VALIDATION_SECONDS = 2.0
LOSSES_SHOWN = 400
SPENT_PERIOD = 5.0
FINISHED = 0.97  # a run whose schedule got this far ended as planned
RETRY_SECONDS = 60.0
SHOWN = ("loss", "tokens_per_second", "mfu", "gradient_norm", "memory_gib", "gpu_utilisation", "dollars", "dollars_forecast")


class View(Protocol):
    """Shows a run while it trains; see `windtunnel.watch`."""

    def update(self, snapshot: Any) -> None:
        """Fields of a `windtunnel.watch.Snapshot`."""

    def say(self, text: str) -> None:
        """One line that stays."""


@dataclass
class Directive:
    """What every rank does before its next step. `progress` is the share of the run done."""

    progress: float = 0.0
    validate: bool = False
    save: bool = False
    stop: str | None = None
    exit_code: int = 0
    rewind: dict[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON."""
        return asdict(self)


@dataclass
class Timer:
    """When something that happens every so many steps or seconds is due."""

    every: Every
    clock: Callable[[], float] = time.monotonic
    last: float = field(default_factory=time.monotonic)
    step: int = 0

    def due(self, step: int) -> bool:
        """Whether it is due after `step` steps; once a step at most."""
        if step == self.step:
            return False
        if self.every.steps is not None:
            return step % self.every.steps == 0
        return self.clock() - self.last >= (self.every.seconds or 0.0)

    def done(self, step: int) -> None:
        """It happened at `step`."""
        self.last, self.step = self.clock(), step


class Supervisor:
    """Decides (budget, signals, bands, intervals) and records (metrics, events, view). Lives on rank 0 only."""

    def __init__(
        self, *, run: RunFolder, recipe: Recipe, job: Job, metrics: Metrics, clock: BudgetClock, bands: BandWatch,
        stop: StopRequest, writer: CheckpointWriter, view: View, flops_per_token: float, peak_flops: float | None,
    ) -> None:  # fmt: skip
        self.run, self.recipe, self.job, self.metrics, self.clock, self.bands = run, recipe, job, metrics, clock, bands
        self.stop, self.writer, self.view = stop, writer, view
        self._flops_per_token, self._peak_flops = flops_per_token, peak_flops
        self.validate_timer = Timer(recipe.pretrain.validate_every)
        self.save_timer = Timer(recipe.checkpoints.every)
        self.validated: tuple[int, Validation] | None = None
        self.rewinds = 0
        self.rewind_due: str | None = None
        self._stop_due: str | None = None
        self._saved: set[int] = set()
        self._save_seconds: float | None = None
        self._validate_seconds: float | None = None
        self._retry_save_at = 0.0
        self._losses: list[float] = []
        self._fields: dict[str, Any] = {"title": self._title()}
        self._waited = 0.0
        self._spent_at = 0.0
        self._began = time.monotonic()
        self._monitor = GpuMonitor(job.layout.ranks if job.layout.device == "cuda" else 0)

    def _title(self) -> str:
        plan, rig = self.run.manifest["plan"], self.run.manifest["rig"]
        params = plan["params"]
        size = f"{params / 1e6:,.1f} M" if params >= 1e6 else f"{params / 1e3:,.1f} k"
        return f"{self.recipe.name} d{plan['depth']}, {size} parameters on {rig['name']}"

    # Deciding

    def decide(self, step: int, pending: Pending | None) -> Directive:
        """What to do after `step` steps. Waits for the GPU only when something is due."""
        self._collect_save()
        reserve = self._reserve()
        reason, code = self._end(step, reserve)
        validate = self.validate_timer.due(step) or (reason is not None and self.validate_timer.step != step)
        save = self._save_due(step) or (reason is not None and step not in self._saved)
        # A checkpoint saved by the clock carries its validation loss, so that the best can be told.
        validate = validate or (save and self.save_timer.every.seconds is not None and self.validate_timer.step != step)
        if (validate or save or reason) and pending is not None:
            self.observe(pending.result())
        if self.rewind_due is not None:
            return self._rewind(step)
        if step == 0:
            validate = save = False
        if save and not self._room():
            save = False
            if reason is not None:
                reason, code = f"{reason}; the last checkpoint could not be saved: no room on the disk", 1
        if self.clock.timed and step and (step % 10 == 0 or validate):
            self.clock.replan(step, reserve_seconds=reserve)
        progress = self._progress(step)
        return Directive(progress, validate=validate, save=save, stop=reason, exit_code=code)

    def _progress(self, step: int) -> float:
        if self.clock.timed and not self.clock.total_steps:
            # Before a step has been timed: the share of the time that has gone.
            return min(1.0, self.clock.session_seconds / max(1e-9, self.clock.session_seconds + (self.clock.seconds_left or 0.0)))
        return self.clock.progress(step)

    def _end(self, step: int, reserve: float) -> tuple[str | None, int]:
        if self._stop_due is not None:
            return self._stop_due, 0
        if self.stop.requested is not None:
            return self.stop.requested, 3
        pace = self.clock.step_seconds or 0.0
        if self.validate_timer.due(step):
            pace += self._validate_seconds or FIRST_VALIDATION_SECONDS
        reason = self.clock.exhausted(step, pace, reserve) if step else None
        if reason is None:
            return None, 0
        return reason, 0 if self._progress(step) >= FINISHED else 3

    def _reserve(self) -> float:
        """Seconds for the last validation and checkpoint."""
        size = 4 * (4 if self.job.optimizer.averages else 3) * self.run.manifest["plan"]["params"]
        save = self._save_seconds if self._save_seconds is not None else 1.0 + size / DISK_BYTES_PER_SECOND
        validate = self._validate_seconds if self._validate_seconds is not None else FIRST_VALIDATION_SECONDS
        return 1.2 * (save + validate)

    def _save_due(self, step: int) -> bool:
        return self.save_timer.due(step) and not self.writer.busy and time.monotonic() >= self._retry_save_at

    def _room(self) -> bool:
        try:
            self.writer.check_room(round(self.run.manifest["plan"]["checkpoint_gib"] * 2**30))
        except DiskFull as error:
            self._retry_save_at = time.monotonic() + RETRY_SECONDS
            self.event("disk_full", error.message, "bad", {"advice": error.fix or ""})
            return False
        return True

    def _rewind(self, step: int) -> Directive:
        reason, self.rewind_due = self.rewind_due or "", None
        self.rewinds += 1
        limit = self.recipe.bands.rewinds
        if self.rewinds > limit:
            return Directive(stop=f"{reason}; went back {limit} times already (bands.rewinds)", exit_code=1)
        self._await_writer()
        checkpoint = self.writer.store.newest_good(with_optimizer=True)
        target = checkpoint.step if checkpoint else 0
        skip = self.recipe.bands.skip_batches * self.job.layout.batch_sequences
        position = self.job.loader.position + skip
        self.event("rewind", f"{reason}: back to step {target:,}, skipping {self.recipe.bands.skip_batches} batches", "bad")
        return Directive(rewind={"step": target, "position": position})

    # Recording

    def observe(self, result: StepResult) -> None:
        """Record a step's results and judge them; a step is observed once."""
        if result.step <= self._fields.get("step", -1):
            return
        now, seconds = time.monotonic(), result.seconds
        waited, self._waited = self.job.loader.wait_seconds - self._waited, self.job.loader.wait_seconds
        self.clock.tick()
        values = self._values(result, seconds, waited)
        self.metrics.log(result.step, values)
        self._judge(result.step, values)
        self._losses.append(result.loss)
        if len(self._losses) > LOSSES_SHOWN:
            self._losses = self._losses[::2]
        if now - self._spent_at > SPENT_PERIOD:
            self._spent_at = now
            self.clock.save_spent(self.run.spent_path)
        self._show(result.step, values)

    def _values(self, result: StepResult, seconds: float, waited: float) -> dict[str, float]:
        layout, step = self.job.layout, result.step
        speed = layout.batch_tokens / max(seconds, 1e-9)
        values = {
            **step_readings(result),
            "step_seconds": seconds,
            "tokens_per_second": speed,
            "data_wait_share": min(1.0, waited / max(seconds, 1e-9)),
            "progress": self._progress(step),
            "learning_rate": learning_rate_scale(self.recipe.pretrain.schedule, step - 1, self._progress(step - 1)),
            "epoch": self.job.loader.epochs,
        }
        if self._peak_flops:
            values["mfu"] = speed * self._flops_per_token / self._peak_flops
        used = memory(self.job.ranks.device)
        if used is not None:
            values["memory_gib"], values["memory_share"] = used[0], used[0] / used[1]
            self._fields["memory_limit_gib"] = used[1]
        busy = self._monitor.utilisation()
        if busy is not None:
            values["gpu_utilisation"] = busy
        spent, forecast = self.clock.dollars_spent, self.clock.forecast_dollars(step, reserve_seconds=self._reserve())
        if spent is not None:
            values["dollars"] = spent
        if forecast is not None:
            values["dollars_forecast"] = forecast
        assert all(described(name) for name in values)
        return values

    def _judge(self, step: int, values: dict[str, float]) -> None:
        for alert in self.bands.observe(step, values):
            self._act(alert)

    def _act(self, alert: Alert) -> None:
        data = {"advice": alert.advice, "band": alert.band, "action": alert.action}
        self.event(f"band:{alert.band}", alert.message, alert.level, data)
        if alert.action == "rewind":
            self.rewind_due = self.rewind_due or alert.message
        elif alert.action == "stop_overfit":
            best = self.bands.best_validation
            self._stop_due = f"{alert.message}; the checkpoint to use is of step {best[0]:,}" if best else alert.message

    def validation(self, step: int, result: Validation, seconds: float) -> None:
        """Record a validation."""
        self.validate_timer.done(step)
        self.validated, self._validate_seconds = (step, result), seconds
        values = validation_readings(result)
        self.metrics.log(step, values)
        self._judge(step, values)
        self._fields |= {"validation": result.loss, "bpb": result.bits_per_byte}
        self._fields["validation_steps"] = [item.loss for item in result.steps]
        self._fields["bpb_steps"] = [item.bits_per_byte for item in result.steps]

    def saving(self, step: int) -> None:
        """A save of `step` has begun."""
        self.save_timer.done(step)
        self._saved.add(step)

    def spoiled(self, step: int) -> None:
        """The weights of `step` are not finite, so that they were not saved: go back."""
        self._saved.discard(step)
        self.rewind_due = self.rewind_due or f"weights after step {step:,} are not finite"

    def rewound(self, step: int) -> None:
        """The run went back to `step`."""
        self.metrics.rewind(step)
        self.bands.rewound(step)
        self._fields["step"] = step
        self._saved = {s for s in self._saved if s <= step}

    def event(self, kind: str, message: str, level: Any = "info", data: dict[str, Any] | None = None) -> None:
        """Record and show something that happened."""
        self.metrics.event(kind, self._fields.get("step", 0), message, level, data)
        if level != "info":
            self.view.say(f"{level}: {message}" + (f"\n  {data['advice']}" if data and data.get("advice") else ""))

    def phase(self, name: str) -> None:
        """What is going on now."""
        self._fields["phase"] = name
        self.view.update(dict(self._fields))

    def _show(self, step: int, values: dict[str, float]) -> None:
        alerts = [(alert.level, alert.message, alert.advice) for alert in self.bands.active]
        self._fields |= {
            "step": step, "total_steps": self.clock.total_steps or None, "elapsed": self.clock.session_seconds,
            "eta": self.clock.seconds_to_go(step), "losses": list(self._losses), "alerts": alerts, "phase": "training",
            "dollars_budget": self.recipe.budget.dollars, "data_wait": values["data_wait_share"],
        }  # fmt: skip
        self._fields |= {name: values[name] for name in SHOWN if name in values}
        self._fields["step_losses"] = step_values(values, "loss")
        self.view.update(dict(self._fields))

    def _collect_save(self) -> None:
        try:
            saved = self.writer.poll()
        except Exception as error:
            self.event("checkpoint_failed", f"checkpoint not saved: {error}", "bad")
            return
        if saved is not None:
            self._save_seconds = saved.seconds

    def _await_writer(self) -> None:
        if self.writer.busy:
            self.writer.wait()
        self._collect_save()

    def state(self) -> dict[str, Any]:
        """JSON for the checkpoint."""
        return {"budget": self.clock.state(), "bands": self.bands.state(), "rewinds": self.rewinds}

    def load_state(self, state: dict[str, Any], step: int) -> None:
        """Go on from a checkpoint of `step`."""
        self.clock.load_state(state["budget"])
        self.bands.load_state(state["bands"])
        self.rewinds = int(state["rewinds"])
        self.validate_timer.step = self.save_timer.step = step
        self._fields["step"] = step
        self._saved.add(step)

    def close(self) -> None:
        """Record what was spent and stop sampling."""
        self._monitor.close()
        self.clock.save_spent(self.run.spent_path)
