"""report.html of a run: how it ended, its gates, figures and curves, in one file that needs nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windtunnel.recipe import dump_recipe
from windtunnel.run import MetricsReader, RunFolder, compare_expected

from .evaluated import evaluation_of
from .flop_matched import flop_matched_part
from .follow import read_snapshot
from .page import save, template
from .report_model import Sample
from .run_charts import run_charts
from .snapshot import Snapshot
from .text import chain, count, dollars, duration, number, share

MOST_EVENTS = 40
GOOD = ("running", "done")


@dataclass(frozen=True)
class Gate:
    """A gate as the page shows it: texts."""

    name: str
    held: bool
    value: str
    limit: str
    advice: str


@dataclass(frozen=True)
class RunPage:
    """All of the page of a run; empty parts are left out.

    Attributes:
        status: in a word; reason: of its end. good: neither failed nor stopped.
        expected: (name, range, measured, met, source) written before the run.
        figures, evaluation: (name, value, explanation). samples: of the evaluation.
        events: (step, level, message, advice) of warnings, the oldest first.
        recipe: YAML.
    """

    title: str
    subtitle: str
    status: str
    reason: str
    good: bool
    gates: list[Gate] = field(default_factory=list)
    expected: list[list[str]] = field(default_factory=list)
    figures: list[tuple[str, str, str]] = field(default_factory=list)
    evaluation: list[tuple[str, str, str]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    events: list[tuple[str, str, str, str]] = field(default_factory=list)
    recipe: str = ""


def write_run_page(folder: Path, to: Path | None = None) -> Path:
    """Write the page of a running or finished run and return its path.

    Args:
        folder: of the run.
        to: the file; None: report.html in the run's folder.

    Raises:
        UserError: not a run folder, damaged metrics, or the file cannot be written.
    """
    return save(to or RunFolder.open(folder).report_path, run_page(folder))


def run_page(folder: Path) -> str:
    """Return the page of a running or finished run as text. Raises UserError: not a run folder, or damaged metrics."""
    run = RunFolder.open(folder)
    now = read_snapshot(run)
    evaluation, samples = evaluation_of(run.path)
    status, _, reason = now.phase.partition(": ")
    failed = [str(gate["name"]) for gate in run.manifest.get("gates") or [] if not gate["held"]]
    page = RunPage(
        title=now.title.split("  /")[0],
        subtitle=str(run.path),
        status=f"{status}, gate failed: {', '.join(failed)}" if failed else status,
        reason=reason,
        good=str(run.manifest.get("status", "running")) in GOOD and not failed,
        gates=[_gate(item) for item in run.manifest.get("gates") or []],
        expected=[item.row() for item in compare_expected(run)],
        figures=_figures(now),
        evaluation=evaluation,
        samples=samples,
        events=_events(run),
        recipe=dump_recipe(run.recipe),
    )
    drawn, by_step = run_charts(run)
    matched = flop_matched_part(run.path)
    text = template("run.html").render(report=page, drawn=drawn, charts=by_step, flop_matched=matched)
    assert isinstance(text, str)
    return text


def _gate(item: dict[str, Any]) -> Gate:
    return Gate(
        str(item["name"]), bool(item["held"]), str(item.get("measured") or _text(item.get("value"))), _text(item.get("limit")),
        str(item.get("advice") or ""),
    )  # fmt: skip


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float | int):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return " – ".join(_text(item) for item in value)
    return "-" if value is None else str(value)


def _figures(now: Snapshot) -> list[tuple[str, str, str]]:
    rows = [
        ("steps", f"{now.step:,}" + (f" of {now.goal:,}" if now.goal else ""), f"in {duration(now.elapsed)}"),
        ("training loss", number(now.loss), "nats per token, of the last step"),
        ("validation loss", number(now.validation), "nats per token"),
        ("bits per byte", number(now.bpb), "of held-out text"),
        ("answers right", share(now.answers), "of held-out questions, which decide the best checkpoint"),
    ]
    if now.step_losses[1:]:
        rows.append(("training, by step", chain(now.step_losses), f"refinement {now.refinement or 0.0:.1f} %"))
    if now.validation_steps[1:]:
        rows.append(("validation, by step", chain(now.validation_steps), "true cross-entropy after each supervision step"))
    if now.bpb_steps[1:]:
        rows.append(("bits per byte, by step", chain(now.bpb_steps), "of held-out text, after each supervision step"))
    rows += [
        ("tokens per second", count(now.tokens_per_second), f"MFU {share(now.mfu)}"),
        ("peak memory", "-" if now.memory_gib is None else f"{now.memory_gib:.1f} GiB", "of a GPU"),
        ("spent", dollars(now.dollars), f"budget {dollars(now.dollars_budget)}"),
    ]
    return [row for row in rows if row[1] != "-"]


def _events(run: RunFolder) -> list[tuple[str, str, str, str]]:
    if not run.metrics_path.exists():
        return []
    with MetricsReader(run.metrics_path) as metrics:
        found = [event for event in metrics.events() if event.level in ("warn", "bad")]
    return [
        ("-" if e.step is None else f"step {e.step:,}", e.level, e.message, str(e.data.get("advice", "")))
        for e in found[-MOST_EVENTS:]
    ]
