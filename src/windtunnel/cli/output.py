"""What verbs print: errors on standard error, JSON or tables on standard output."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer

from windtunnel.recipe import UserError

# Nobody reads a pipe at 80 columns: grep and awk want one row a line.
PIPE_WIDTH = 200
WIDEST = 120
BETWEEN = 3  # blanks between two columns of a table
LEAST = 8  # of a column that is folded
# What a terminal obeys: escapes and other controls. A candidate's error may have some in its name.
CONTROLS = {code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"}


def print_error(error: UserError, *, as_json: bool = False) -> None:
    """Print 'error: ...' and 'fix: ...' to standard error; with --json one JSON object."""
    if as_json:
        import json

        print(json.dumps({"error": error.message, "fix": error.fix, "exit_code": error.exit_code}), file=sys.stderr)
        return
    for line in error.message.splitlines():
        print(f"error: {line}", file=sys.stderr)
    if error.fix:
        print(f"  fix: {error.fix}", file=sys.stderr)


def say(text: str) -> None:
    """Print a line on standard error: what goes on, beside the result on standard output."""
    typer.echo(text, err=True)


def has_colours() -> bool:
    """Return whether what is shown goes to a terminal, perhaps a supervisor's, that wants colours (https://no-color.org)."""
    import os

    from windtunnel.run import Channel

    channel = Channel.inherited()
    terminal = sys.stdout.isatty() or (channel is not None and channel.terminal is not None)
    return terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def print_json(value: Any) -> None:
    """Print one JSON document on standard output. JSON has no NaN: such numbers become their names."""
    import json

    from windtunnel.watch import finite

    print(json.dumps(finite(value), indent=2, ensure_ascii=False, allow_nan=False, default=str))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], whole: Sequence[str] = ()) -> None:
    """Print a table sized to the terminal; on a pipe the columns keep their full width, or take $COLUMNS.

    Args:
        title: printed above the table.
        columns: their headings.
        rows: of as many cells as there are columns.
        whole: headings of columns that are not folded while there is room for all of them; then the widest is first.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, show_header=any(columns)
    )
    # rich folds whichever column is widest, which would be names and numbers that are copied and compared; so it is decided
    # here which stay whole.
    kept = _whole(columns, rows, whole, width())
    for column in columns:
        table.add_column(Text(column), overflow="fold", no_wrap=column in kept)
    for row in rows:
        table.add_row(*(Text(cell.translate(CONTROLS)) for cell in row))
    _print(table)


def _whole(columns: Sequence[str], rows: Sequence[Sequence[str]], whole: Sequence[str], width: int) -> list[str]:
    """Return the columns that can be left whole, so that none is cut: with blanks between, and a little for each other one."""
    from rich.cells import cell_len

    wide = {c: max(map(cell_len, (c, *(row[i] for row in rows)))) for i, c in enumerate(columns) if c in whole}
    room = width - len(columns) * BETWEEN - sum(min(LEAST, len(c)) for c in columns if c not in wide)
    while wide and sum(wide.values()) > room:
        # The widest gives way first: one folded column keeps several others whole.
        del wide[max(wide, key=lambda column: wide[column])]
        room -= LEAST
    return list(wide)


def print_remarks(remarks: Sequence[tuple[str, str]]) -> None:
    """Print (label, text) pairs as indented, wrapped lines."""
    from rich.table import Table
    from rich.text import Text

    if not remarks:
        return
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in remarks:
        grid.add_row(Text(label, style="bold"), Text(text.translate(CONTROLS)))
    _print(grid)
    print()


def number(value: float | None) -> str:
    """Return a number of a list of runs: steps whole, losses with four digits, nothing where there is none."""
    if value is None:
        return ""
    return f"{value:.4f}" if isinstance(value, float) else f"{value:,}"


def money(value: float | None) -> str:
    """Return dollars, or hours, with cents; a dash where they are not known."""
    return "-" if value is None else f"{value:,.2f}"


def progress_lines(every: float = 5.0) -> Callable[[float, str], None]:
    """Return what reports progress on standard error, a line every few seconds; what is done before that says nothing."""
    import time

    last = time.monotonic()

    def report(share: float, what: str) -> None:
        nonlocal last
        # Work of a few seconds says nothing: a progress line is for those who begin to wonder.
        if time.monotonic() - last >= every:
            last = time.monotonic()
            print(f"{share:.0%}: {what}", file=sys.stderr, flush=True)

    return report


def width() -> int:
    """Return the columns that tables may have: the terminal's, or on a pipe many, or what $COLUMNS says."""
    import os
    import shutil

    if sys.stdout.isatty():
        return min(shutil.get_terminal_size().columns, WIDEST)  # longer lines are hard to read
    asked = os.environ.get("COLUMNS", "")
    # Nonsense in $COLUMNS is not worth an error; a number of six digits or more is a mistake too.
    return int(asked) if asked.isdecimal() and len(asked) < 6 and int(asked) else PIPE_WIDTH


def _print(renderable: Any) -> None:
    """To a terminal at its width; on a pipe wide, or as wide as $COLUMNS says, and without trailing blanks."""
    import io

    from rich.console import Console

    if sys.stdout.isatty():
        Console().print(renderable, width=width())
        return
    text = io.StringIO()
    Console(file=text, width=width()).print(renderable)
    # rich pads every line to the full width, which shows in files and in diffs of them.
    print("\n".join(line.rstrip() for line in text.getvalue().splitlines()))
