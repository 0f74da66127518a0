"""The readiness report as one HTML file that needs nothing else."""

from __future__ import annotations

from pathlib import Path

from .charts import memory_chart
from .curves import chart_of
from .page import save, template
from .report_model import Report
from .supervision import supervision_charts


def write_report(path: Path | str, report: Report) -> Path:
    """Write report.html, in one go: a reader never sees half of it. Returns its path.

    Raises:
        UserError: the file cannot be written.
    """
    return save(Path(path), render(report))


def render(report: Report) -> str:
    """Return the page as text. Everything that came from outside is escaped."""
    from markupsafe import Markup

    limit, budget = report.memory_limit_gib, report.budget_dollars
    charts = [
        chart_of("Loss", report.loss, unit="nats per token"),
        chart_of("Memory", report.memory, unit="GiB", limits=[("limit", "bad", limit)]),
        chart_of("Cost", report.cost, unit="dollars", limits=[("budget", "bad", budget)]),
        *supervision_charts(report.supervision),
    ]
    shown = [chart for chart in charts if chart["names"]]
    curves = {"runs": [{"name": report.title, "charts": shown, "clock": []}]} if shown else None
    memory = Markup(memory_chart([(plan.rig, plan.memory) for plan in report.plans if plan.memory], name="memory-plan"))
    text = template("report.html").render(report=report, memory=memory, curves=curves)
    assert isinstance(text, str)
    return text
