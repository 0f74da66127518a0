"""report.html: the readiness report with the loss curve, memory and cost."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from windtunnel.plan import Plan, lines
from windtunnel.recipe import UserError, dump_recipe
from windtunnel.run import MetricsReader
from windtunnel.watch import CheckRow, Curve, Memory, PlanRow, Report, Sample, write_report

from .checks import Outcome
from .late import Late
from .readiness import Readiness

LEAST_GIB = 0.005  # of what is drawn
REMARKS = ("does not fit", "instead", "warning", "note")


def write_page(report: Readiness) -> Path:
    """Write report.html into the rehearsal's folder. Raises UserError."""
    rehearsal = report.rehearsal
    name = rehearsal.recipe.name
    title = f"{name} is {'ready' if report.ready else 'not ready'} for {report.targets}"
    when = datetime.fromisoformat(report.created).strftime("%Y-%m-%d %H:%M UTC")
    evaluation, samples = _evaluation(report)
    page = Report(
        title=f"{title}, as far as rung {report.rung} can tell",
        verdict=f"{report.verdict}. {report.beyond[:1].upper() + report.beyond[1:]}".strip() + ("." if report.beyond else ""),
        ready=report.ready,
        subtitle=f"{when} on {rehearsal.here.describe()}; {report.seconds:.0f} s; {rehearsal.folder}",
        checks=[_row(outcome, report.late_of(outcome)) for outcome in report.outcomes],
        plans=[_plan(plan) for plan in report.plans()],
        loss=_loss(report),
        memory=[Curve(f"{name} run, resident", points) for name, points in rehearsal.memory.items() if points],
        cost=_cost(report),
        budget_dollars=rehearsal.recipe.budget.dollars,
        evaluation=evaluation,
        samples=samples,
        environment=rehearsal.environment,
        recipe=dump_recipe(rehearsal.scale),
    )
    return write_report(rehearsal.folder / "report.html", page)


def late_text(late: Late | None) -> str:
    """'$37.52 (60 min)', or the minutes alone where no price is known; empty where nothing is known."""
    if late is None:
        return ""
    minutes = f"{late.minutes:.0f} min" if late.minutes >= 1 else f"{60 * late.minutes:.0f} s"
    return minutes if late.dollars is None else f"${late.dollars:,.2f} ({minutes})"


def _row(outcome: Outcome, late: Late | None) -> CheckRow:
    later = f"Found later, {late.rule}: {late_text(late)}." if late else ""
    warned = outcome.status == "warn"
    evidence = f"{outcome.evidence}. But: {outcome.remedy}" if warned else outcome.evidence
    remedy = "" if warned else outcome.remedy
    return CheckRow(outcome.check, outcome.proves, evidence, outcome.seconds, outcome.status, remedy, later)


def _plan(plan: Plan) -> PlanRow:
    rows = lines(plan)
    notes = [f"{label}: {value}{f' ({source})' if source else ''}" for label, value, source in rows if label in REMARKS]
    kept = [row for row in rows if row[0] not in REMARKS]
    shown = {name.replace("_", " "): gib for name, gib in plan.components.items() if gib >= LEAST_GIB}
    return PlanRow(plan.rig, plan.fits, kept, Memory(shown, plan.limit_gib), notes)


def _loss(report: Readiness) -> list[Curve]:
    run = report.rehearsal.run
    if run is None or not (run / "metrics.sqlite").exists():
        return []
    try:
        with MetricsReader(run / "metrics.sqlite") as metrics:
            found = {"training": metrics.series("loss"), "validation": metrics.series("validation_loss")}
    except UserError:
        return []
    return [Curve(name, [(p.step, p.value) for p in points]) for name, points in found.items() if points]


def _cost(report: Readiness) -> list[Curve]:
    """Dollars over the planned run on each target: starting up costs the first of them."""
    curves = []
    for plan in report.plans():
        if not plan.fits or plan.dollars is None or not plan.dollars_per_hour:
            continue
        start = max(0.0, plan.hours * 3600 - plan.steps * plan.step_seconds) / 3600 * plan.dollars_per_hour
        curves.append(Curve(f"planned on {plan.rig}", [(0.0, start), (float(plan.steps), plan.dollars)]))
    return curves


def _evaluation(report: Readiness) -> tuple[list[tuple[str, str, str]], list[Sample]]:
    found = report.rehearsal.evaluation
    if found is None:
        return [], []
    value = found.validation
    rows = [
        ("bits per byte", f"{value.bits_per_byte:.4f}", f"on {value.bytes:,} held-out bytes, checkpoint of step {found.step}")
    ]
    if found.exact_match is not None:
        match = found.exact_match
        interval = f"{match.right} of {match.n} held-out sums; 95 % interval {match.low:.1%} to {match.high:.1%}"
        rows.append(("exact match", f"{match.share:.1%}", interval))
    return rows, [Sample(sample.prompt, sample.text) for sample in found.samples]
