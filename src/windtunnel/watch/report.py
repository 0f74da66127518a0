"""The readiness report as one HTML file that needs nothing else: no network, no scripts."""

from __future__ import annotations

import os
from pathlib import Path

from windtunnel.recipe import UserError

from .charts import line_chart, memory_chart
from .report_model import Report
from .text import duration

SIGNS = {"ok": "✓", "fail": "✗", "warn": "!", "skip": "–"}
WORDS = {"ok": "ok", "fail": "failed", "warn": "ok, but", "skip": "not here"}


def write_report(path: Path | str, report: Report) -> Path:
    """Write report.html, in one go: a reader never sees half of it. Returns its path.

    Raises:
        UserError: the file cannot be written.
    """
    path = Path(path)
    page = render(report)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(page, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True) if temporary.parent.is_dir() else None
        raise UserError(f"report {path} cannot be written: {error.strerror or error}") from None
    return path


def render(report: Report) -> str:
    """The page as text. Everything that came from outside is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("windtunnel.watch", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["seconds"] = lambda s: f"{s:.1f} s" if s < 60 else duration(s)
    environment.filters["picture"] = Markup
    charts = {
        "loss": line_chart(report.loss, x="step", y="loss, nats per token", name="loss"),
        "memory": line_chart(report.memory, x="step", y="GiB", limit=report.memory_limit_gib, name="memory-time"),
        "cost": line_chart(report.cost, x="step", y="dollars", limit=report.budget_dollars, limit_name="budget", name="cost"),
        "plans": memory_chart([(p.rig, p.memory) for p in report.plans if p.memory], name="memory-plan"),
    }
    return environment.get_template("report.html").render(
        report=report, charts={k: Markup(v) for k, v in charts.items()}, signs=SIGNS, words=WORDS
    )
