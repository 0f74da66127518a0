"""The readiness report as one HTML file that needs nothing else: no network, no scripts."""

from __future__ import annotations

from pathlib import Path

from .charts import line_chart, memory_chart
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

    charts = {
        "loss": line_chart(report.loss, x="step", y="loss, nats per token", name="loss"),
        "memory": line_chart(report.memory, x="step", y="GiB", limit=report.memory_limit_gib, name="memory-time"),
        "cost": line_chart(report.cost, x="step", y="dollars", limit=report.budget_dollars, limit_name="budget", name="cost"),
        "plans": memory_chart([(p.rig, p.memory) for p in report.plans if p.memory], name="memory-plan"),
        **supervision_charts(report.supervision),
    }
    text = template("report.html").render(report=report, charts={k: Markup(v) for k, v in charts.items()})
    assert isinstance(text, str)
    return text
