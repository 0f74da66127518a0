"""report.html of a run: how it ended, its gates, figures and curves, in one file that needs nothing else."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windtunnel.recipe import dump_recipe
from windtunnel.run import MetricsReader, RunFolder, compare_expected

from .curves import drawn
from .evaluated import Sample, evaluation_of
from .flop_matched import flop_matched_part
from .follow import read_snapshot
from .page import save, template
from .snapshot import Snapshot
from .supervision import PLACE, supervision_charts, supervision_curves
from .text import chain, count, dollars, duration, number, share

MOST_EVENTS = 40
POINTS = 1000
"""Of a curve."""
BY_STEP = ("Loss after each supervision step", "Validation loss after each supervision step")
"""Charts that the part on recursion has, smoothed."""
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


def write_run_page(folder: Path) -> Path:
    """Write report.html of a running or finished run into its folder and return its path.

    Raises:
        UserError: not a run folder, damaged metrics, or the file cannot be written.
    """
    return save(RunFolder.open(folder).report_path, run_page(folder))


def run_page(folder: Path) -> str:
    """Return the page of a running or finished run as text. Raises UserError: not a run folder, or damaged metrics."""
    run = RunFolder.open(folder)
    now = read_snapshot(run)
    evaluation, samples = evaluation_of(run.path)
    status, _, reason = now.phase.partition(": ")
    failed = [str(gate["name"]) for gate in run.manifest.get("gates") or [] if not gate["held"]]
    page = RunPage(
        # A screen's title ends with the folder, which stands below the page's.
        title=now.title.removesuffix(str(run.path)).rstrip(),
        subtitle=str(run.path),
        status=f"{status}, gate failed: {', '.join(failed)}" if failed else status,
        reason=reason,
        good=str(run.manifest.get("status", "running")) in GOOD and not failed,
        gates=[_gate(item) for item in run.manifest.get("gates") or []],
        expected=[item.row() for item in compare_expected(run)],
        # Measured beside planned: that is what a report is opened for after a run.
        figures=_figures(now, run.manifest.get("plan") or {}, _speed(run)),
        evaluation=evaluation,
        samples=samples,
        events=_events(run),
        recipe=dump_recipe(run.recipe),
    )
    matched = flop_matched_part(run.path)
    curves = curves_of(run, [matched.chart] if matched else [])
    # Only then has the page a part on recursion.
    supervised = any(chart.get("place") == PLACE for chart in curves["charts"])
    shown = {"runs": [curves]} if curves["charts"] else None
    text = template("run.html").render(report=page, curves=shown, supervised=supervised, flop_matched=matched)
    assert isinstance(text, str)
    return text


def curves_of(run: RunFolder, others: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Return the curves of a run for the script of the page: `name`, `charts` and `clock`; see `curves.drawn`."""
    found: dict[str, Any] = {"charts": [], "clock": []}
    if run.metrics_path.exists():
        with MetricsReader(run.metrics_path) as metrics:
            found = drawn(run, metrics, POINTS)
            recursion = supervision_charts(supervision_curves(metrics, _vocab(run)))
        if recursion:
            found["charts"] = [chart for chart in found["charts"] if chart["title"] not in BY_STEP] + recursion
    return {"name": run.path.name, **found, "charts": [*found["charts"], *others]}


def _vocab(run: RunFolder) -> int | None:
    found = (run.manifest.get("plan") or {}).get("vocab")
    return found if isinstance(found, int) and found > 1 else None


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


def _speed(run: RunFolder) -> float | None:
    """Return the median of a run's tokens per second: its first steps compile, and tell nothing."""
    if not run.metrics_path.exists():
        return None
    with MetricsReader(run.metrics_path) as metrics:
        known = [point.value for point in metrics.series("tokens_per_second")]
    return statistics.median(known) if known else None


def _planned(text: str, measured: float | None, planned: float | None) -> str:
    """Return what was planned, as `text` says it, and how much of that was measured."""
    if not planned:
        return ""
    return f"planned {text}" + (f": {measured / planned:.0%} of it" if measured is not None else "")


def _figures(now: Snapshot, plan: dict[str, Any], speed: float | None) -> list[tuple[str, str, str]]:
    hours, rate, spent = plan.get("hours"), plan.get("tokens_per_second"), plan.get("dollars")
    took, mfu = duration(now.elapsed), "" if now.mfu is None else f"MFU {share(now.mfu)}"
    money = [_planned(dollars(spent), None, spent), f"budget {dollars(now.dollars_budget)}" if now.dollars_budget else ""]
    rows = [
        ("steps", f"{now.step:,}" + (f" of {now.goal:,}" if now.goal else ""), ""),
        ("time", took, _planned(duration(3600 * hours), None, hours) if hours else ""),
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
        (
            "tokens per second",
            count(speed),
            _joined("median", _planned(count(rate), speed, rate), mfu),
        ),
        ("peak memory", "-" if now.memory_gib is None else f"{now.memory_gib:.1f} GiB", "of a GPU"),
        ("spent", dollars(now.dollars), _joined(*money)),
    ]
    return [row for row in rows if row[1] != "-"]


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _events(run: RunFolder) -> list[tuple[str, str, str, str]]:
    if not run.metrics_path.exists():
        return []
    with MetricsReader(run.metrics_path) as metrics:
        found = [event for event in metrics.events() if event.level in ("warn", "bad")]
    return [
        ("-" if e.step is None else f"step {e.step:,}", e.level, e.message, str(e.data.get("advice", "")))
        # The last ones: they say how it ended.
        for e in found[-MOST_EVENTS:]
    ]
