"""What a readiness report says; `write_report` draws it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class CheckRow:
    """One thing that was proven, or not.

    Attributes:
        check: its name. proves: what it shows. evidence: what was seen. remedy: what to do when it failed.
        status: ok, fail, warn (passed, with a reservation) or skip (this machine cannot tell; `remedy` says what can).
        later: what finding its failure later would cost.
    """

    check: str
    proves: str
    evidence: str
    seconds: float
    status: Literal["ok", "fail", "warn", "skip"]
    remedy: str = ""
    later: str = ""


@dataclass(frozen=True)
class Memory:
    """Planned memory of one rank: GiB by component, and the limit."""

    components: dict[str, float]
    limit_gib: float | None = None


@dataclass(frozen=True)
class PlanRow:
    """A plan for one rig: (label, value, source) rows, its memory, and why it does not fit or what to note.

    `picture` is SVG of our own making, put into the page as it is.
    """

    rig: str
    fits: bool
    lines: list[tuple[str, str, str]]
    memory: Memory | None = None
    notes: list[str] = field(default_factory=list)
    picture: str = ""


@dataclass(frozen=True)
class Curve:
    """Points of one line of a chart: (x, y); x is a step unless the chart says otherwise."""

    name: str
    points: list[tuple[float, float]]


@dataclass(frozen=True)
class SupervisionCurves:
    """Losses after each supervision step, over the steps of a run; see `supervision_curves`.

    Attributes:
        training, held_out: true cross-entropy (nats per token) after each supervision step.
        refinement: percent by which the last of these is below the first.
        order: percent of the steps around in which each is below the one before.
        solved: percent of training samples (puzzles) answered wholly right after each supervision step.
        uniform: loss of a model that knows nothing; None: not known.
    """

    training: list[Curve]
    held_out: list[Curve] = field(default_factory=list)
    refinement: list[Curve] = field(default_factory=list)
    order: list[Curve] = field(default_factory=list)
    solved: list[Curve] = field(default_factory=list)
    uniform: float | None = None


@dataclass(frozen=True)
class Sample:
    """A prompt and what the model made of it."""

    prompt: str
    text: str
    note: str = ""


@dataclass(frozen=True)
class Report:
    """All of a readiness report. Empty parts are left out of the page.

    Attributes:
        title: such as 'charlm is ready for 8xH100'. verdict: one sentence.
        ready: whether every check held. subtitle: date, machine, run folder.
        rungs: (name, whether it is ready, in words) of the ladder from a CPU to a cluster.
        loss: training and validation loss (nats per token) over steps. memory: GiB over steps. cost: dollars over steps.
        supervision: of a run whose loss is taken after each of several supervision steps.
        budget_dollars: drawn as a limit in the cost chart. memory_limit_gib: likewise for memory.
        evaluation: (name, value, explanation). environment: (name, value). recipe: the resolved recipe as YAML.
    """

    title: str
    verdict: str
    ready: bool
    subtitle: str = ""
    rungs: list[tuple[str, bool, str]] = field(default_factory=list)
    checks: list[CheckRow] = field(default_factory=list)
    plans: list[PlanRow] = field(default_factory=list)
    loss: list[Curve] = field(default_factory=list)
    memory: list[Curve] = field(default_factory=list)
    memory_limit_gib: float | None = None
    cost: list[Curve] = field(default_factory=list)
    budget_dollars: float | None = None
    supervision: SupervisionCurves | None = None
    evaluation: list[tuple[str, str, str]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    environment: list[tuple[str, str]] = field(default_factory=list)
    recipe: str = ""

    def __post_init__(self) -> None:
        assert not (self.ready and any(c.status == "fail" for c in self.checks)), "a report with a failed check is not ready"
