"""What a viewer shows at one moment of a run."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class Snapshot:
    """One moment of a run. None: not known (yet). Losses are nats per token, memory GiB, times seconds, shares 0 to 1.

    Attributes:
        bpb: validation bits per byte; `validation` is the validation loss.
        data_wait: share of the step time spent waiting for data.
        gpu_utilisation: percent, mean over the GPUs, as `windtunnel.run.METRICS` has it.
        answers: share of held-out questions answered rightly, 0 to 1, where a run asks them.
        step_losses: of a recursive model, the training loss after each supervision step; validation_steps: likewise in the
            last validation, and bpb_steps its bits per byte. Else empty.
        losses: the training loss so far, oldest first, thinned as one likes.
        alerts: (level 'info' | 'warn' | 'bad', message, advice), the newest last.
        silent: seconds since the last sign of life of a run that should train, where that is unusually long.
        phase: what is going on, such as 'training', 'validating', 'saving', 'finished'.
    """

    step: int = 0
    total_steps: int | None = None
    elapsed: float = 0.0
    eta: float | None = None
    loss: float | None = None
    validation: float | None = None
    bpb: float | None = None
    answers: float | None = None
    tokens_per_second: float | None = None
    mfu: float | None = None
    gradient_norm: float | None = None
    memory_gib: float | None = None
    memory_limit_gib: float | None = None
    gpu_utilisation: float | None = None
    data_wait: float | None = None
    dollars: float | None = None
    dollars_forecast: float | None = None
    dollars_budget: float | None = None
    step_losses: list[float] = field(default_factory=list)
    validation_steps: list[float] = field(default_factory=list)
    bpb_steps: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    alerts: list[tuple[str, str, str]] = field(default_factory=list)
    silent: float | None = None
    phase: str = "training"
    title: str = ""

    @property
    def goal(self) -> int | None:
        """Steps the run will have; never fewer than it has done, which a plan by the clock may have said."""
        return max(self.total_steps, self.step) if self.total_steps else None

    @property
    def progress(self) -> float | None:
        """Share of the steps done, 0 to 1."""
        return min(1.0, self.step / self.total_steps) if self.total_steps else None

    @property
    def refinement(self) -> float | None:
        """Percent by which the last supervision step's training loss is below the first's; None: there is one step at most."""
        first, *later = self.step_losses or [0.0]
        return 100 * (first - later[-1]) / first if later and first else None


def as_snapshot(value: Snapshot | dict[str, Any]) -> Snapshot:
    """Return a Snapshot from itself or from a mapping with its fields; other keys are ignored."""
    if isinstance(value, Snapshot):
        return value
    # The training room, which must not import this one, hands over a plain mapping, perhaps with more.
    names = {f.name for f in fields(Snapshot)}
    return Snapshot(**{key: item for key, item in value.items() if key in names})
