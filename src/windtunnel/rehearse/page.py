"""report.html: the readiness report with the loss curve, memory and cost."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.check import Outcome
from windtunnel.plan import Plan, lines, memory_svg
from windtunnel.recipe import UserError, dump_recipe
from windtunnel.run import MetricsReader
from windtunnel.watch import (
    CheckRow,
    Curve,
    PlanRow,
    Report,
    Sample,
    supervision_curves,
    write_report,
)

from .context import Context
from .readiness import Late, Readiness

if TYPE_CHECKING:
    from windtunnel.evaluate import EvaluationReport

# Not the order in which they ran: a reader wants what to do first.
URGENCY = ("fail", "warn", "skip", "ok")
"""What needs a reader stands on top."""
REMARKS = ("does not fit", "instead", "warning", "note")


def write_page(report: Readiness, path: Path) -> Path:
    """Write the report as one HTML file. Raises UserError."""
    context, recipe = report.context, report.recipe
    when = datetime.fromisoformat(report.created).strftime("%Y-%m-%d %H:%M UTC")
    where = f"; {context.folder}" if report.rehearsed else ""
    beyond = f"{report.beyond[:1].upper()}{report.beyond[1:]}." if report.beyond else ""
    # Only a rehearsal's context has these; a check's page has fewer parts.
    found = getattr(context, "evaluation", None)
    evaluation, samples = _evaluation(found) if found is not None else ([], [])
    memory: dict[str, list[tuple[float, float]]] = getattr(context, "memory", {})
    state = ("ready" if report.ready else "ready but for what is not here") if report.holds else "not ready"
    page = Report(
        title=f"{report.name} is {state} for {report.targets}, as far as rung {report.rung} can tell",
        verdict=f"{report.verdict}. {beyond}".strip(),
        ready=report.ready,
        subtitle=f"{when} on {_machine(report)}; {report.seconds:.0f} s{where}",
        rungs=[(verdict.rung, verdict.ready, verdict.words) for verdict in report.rungs()],
        checks=[
            _row(outcome, report.late_of(outcome)) for outcome in sorted(report.outcomes, key=lambda o: URGENCY.index(o.status))
        ],
        plans=[_plan(plan, number, report.stage) for number, plan in enumerate(report.plans())],
        loss=_loss(getattr(context, "run", None)),
        supervision=_supervision(context),
        memory=[Curve(f"{name} run, resident", points) for name, points in memory.items() if points],
        cost=_cost(report),
        budget_dollars=recipe.budget.dollars if recipe else None,
        evaluation=evaluation,
        samples=samples,
        environment=report.environment(),
        recipe=_recipe(report),
    )
    return write_report(path, page)


def _machine(report: Readiness) -> str:
    try:
        return report.context.here.describe()
    except UserError:
        return "this machine"


def _recipe(report: Readiness) -> str:
    if report.recipe is None:
        return ""
    try:
        return dump_recipe(report.context.scale if report.rehearsed and report.context.is_gpt else report.recipe)
    except UserError:  # its data is missing
        return dump_recipe(report.recipe)


def late_text(late: Late | None) -> str:
    """Return '$37.52 (60 min)', or the minutes alone where no price is known; empty where nothing is known."""
    if late is None:
        return ""
    minutes = f"{late.minutes:.0f} min" if late.minutes >= 1 else f"{60 * late.minutes:.0f} s"
    return minutes if late.dollars is None else f"${late.dollars:,.2f} ({minutes})"


def _row(outcome: Outcome, late: Late | None) -> CheckRow:
    later = f"Found later, {late.rule}: {late_text(late)}." if late else ""
    remedy = outcome.fix
    if outcome.problems:
        # With several problems the outcome's one fix would hide the others.
        remedy = "; ".join(fix or problem for problem, fix in outcome.problems)
    return CheckRow(
        outcome.check, outcome.proves, outcome.evidence, outcome.seconds, outcome.status, remedy, later, tuple(outcome.warnings)
    )


def _plan(plan: Plan, number: int, stage: str) -> PlanRow:
    rows = lines(plan)
    notes = [f"{label}: {value}{f' ({source})' if source else ''}" for label, value, source in rows if label in REMARKS]
    kept = [row for row in rows if row[0] not in REMARKS]
    picture = memory_svg(replace(plan, recipe=plan.recipe + stage), f"plan{number}")
    return PlanRow(plan.rig + stage, plan.fits, kept, notes, picture)


def _loss(run: Path | None) -> list[Curve]:
    if run is None or not (run / "metrics.sqlite").exists():
        return []
    try:
        with MetricsReader(run / "metrics.sqlite") as metrics:
            found = {name: metrics.series(name) for name in ("loss", "validation_loss")}
    except UserError:
        return []
    return [Curve(name, [(p.step, p.value) for p in points]) for name, points in found.items() if points]


def _supervision(context: Context) -> Any:
    """Return the losses after each supervision step of the model that was trained; None where there are no such steps."""
    run: Path | None = getattr(context, "run", None)
    if run is None or not context.recipe.supervision or not (run / "metrics.sqlite").exists():
        return None
    try:
        with MetricsReader(run / "metrics.sqlite") as metrics:
            return supervision_curves(metrics, context.prepared.tokenizer.vocab)
    except UserError:
        return None


def _cost(report: Readiness) -> list[Curve]:
    """Return dollars over the planned run on each target: starting up costs the first of them."""
    curves = []
    for plan in report.plans():
        if not plan.fits or plan.dollars is None or not plan.dollars_per_hour:
            continue
        # What a plan's hours have beyond its steps: data, model, compiling, the last checkpoint.
        start = max(0.0, plan.hours * 3600 - plan.steps * plan.step_seconds) / 3600 * plan.dollars_per_hour
        curves.append(Curve(f"planned on {plan.rig}{report.stage}", [(0.0, start), (float(plan.steps), plan.dollars)]))
    return curves


def _evaluation(found: EvaluationReport) -> tuple[list[tuple[str, str, str]], list[Sample]]:
    value = found.validation
    rows = []
    if value is not None:
        on = f"on {value.bytes:,} held-out bytes, checkpoint of step {found.step}"
        rows.append(("bits per byte", f"{value.bits_per_byte:.4f}", on))
    if found.exact_match is not None:
        match = found.exact_match
        interval = f"{match.right} of {match.n} held-out sums; 95 % interval {match.low:.1%} to {match.high:.1%}"
        rows.append(("exact match", f"{match.share:.1%}", interval))
    if found.tuned is not None:
        if value is not None:
            rows.append(("held-out loss", f"{value.loss:.4f}", f"nats a target, {value.tokens:,} targets"))
        tuned, untuned = found.tuned.answers, found.tuned.untuned
        rows += [("right answers", f"{tuned.share:.1%}", str(tuned))] if tuned is not None else []
        if untuned is not None:
            its = untuned.validation
            rows += [("held-out loss, untuned", f"{its.loss:.4f}", untuned.weights)] if its is not None else []
            rows += [("right answers, untuned", f"{untuned.answers.share:.1%}", str(untuned.answers))] if untuned.answers else []
            rows += (
                [("gain over the untuned model", f"{untuned.gain.difference:+.1%}", str(untuned.gain))] if untuned.gain else []
            )
    if found.puzzles is not None:
        rows += [(name, value, "") for name, value in found.puzzles.rows()]
    return rows, [Sample(sample.prompt, sample.text) for sample in found.samples]
