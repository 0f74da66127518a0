"""What a run tells about itself: metrics and events in its journal, the view, and the GPUs' utilisation and memory."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import torch

from windtunnel.run import BandWatch, BudgetClock, Metrics, described, of_step, step_values

from .callbacks import Callback, Values
from .engine import StepResult, Supervised
from .schedule import learning_rate_scale

if TYPE_CHECKING:
    from windtunnel.evaluate import Answered, Validation

LOSSES_SHOWN = 400
SHOWN = ("loss", "tokens_per_second", "gradient_norm", "memory_gib", "gpu_utilisation", "dollars_forecast")
SHOW_SECONDS = 1.0
"""Between two looks at what is going on beside steps, which show themselves."""
SAMPLE_SECONDS = 1.0
TRAINING = "training"


class View(Protocol):
    """Shows a run while it trains; see `windtunnel.watch`."""

    def update(self, snapshot: Any) -> None:
        """Show the fields of a `windtunnel.watch.Snapshot`."""

    def say(self, text: str) -> None:
        """Show one line that stays."""

    def close(self) -> None:
        """Give the terminal back."""


class Silent:
    """A view that shows nothing."""

    def update(self, snapshot: Any) -> None:
        """Show nothing."""

    def say(self, text: str) -> None:
        """Say nothing."""

    def close(self) -> None:
        """Have no terminal to give back."""


class Journal:
    """Where everything that happens is recorded and shown. Ranks other than 0 have one without metrics, which is silent.

    Attributes:
        metrics: the run's; None: nothing is recorded.
        fields: what the view shows; see `windtunnel.watch.Snapshot`.
        moving: gives those of the fields that go on by themselves, as they are now.
    """

    def __init__(self, metrics: Metrics | None = None, view: View | None = None) -> None:
        self.metrics, self._view = metrics, view or Silent()
        self.fields: dict[str, Any] = {}
        self.moving: Callable[[], dict[str, Any]] = dict
        self._showing = threading.Lock()  # a view is brought up to date by the clock, too
        if metrics is not None:
            metrics.on_problem = lambda text: self.say(f"warn: {text}")

    def event(self, kind: str, message: str, level: Any = "info", data: dict[str, Any] | None = None) -> None:
        """Record and show something that happened after the step that was last shown."""
        if self.metrics is None:
            return
        self.metrics.event(kind, self.fields.get("step", 0), message, level, data)
        if level != "info":
            self.say(f"{level}: {message}" + (f"\n  {data['advice']}" if data and data.get("advice") else ""))

    def say(self, text: str) -> None:
        """Show one line that stays."""
        with self._showing:
            self._view.say(text)

    def phase(self, name: str) -> None:
        """Show what is going on now."""
        self.fields["phase"] = name
        self.show()

    def show(self) -> None:
        """Bring the view up to date."""
        with self._showing:
            self.fields |= self.moving()
            self._view.update(dict(self.fields))


class Telemetry(Callback):
    """Measures, records and shows every step. The last of the callbacks: by then the others have added their metrics.

    Args:
        title: what the view says above the run.
        gpus: how many to watch.
        flops_per_token: of training, forward and backward. peak_flops: of all ranks a second; None: unknown.
        clock, bands: of the budget and of health, to be shown.
        dollars: of the budget, if any.
    """

    def __init__(
        self, title: str, *, gpus: int, flops_per_token: float, peak_flops: float | None, clock: BudgetClock, bands: BandWatch,
        dollars: float | None,
    ) -> None:  # fmt: skip
        self._title, self._clock, self._bands, self._dollars = title, clock, bands, dollars
        self._flops_per_token, self._peak_flops = flops_per_token, peak_flops
        self._monitor = GpuMonitor(gpus)
        self._losses: list[float] = []
        self._waited = 0.0
        self._ended = threading.Event()
        self._going_on = threading.Thread(target=self._go_on, name="view", daemon=True)

    def start(self, loop: Any) -> None:
        """Begin to show a run."""
        super().start(loop)
        loop.journal.fields["title"] = self._title
        loop.journal.moving = self._moving
        if loop.step:
            loop.journal.fields["step"] = loop.step
        self._going_on.start()

    def measure(self, result: StepResult, values: Values) -> None:
        """Add losses, speed and what the machine does."""
        engine = self.loop.engine
        layout, batches, step = engine.layout, engine.feed.batches, result.step
        seconds = max(result.seconds, 1e-9)
        # The loader counts over the whole run; a step's share is what was added since the last one.
        waited, self._waited = batches.wait_seconds - self._waited, batches.wait_seconds
        # A round's tokens are known when its answers are there, a layout's ahead.
        speed = (result.tokens or layout.batch_tokens) / seconds
        values |= step_readings(result)
        values |= {
            "step_seconds": result.seconds,
            "tokens_per_second": speed,
            "data_wait_share": min(1.0, waited / seconds),
            "learning_rate": learning_rate_scale(engine.schedule, step - 1, self.loop.progress(step - 1)),
            "epoch": self.loop.epochs.get(step, batches.epochs),
        }
        mfu = speed * self._flops_per_token / self._peak_flops if self._peak_flops else None
        if mfu is not None and mfu <= 1.0:  # more is of a peak that is not this machine's, or of a model whose FLOPs say nothing
            values["mfu"] = mfu
        # Peak since the start: a step that needed more earlier is what may run out again.
        used = memory(torch.device(layout.device))
        if used is not None:
            values["memory_gib"], values["memory_share"] = used[0], used[0] / used[1]
            self.loop.journal.fields["memory_limit_gib"] = used[1]
        busy = self._monitor.utilisation()
        if busy is not None:
            values["gpu_utilisation"] = busy
        assert all(described(name) for name in values)

    def after_step(self, result: StepResult, values: Values) -> None:
        """Record and show a step."""
        journal, step = self.loop.journal, result.step
        assert journal.metrics is not None
        journal.metrics.log(step, values)
        self._losses.append(result.loss)
        # A view is sent all of them with every step.
        if len(self._losses) > LOSSES_SHOWN:
            # Half as dense, and still from the first step on: a curve needs its beginning.
            self._losses = self._losses[::2]
        alerts = [(alert.level, alert.message, alert.advice) for alert in self._bands.active]
        journal.fields |= {
            "step": step, "total_steps": self._clock.total_steps or None, "eta": self._clock.seconds_to_go(step),
            "losses": list(self._losses), "alerts": alerts, "phase": TRAINING,
            "dollars_budget": self._dollars, "data_wait": values["data_wait_share"],
        }  # fmt: skip
        journal.fields |= {name: values[name] for name in SHOWN if name in values} | {"mfu": values.get("mfu")}
        journal.fields["step_losses"] = step_values(values, "loss")
        journal.show()

    def validated(self, step: int, result: Validation, values: Values, seconds: float) -> None:
        """Record a validation; it is shown with the next step."""
        journal = self.loop.journal
        assert journal.metrics is not None
        journal.metrics.log(step, values)
        journal.fields |= {"validation": result.loss, "bpb": result.bits_per_byte}
        journal.fields["validation_steps"] = [item.loss for item in result.steps]
        journal.fields["bpb_steps"] = [item.bits_per_byte for item in result.steps]

    def answered(self, step: int, result: Answered, values: Values, seconds: float) -> None:
        """Record the score, and the first answers that are not right; they are shown with the next step."""
        journal = self.loop.journal
        assert journal.metrics is not None
        journal.metrics.log(step, values)
        journal.fields["answers"] = result.share
        text = f"held-out answers ({result.metric}): {result}"
        journal.event("answers", text, "info", result.to_json())
        journal.say(f"step {step:,}: {text}")

    def rewound(self, step: int) -> None:
        """Take back what was recorded since."""
        if self.loop.journal.metrics is not None:
            self.loop.journal.metrics.rewind(step)
        self.loop.journal.fields["step"] = step

    def close(self) -> None:
        """Stop sampling, and showing what goes on by itself."""
        self._monitor.close()
        self._ended.set()
        if self._going_on.is_alive():
            self._going_on.join()

    def _moving(self) -> dict[str, Any]:
        """Return what has been spent until now."""
        return {"elapsed": self._clock.session_seconds, "dollars": self._clock.dollars_spent}

    def _go_on(self) -> None:
        """Show that time and dollars go on while something else than steps is under way, such as held-out answers."""
        while not self._ended.wait(SHOW_SECONDS):
            # While steps are taken each of them shows itself, and the clock would only redraw the same.
            if self.loop.journal.fields.get("phase", TRAINING) != TRAINING:
                self.loop.journal.show()


def step_readings(result: StepResult) -> Values:
    """Return loss and gradient norm; of a recursive model also those of each supervision step, and what they say together."""
    values = {"loss": result.loss, "gradient_norm": result.gradient_norm, **result.more}
    if result.targets is not None:
        values["targets"] = result.targets
    return values if result.supervised is None else values | _supervised(result.supervised)


def _supervised(found: Supervised) -> Values:
    values = {of_step("loss", i): loss for i, loss in enumerate(found.losses)}
    values |= {of_step("gradient_norm", i): norm for i, norm in enumerate(found.gradient_norms)}
    values["objective"] = found.objective
    if len(found.losses) > 1:
        values |= {"refinement": refinement(found.losses), "supervision_order": float(in_order(found.losses))}
    if found.halting is not None:
        values["halting_loss"], values["halting_accuracy"] = found.halting
    if found.solved:
        values["solved"] = found.solved[-1]
        values |= {of_step("solved", i): share for i, share in enumerate(found.solved)}
    return values


def validation_readings(result: Validation) -> Values:
    """Return loss and bits per byte; of a recursive model also after each supervision step."""
    values = {"validation_loss": result.loss, "validation_bits_per_byte": result.bits_per_byte}
    for i, step in enumerate(result.steps):
        values[of_step("validation_loss", i)] = step.loss
        values[of_step("bits_per_byte", i)] = step.bits_per_byte
    return values


def answer_readings(result: Answered) -> Values:
    """Return the share of right answers with its interval, and the counts behind it."""
    low, high = result.interval
    values = {"answers_right": result.share, "answers_low": low, "answers_high": high, "answers_judged": float(result.n)}
    values |= {} if result.reward is None else {"answers_reward": result.reward}
    return values | {"answers_unknown": float(result.unknown), "answers_cut": float(result.cut)}


def refinement(losses: tuple[float, ...]) -> float:
    """Return the percent by which the last of the losses is below the first."""
    return 100.0 * (losses[0] - losses[-1]) / losses[0] if losses[0] else 0.0


def in_order(losses: tuple[float, ...]) -> bool:
    """Return whether each loss is below the one before."""
    return all(later < earlier for earlier, later in pairwise(losses))


class GpuMonitor:
    """Samples the utilisation of this process's GPUs through NVML once a second. Silent without NVML or GPUs."""

    def __init__(self, devices: int) -> None:
        self._devices = devices
        self._samples: list[float] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="gpu-monitor", daemon=True)
        if devices:
            self._thread.start()

    def utilisation(self) -> float | None:
        """Return the mean percent since the last call; None when nothing was sampled."""
        with self._lock:
            samples, self._samples = self._samples, []
        return sum(samples) / len(samples) if samples else None

    def close(self) -> None:
        """Stop sampling."""
        self._stop.set()

    def _sample(self) -> None:
        # Utilisation is worth showing where it can be had; nothing depends on it.
        with contextlib.suppress(Exception):
            import pynvml

            pynvml.nvmlInit()
            handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(self._devices)]
            while not self._stop.wait(SAMPLE_SECONDS):
                # The mean over GPUs: one that waits for the others shows as much as all that do.
                values = [float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu) for handle in handles]
                with self._lock:
                    # Bounded, as nobody takes samples while a long step or a save is under way.
                    self._samples = [*self._samples, sum(values) / len(values)][-600:]


def memory(device: torch.device) -> tuple[float, float] | None:
    """Return (peak GiB reserved by this process, GiB the GPU has), or None on a CPU."""
    if device.type != "cuda":
        return None
    total = torch.cuda.get_device_properties(device).total_memory
    return torch.cuda.max_memory_reserved(device) / 2**30, total / 2**30
