"""windtunnel runs: what has been run."""

from __future__ import annotations

import dataclasses
import sys
from datetime import datetime
from typing import TYPE_CHECKING

import typer

from .options import DEFAULT_ROOT, JsonOption, RootOption
from .output import print_json, print_table

if TYPE_CHECKING:
    from windtunnel.run import RunSummary

COLUMNS = ["run", "recipe", "stage", "created", "status", "gates", "step", "loss", "validation", "best step", "$", "note"]
OPTIONAL = ("stage", "gates", "$")
# On a terminal the rest must stay readable: these are in the folder's name.
TOLD_BY_NAME = ("recipe", "stage", "created")
WHOLE = ("run", "status", "loss", "validation")


def runs(root: RootOption = DEFAULT_ROOT, json: JsonOption = False) -> None:
    """List the runs under --root, the newest first. Damaged ones are listed as such."""
    from windtunnel.run import list_runs

    found = list_runs(root)
    if json:
        print_json([dataclasses.asdict(item) for item in found])
    elif not found:
        typer.echo(f"no runs under {root}/; start one with: windtunnel train charlm")
    else:
        rows = [_row(item) for item in found]
        # Most recipes have no stages, many machines no price: no empty columns for them.
        shown = [i for i, name in enumerate(COLUMNS) if name not in OPTIONAL or any(row[i] for row in rows)]
        if sys.stdout.isatty() and all(item.path.name.startswith(f"{item.recipe}-") for item in found):
            shown = [i for i in shown if COLUMNS[i] not in TOLD_BY_NAME]
        print_table(f"runs under {root}/", [COLUMNS[i] for i in shown], [[row[i] for i in shown] for row in rows], whole=WHOLE)


def _row(item: RunSummary) -> list[str]:
    created = "" if item.created is None else datetime.fromtimestamp(item.created).strftime("%Y-%m-%d %H:%M")
    values = [item.step, item.loss, item.validation_loss, item.best_step]
    money = "" if item.dollars is None else f"{item.dollars:,.2f}"
    note = item.problem or item.reason or ""
    if note.startswith("budget.") and item.status != "failed":  # which limit; the steps have a column of their own
        note = note.partition(":")[0]
    return [
        item.path.name, item.recipe, item.stage or "", created, item.status, _gates(item.gates), *map(_text, values), money, note,
    ]  # fmt: skip


def _gates(gates: dict[str, bool] | None) -> str:
    """'held', or the gates that did not hold; 'none' where nothing was asked for; empty before they were judged."""
    if gates is None:
        return ""
    if not gates:
        return "none"
    failed = [name for name, held in gates.items() if not held]
    return f"failed: {', '.join(failed)}" if failed else "held"


def _text(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if isinstance(value, float) else f"{value:,}"
