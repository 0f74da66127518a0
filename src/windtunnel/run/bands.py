"""Health bands: each watches one metric, raises an alert once, and clears it when things are good again.

Two bands act: what is not finite, or spikes past the limit, asks to go back to the last good checkpoint;
overfitting asks to stop. Other rooms add bands of their own metrics as judges (see `windtunnel.run.names`).
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from windtunnel.recipe import Bands

from . import names

Level = Literal["warn", "bad"]
Action = Literal["rewind", "stop_overfit"]
WINDOW = 128  # steps a running mean or median looks back; as OLMo-core's skip-step
ENOUGH = 32  # values before a window says anything
THROUGHPUT = "throughput"
START_STEPS = 10  # steps whose speed is not judged: compilation, warming caches


@dataclass(frozen=True)
class Finding:
    """What a judge says of one band at one step.

    Attributes:
        message: what is wrong; None: all is well.
        patience: so many in a row raise the band, or clear it again.
        replaces: a band that is not raised at a step where this one finds something.
        advice: what to do about it, where `Targets.advice` has nothing for the band.
        early: it is judged from the first step of a session on, as what no start can excuse.
    """

    band: str
    level: Level
    message: str | None
    patience: int
    replaces: str | None = None
    advice: str = ""
    early: bool = False


Judge = Callable[[Mapping[str, float]], Sequence[Finding]]
"""Judges the metrics of one step, all of them finite; what is not among them is not judged."""


@dataclass(frozen=True)
class Targets:
    """What this run was planned to reach; None: not known, and that band is silent.

    Attributes:
        judges: of the metrics that other rooms log. advice: by band, what to do about it.
        loss_falls: False where the loss is no measure of quality, as a policy's is not: then its spikes mean nothing.
    """

    tokens_per_second: float | None = None
    dollars: float | None = None
    judges: tuple[Judge, ...] = ()
    advice: Mapping[str, str] = field(default_factory=dict)
    loss_falls: bool = True


@dataclass(frozen=True)
class Alert:
    """A band that is not good.

    Attributes:
        band: its name.
        message: what was seen, with numbers.
        advice: what to do about it.
        action: what the trainer must do now, if anything.
    """

    band: str
    level: Level
    message: str
    advice: str
    step: int
    action: Action | None = None


@dataclass(frozen=True)
class GateResult:
    """One gate and what a run showed.

    Attributes:
        name: its key in the recipe. held: whether the condition holds.
        value: the number or numbers judged; None: not measured. measured: the same as text.
        limit: what was asked for, as text. advice: what to do where it does not hold.
    """

    name: str
    held: bool
    value: float | list[float] | None
    measured: str
    limit: str
    advice: str | None

    def to_json(self) -> dict[str, Any]:
        """Stable keys: what the manifest's `gates` holds. JSON has no NaN: null stands for it, `measured` says it."""
        numbers = self.value if isinstance(self.value, list) else [self.value]
        finite = [number if number is not None and math.isfinite(number) else None for number in numbers]
        return asdict(self) | {"value": finite if isinstance(self.value, list) else finite[0]}


@dataclass(frozen=True)
class _Limits:
    """A plain band: warn past one value, bad past another, good again past a third. `raises`: bad is above."""

    band: str
    metric: str
    warn: float
    bad: float
    clear: float
    raises: bool
    patience: int  # observations in a row before it is raised, and before it is cleared
    words: str  # message; gets value and warn

    def level(self, value: float) -> Level | None:
        if self._past(value, self.bad):
            return "bad"
        return "warn" if self._past(value, self.warn) else None

    def good(self, value: float) -> bool:
        return not self._past(value, self.clear)

    def _past(self, value: float, limit: float) -> bool:
        return value > limit if self.raises else value < limit


class BandWatch:
    """Watches a run's metrics step by step (rank 0). Its state is JSON, so that a resumed run goes on watching.

    Args:
        bands: the recipe's limits.
        targets: what was planned.
        first_step: first step of this session; speed is not judged in the first steps after it.
    """

    def __init__(self, bands: Bands, targets: Targets | None = None, *, first_step: int = 0) -> None:
        self._bands = bands
        self._first_step = first_step
        targets = targets or Targets()
        self._plain = _plain_bands(bands, targets)
        self._judges, self._advice, self._loss_falls = targets.judges, targets.advice, targets.loss_falls
        self._active: dict[str, Alert] = {}
        self._streaks: dict[str, int] = {}  # > 0: observations in a row past the limit; < 0: good ones
        self._losses: deque[float] = deque(maxlen=WINDOW)
        self._norms: deque[float] = deque(maxlen=WINDOW)
        self._spikes = 0
        self._best: tuple[int, float] | None = None
        self._rising = 0

    @property
    def active(self) -> list[Alert]:
        """Alerts that hold now."""
        return list(self._active.values())

    @property
    def best_validation(self) -> tuple[int, float] | None:
        """(step, loss) of the lowest validation loss seen."""
        return self._best

    def observe(self, step: int, metrics: Mapping[str, float], *, saving: bool = False) -> list[Alert]:
        """Judge the metrics of a step (see `names.METRICS`; absent ones are not judged).

        Args:
            step: its number.
            metrics: of it.
            saving: a checkpoint was being saved meanwhile, so that its speed says nothing of the others.

        Returns:
            alerts raised, or made worse, by this step. One with an action is returned each time it is due.
        """
        raised: list[Alert | None] = []
        finite = self._check_finite(step, metrics, raised)
        found = [finding for judge in self._judges for finding in judge(metrics)] if finite else []
        replaced = {finding.replaces for finding in found if finding.message is not None}
        if finite and names.LOSS in metrics and self._loss_falls:
            raised.append(self._check_loss(step, metrics[names.LOSS]))
        if finite and names.GRADIENT_NORM in metrics:
            # Spikes and norms apart: a norm may jump without the loss doing so, which is worth knowing before it does.
            raised.append(self._check_norm(step, metrics[names.GRADIENT_NORM], replaced="gradient_norm" in replaced))
        if math.isfinite(metrics.get(names.VALIDATION_LOSS, math.nan)):
            raised.append(self._check_validation(step, metrics[names.VALIDATION_LOSS]))
            raised.append(self._check_gap(step, metrics[names.VALIDATION_LOSS]))
        for limits in self._plain:
            if saving and limits.band == THROUGHPUT:
                continue
            # Resuming compiles anew, so each session has its slow first steps.
            if limits.metric in metrics and step - self._first_step >= START_STEPS:
                raised.append(self._check_plain(step, limits, metrics[limits.metric]))
        started = step - self._first_step >= START_STEPS
        raised += [self._check_found(step, finding) for finding in found if started or finding.early]
        return [alert for alert in raised if alert is not None]

    def rewound(self, step: int) -> None:
        """Forget what was seen since `step`, to which the run went back."""
        self._spikes = 0
        self._streaks.clear()
        for band in ("not_finite", "loss_spike", "gradient_norm", "gradient_norm_limit"):
            self._active.pop(band, None)
        # Loading the state and passing over batches takes time that is no step's.
        self._first_step = step

    def state(self) -> dict[str, Any]:
        """JSON for the checkpoint."""
        return {
            "active": [asdict(alert) for alert in self.active],
            "streaks": dict(self._streaks),
            "losses": list(self._losses),
            "norms": list(self._norms),
            "spikes": self._spikes,
            "best": self._best,
            "rising": self._rising,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state()`."""
        self._active = {item["band"]: Alert(**item) for item in state["active"]}
        self._streaks = dict(state["streaks"])
        self._losses.extend(state["losses"])
        self._norms.extend(state["norms"])
        self._spikes, self._rising = state["spikes"], state["rising"]
        self._best = (int(state["best"][0]), float(state["best"][1])) if state["best"] else None

    def _check_finite(self, step: int, metrics: Mapping[str, float], raised: list[Alert | None]) -> bool:
        watched = (names.LOSS, names.GRADIENT_NORM, names.VALIDATION_LOSS)
        broken = [name for name in watched if name in metrics and not math.isfinite(metrics[name])]
        if broken:
            what = ", ".join(f"{name} is {metrics[name]}" for name in broken)
            raised.append(self._raise("not_finite", "bad", step, what, "rewind"))
        elif names.LOSS in metrics:
            self._active.pop("not_finite", None)
        return not broken

    def _check_loss(self, step: int, loss: float) -> Alert | None:
        if len(self._losses) < ENOUGH:
            self._losses.append(loss)
            return None
        mean = statistics.fmean(self._losses)
        deviation = statistics.pstdev(self._losses, mean)
        # Losses of a tiny model can be almost constant: below 1 % of the mean nothing is a spike.
        limit = mean + max(self._bands.spike_sigma * deviation, 0.01 * abs(mean))
        # A one-sided test: a loss that falls far is welcome.
        if loss <= limit:
            self._losses.append(loss)
            self._spikes = 0
            self._clear_after("loss_spike", good=ENOUGH)
            return None
        # A spike is not added to the losses: it would raise the limit for those that follow it.
        self._spikes += 1
        self._streaks["loss_spike"] = 0
        what = f"loss {loss:.4g} is above {limit:.4g} (mean {mean:.4g} of the last {len(self._losses)} steps)"
        if self._spikes >= self._bands.spike_limit:
            return self._raise("loss_spike", "bad", step, f"{what}, {self._spikes} steps in a row", "rewind")
        return self._raise("loss_spike", "warn", step, what)

    def _check_norm(self, step: int, norm: float, *, replaced: bool) -> Alert | None:
        # Large ones are added too: a median does not follow a few of them, and follows a norm that has come to stay.
        usual = statistics.median_high(self._norms) if len(self._norms) >= ENOUGH else None
        self._norms.append(norm)
        # Where most gradients are zero, as in a policy whose rewards are all equal, one that is not is no alarm.
        if not usual or replaced:
            return None
        if norm <= self._bands.gradient_norm_warn * usual:
            self._clear_after("gradient_norm", good=10)
            return None
        self._streaks["gradient_norm"] = 0
        return self._raise("gradient_norm", "warn", step, f"gradient norm {norm:.3g} is {norm / usual:.1f} times its median")

    def _check_validation(self, step: int, loss: float) -> Alert | None:
        if self._best is None or loss < self._best[1]:
            self._best = (step, loss)
        best_step, best = self._best
        rise = loss / best - 1 if best > 0 else 0.0
        # Relative, since a corpus of arithmetic may have a loss of 0.01 where text has 3.
        if rise <= self._bands.overfit_margin:  # a plateau, or noise: not rising
            self._rising = 0
            self._active.pop("overfit", None)
            return None
        self._rising += 1
        what = f"validation loss {loss:.4g} is {100 * rise:.1f} % above {best:.4g}, the best, of step {best_step:,}"
        if self._rising >= self._bands.overfit_patience:
            what = f"{what}, at {self._rising} validations in a row"
            return self._raise("overfit", "bad", step, what, "stop_overfit")
        return self._raise("overfit", "warn", step, what) if self._rising >= 2 else None

    def _check_gap(self, step: int, validation: float) -> Alert | None:
        recent = list(self._losses)[-ENOUGH:]
        if len(recent) < ENOUGH:
            return None
        training = sum(recent) / len(recent)
        gap = validation - training
        # A few hundredths of a nat are noise, however small the training loss.
        if gap > self._bands.gap_warn * training and gap > 0.02:
            what = f"validation loss {validation:.4g} is {100 * gap / training:.0f} % above the training loss {training:.4g}"
            return self._raise("gap", "warn", step, what)
        if gap < 0.9 * self._bands.gap_warn * training or gap <= 0.02:
            self._active.pop("gap", None)
        return None

    def _check_plain(self, step: int, limits: _Limits, value: float) -> Alert | None:
        level = limits.level(value)
        lasting = self._lasts(limits.band, level is not None, limits.good(value), limits.patience)
        if level is None or not lasting:
            return None
        return self._raise(limits.band, level, step, limits.words.format(value=value, warn=limits.warn))

    def _check_found(self, step: int, found: Finding) -> Alert | None:
        lasting = self._lasts(found.band, found.message is not None, found.message is None, found.patience)
        if not lasting or found.message is None:
            return None
        return self._raise(found.band, found.level, step, found.message, advice=found.advice)

    def _lasts(self, band: str, past: bool, good: bool, patience: int) -> bool:
        """Count observations past the limit, or good ones, in a row: whether the first are enough; the others clear the band."""
        streak = self._streaks.get(band, 0)
        if past:
            streak = max(streak, 0) + 1
        elif good:
            streak = min(streak, 0) - 1
        self._streaks[band] = streak
        if streak <= -patience:
            self._active.pop(band, None)
        return streak >= patience

    def _raise(
        self, band: str, level: Level, step: int, message: str, action: Action | None = None, advice: str = ""
    ) -> Alert | None:
        known = self._active.get(band)
        # Said once; a warning that becomes bad is said again. One with an action is returned as often as it is due, or it would
        # never be done.
        if known and action is None and (known.level == level or known.level == "bad"):
            return None
        alert = Alert(band, level, message, self._advice.get(band, advice), step, action)
        self._active[band] = alert
        return alert

    def _clear_after(self, band: str, good: int) -> None:
        if band in self._active:
            self._streaks[band] = self._streaks.get(band, 0) - 1
            if self._streaks[band] <= -good:
                del self._active[band]


def _plain_bands(bands: Bands, targets: Targets) -> list[_Limits]:
    found = [
        # A little below where it warns, so that a value around the limit does not raise and clear at every step.
        _Limits("memory", names.MEMORY_SHARE, bands.memory_warn, 1.0, bands.memory_warn - 0.01, True, 1,
                "{value:.1%} of the GPU's memory is in use"),
        _Limits("gpu_utilisation", names.GPU_UTILISATION, 80.0, 40.0, 95.0, False, 10,
                "GPU utilisation is {value:.0f} % (good: 95 and more)"),
        _Limits("data_wait", names.DATA_WAIT, 0.05, 0.25, 0.03, True, 5,
                "{value:.1%} of a step is spent waiting for data"),
    ]  # fmt: skip
    if targets.tokens_per_second:
        plan = targets.tokens_per_second
        warn = bands.throughput_warn * plan
        words = "{value:,.0f} tokens/s, planned were " + f"{plan:,.0f}"
        # Cleared above the warning, but never above the plan, which a run that keeps to it would not reach.
        found.append(_Limits(THROUGHPUT, names.TOKENS_PER_SECOND, warn, 0.6 * warn, min(1.05 * warn, plan), False, 5, words))
    if targets.dollars:
        limit = targets.dollars
        words = "forecast ${value:,.2f} " + f"of a budget of ${limit:,.2f}"
        # A forecast wavers: one percent over the budget is not yet news.
        found.append(_Limits("dollars", names.DOLLARS_FORECAST, 1.01 * limit, 1.5 * limit, limit, True, 5, words))
    return found
