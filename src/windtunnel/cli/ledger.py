"""windtunnel ledger: what all runs have cost, and how budgets stand."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .options import DEFAULT_ROOT, JsonOption
from .output import money, print_json, print_remarks, print_table

if TYPE_CHECKING:
    from windtunnel.run import Kind


def ledger(
    roots: Annotated[
        list[Path] | None, typer.Argument(metavar="[FOLDER]...", help="Folders of runs; otherwise runs/.", exists=False)
    ] = None,
    by: Annotated[
        Literal["run", "month", "recipe", "rig", "provider", "folder"], typer.Option("--by", help="What sums are of.")
    ] = "recipe",
    budget: Annotated[
        list[str] | None,
        typer.Option(
            "--budget",
            metavar="[WHAT=]DOLLARS",
            help="At most so many dollars: 5000, month=2000, recipe:NAME=500, rig:NAME=900 (repeatable); also budgets.yaml.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show what all runs have cost beside their plans, against budgets, and what stopping now would save."""
    from windtunnel.recipe import UserError
    from windtunnel.run import parse_limit, read_ledger, read_limits, standings, sums

    folders = roots or [DEFAULT_ROOT]
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder} is no folder of runs", "name one, such as: windtunnel ledger runs")
    entries = read_ledger(folders)
    limits = [*(limit for folder in folders for limit in read_limits(folder)), *map(parse_limit, budget or ())]
    stand = standings(entries, limits)
    over = any(each.level == "over" for each in stand)
    if json:
        budgets = [{**dataclasses.asdict(each), "level": each.level} for each in stand]
        kinds: tuple[Kind, ...] = ("recipe", "rig", "provider", "month", "folder")
        groups = {kind: [dataclasses.asdict(line) for line in sums(entries, kind)] for kind in kinds}
        print_json({"runs": [dataclasses.asdict(entry) for entry in entries], "sums": groups, "budgets": budgets})
        raise typer.Exit(1 if over else 0)
    if not entries:
        typer.echo(f"no runs under {', '.join(map(str, folders))}")
        return
    if by == "run":
        rows = [
            [e.path.name, e.rig, e.status, money(e.dollars), money(e.planned_dollars), money(e.hours), _ahead(e.ahead)]
            for e in sorted(entries, key=lambda e: e.dollars or 0.0, reverse=True)
        ]
        columns = ["run", "rig", "status", "$", "planned $", "h", "$ saved by stopping"]
    else:
        lines = sums(entries, by)
        rows = [
            [line.name, str(line.runs), money(line.dollars), money(line.planned),
             money(line.hours), _ahead(line.ahead)]
            for line in lines
        ]  # fmt: skip
        columns = [by, "runs", "$", "planned $", "h", "$ saved by stopping"]
    if not any(row[-1] for row in rows):  # nothing runs
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    total = sum(e.dollars or 0.0 for e in entries)
    print_table(f"{_runs(len(entries))}, ${total:,.2f} spent", columns, rows, whole=(columns[0], "$"))
    unpriced = [e for e in entries if e.dollars is None and e.hours > 0]
    if unpriced:
        hours = sum(e.hours for e in unpriced)
        what = f"{_runs(len(unpriced))} of {hours:,.1f} h had no price and count as nothing"
        print_remarks([("note", f"{what}; the next: train --price, launch --price")])
    for each in stand:
        name = f"{each.limit.kind} {each.limit.name}".strip()
        share = each.spent / each.limit.dollars
        # Half a cent: sums of rounded prices differ by less without anything going on.
        later = f", ${each.expected:,.2f} when what runs has ended" if each.expected > each.spent + 0.005 else ""
        told = f"budget of {name}: ${each.spent:,.2f} of ${each.limit.dollars:,.2f} spent ({share:.0%}){later}"
        typer.echo({"ok": told, "warn": f"warn: {told}", "over": f"over: {told}"}[each.level])
    # Exit code 1, so that a scheduler can refuse to start the next training.
    if over:
        raise typer.Exit(1)


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def _ahead(value: float) -> str:
    return f"{value:,.2f}" if value > 0 else ""
