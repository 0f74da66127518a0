"""windtunnel runs: what has been run."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import DEFAULT_ROOT, JsonOption, RootOption
from .output import BETWEEN, money, number, print_json, print_table, width

if TYPE_CHECKING:
    from windtunnel.cluster import JobLine
    from windtunnel.run import RunSummary

COLUMNS = ["run", "recipe", "stage", "created", "status", "gates", "step", "loss", "validation", "best step", "$", "note"]
OPTIONAL = ("stage", "gates", "$")
# What goes first where there is no room, as on 80 columns: what the folder's name tells, then what `watch` shows.
LEAVING = ("created", "recipe", "stage", "best step", "loss", "$", "gates", "step")
WHOLE = ("run", "status", "step", "loss", "validation", "best step", "$")
EDGE = 2  # a blank before the first and one behind the last
LEAST_NOTE = len("budget.dollars")


def runs(
    root: RootOption = DEFAULT_ROOT,
    spent: Annotated[
        bool, typer.Option("--spent", help="What each run took and cost beside its plan, and all together.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """List the runs under --root, the newest first. Damaged ones are listed as such."""
    from windtunnel.run import list_runs

    from .launch_slurm import jobs_of_runs

    found = list_runs(root)
    jobs, waiting = jobs_of_runs(root)
    if json:
        told = [dataclasses.asdict(item) for item in found]
        for item, entry in zip(found, told, strict=True):
            line = jobs.get(item.path.resolve())
            entry["slurm"] = (
                None if line is None else {"job": line.id, "state": line.state, "nodes": line.nodes, "reason": line.reason}
            )
        print_json(told)
    elif not found and not waiting:
        typer.echo(f"no runs under {root}/; start one with: windtunnel train charlm")
    elif spent:
        _print_spent(found, root)
    else:
        # Jobs that wait stand first: they are newer than any run.
        rows = [_job_row(line) for line in waiting] + [_row(item, jobs.get(item.path.resolve())) for item in found]
        shown = _that_fit(rows, width())
        print_table(f"runs under {root}/", [COLUMNS[i] for i in shown], [[row[i] for i in shown] for row in rows], whole=WHOLE)


def _that_fit(rows: list[list[str]], width: int) -> list[int]:
    """Return the columns that there is room for without folding usual names and numbers; empty ones are left out."""
    # Most recipes have no stages, many machines no price.
    shown = [i for i, name in enumerate(COLUMNS) if name not in OPTIONAL or any(row[i] for row in rows)]
    wide = [max(len(COLUMNS[i]), *(len(row[i]) for row in rows)) for i in range(len(COLUMNS))]
    wide[0] = min(wide[0], width // 2)  # a folder's name may be anything
    wide[-1] = min(wide[-1], LEAST_NOTE)  # notes may be folded
    for name in LEAVING:
        if EDGE + sum(wide[i] + BETWEEN for i in shown) - BETWEEN <= width:
            break
        shown = [i for i in shown if COLUMNS[i] != name]
    return shown


def _print_spent(found: list[RunSummary], root: Path) -> None:
    """Print time and dollars of all runs beside what was planned, the dearest first, with their sums."""
    rows, sums = [], {"took": 0.0, "planned": 0.0, "$": 0.0, "planned $": 0.0}
    for item in sorted(found, key=lambda item: (item.spent_dollars or 0.0, item.spent_hours or 0.0), reverse=True):
        values = (item.spent_hours, item.planned_hours, item.spent_dollars, item.planned_dollars)
        for name, value in zip(sums, values, strict=True):
            sums[name] += value or 0.0
        rows.append([item.path.name, item.status, *map(money, values)])
    rows.append(["together", "", *map(money, sums.values())])
    print_table(
        f"spent by the runs under {root}/", ["run", "status", "h", "planned h", "$", "planned $"], rows, whole=("run", "status")
    )


def _job_row(line: JobLine) -> list[str]:
    """Return the row of a job that has made no run yet."""
    row = ["" for _ in COLUMNS]
    row[0], row[COLUMNS.index("status")], row[-1] = f"slurm/{line.name}", line.state, line.describe()
    return row


def _row(item: RunSummary, job: JobLine | None = None) -> list[str]:
    created = "" if item.created is None else datetime.fromtimestamp(item.created).strftime("%Y-%m-%d %H:%M")
    values = [item.step, item.loss, item.validation_loss, item.best_step]
    money = "" if item.dollars is None else f"{item.dollars:,.2f}"
    note = item.problem or item.reason or ""
    if note.startswith("budget.") and item.status != "failed":  # which limit; the steps have a column of their own
        note = note.partition(":")[0]
    status = item.status
    if job is not None:  # a run that is to go on has not ended
        status, note = (job.state if status != "running" else status), job.describe()
    return [
        item.path.name, item.recipe, item.stage or "", created, status, _gates(item.gates), *map(number, values), money, note,
    ]  # fmt: skip


def _gates(gates: dict[str, bool] | None) -> str:
    """Return 'held', or the gates that did not hold; 'none' where nothing was asked for; empty before they were judged."""
    if gates is None:
        return ""
    if not gates:
        return "none"
    failed = [name for name, held in gates.items() if not held]
    return f"failed: {', '.join(failed)}" if failed else "held"
