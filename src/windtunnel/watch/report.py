"""The readiness report: what it says, and how it becomes one HTML file that needs nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from .curves import Curve, chart_of
from .evaluated import Sample
from .page import save, template
from .supervision import SupervisionCurves, supervision_charts


@dataclass(frozen=True)
class CheckRow:
    """One thing that was proven, or not.

    Attributes:
        check: its name. proves: what it shows. evidence: what was seen. remedy: what to do when it failed.
        status: ok, fail, warn (passed, with a reservation) or skip (this machine cannot tell; `remedy` says what can).
        later: what finding its failure later would cost. warnings: its reservations.
    """

    check: str
    proves: str
    evidence: str
    seconds: float
    status: Literal["ok", "fail", "warn", "skip"]
    remedy: str = ""
    later: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlanRow:
    """A plan for one rig: (label, value, source) rows, and why it does not fit or what to note.

    `picture` is SVG of our own making, put into the page as it is.
    """

    rig: str
    fits: bool
    lines: list[tuple[str, str, str]]
    notes: list[str] = field(default_factory=list)
    picture: str = ""


@dataclass(frozen=True)
class Report:
    """All of a readiness report. Empty parts are left out of the page.

    Attributes:
        title: such as 'charlm is ready for 8xH100'. verdict: one sentence.
        ready: whether every check held. subtitle: date, machine, run folder.
        rungs: (name, whether it is ready, in words) of the ladder from a CPU to a cluster.
        loss: training and validation loss (nats per token) over steps. memory: GiB over steps. cost: dollars over steps.
        supervision: of a run whose loss is taken after each of several supervision steps.
        budget_dollars: drawn as a limit in the cost chart.
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
    cost: list[Curve] = field(default_factory=list)
    budget_dollars: float | None = None
    supervision: SupervisionCurves | None = None
    evaluation: list[tuple[str, str, str]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    environment: list[tuple[str, str]] = field(default_factory=list)
    recipe: str = ""

    def __post_init__(self) -> None:
        assert not (self.ready and any(c.status == "fail" for c in self.checks)), "a report with a failed check is not ready"


def write_report(path: Path | str, report: Report) -> Path:
    """Write report.html, in one go: a reader never sees half of it. Returns its path.

    Raises:
        UserError: the file cannot be written.
    """
    return save(Path(path), render(report))


def render(report: Report) -> str:
    """Return the page as text. Everything that came from outside is escaped."""
    charts = [
        chart_of("Loss", report.loss, unit="nats per token"),
        chart_of("Memory", report.memory, unit="GiB"),
        chart_of("Cost", report.cost, unit="dollars", limits=[("budget", "bad", report.budget_dollars)]),
        *supervision_charts(report.supervision),
    ]
    # A check that is no rehearsal has trained nothing.
    shown = [chart for chart in charts if chart["names"]]
    curves = {"runs": [{"name": report.title, "charts": shown, "clock": []}]} if shown else None
    text = template("report.html").render(report=report, curves=curves)
    assert isinstance(text, str)
    return text
