"""What verbs print: errors on standard error, JSON or tables on standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from windtunnel.recipe import UserError


def print_error(error: UserError, *, as_json: bool = False) -> None:
    """'error: ...' and 'fix: ...' on standard error; with --json one JSON object there."""
    if as_json:
        print(json.dumps({"error": error.message, "fix": error.fix, "exit_code": error.exit_code}), file=sys.stderr)
        return
    for line in error.message.splitlines():
        print(f"error: {line}", file=sys.stderr)
    if error.fix:
        print(f"  fix: {error.fix}", file=sys.stderr)


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table sized to the terminal; on a pipe the columns keep their full width."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console() if sys.stdout.isatty() else Console(width=200)
    table = Table(
        title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, show_header=any(columns)
    )
    for column in columns:
        table.add_column(Text(column), overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
