"""The rehearsal in a terminal: progress while it goes on, and the report at its end, within 100 columns."""

from __future__ import annotations

import os
import sys
import time
from typing import Any, TextIO

from rich import box
from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from windtunnel.check import Check, Outcome
from windtunnel.plan import Plan, lines

from .page import late_text
from .readiness import Readiness

SIGNS = {"ok": "✓", "warn": "!", "fail": "✗", "skip": "–"}
STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "skip": "dim"}
WIDTH = 100
MOST_LETTERS = 120
PLAIN_SECONDS = 5.0
# A plan has many more rows; these are what rigs are compared by.
PLAN_ROWS = ("depth", "parameters", "layout", "memory a rank", "step", "speed", "length", "time", "cost", "epochs", "disk")


class Progress:
    """Shows checks as they run: on a terminal the finished ones above a line that moves, elsewhere plain lines.

    Use as a context manager; the terminal is given back on the way out.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._terminal = self._stream.isatty()
        self._status: Any = None
        self._console: Any = None
        self._spinner = Spinner("dots", style="cyan")
        self._check: Check | None = None
        self._text = ""
        self._began = self._printed = 0.0

    def __enter__(self) -> Progress:
        if self._terminal:
            self._console = Console(file=self._stream, highlight=False, soft_wrap=False)
            self._console.width = min(WIDTH, self._console.width)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop()

    def begin(self, check: Check) -> None:
        """Show that a check begins."""
        self._check, self._began = check, time.monotonic()
        if self._terminal:
            self._text = ""
            # Transient: the moving line gives way to the finished one, so that the scrollback holds results only.
            self._status = Live(
                console=self._console, get_renderable=self._line, transient=True, refresh_per_second=8, redirect_stderr=False
            )
            self._status.start()
        else:
            self._print(f"{check.name}: {check.proves}")

    def detail(self, text: str) -> None:
        """Show what the check is doing now."""
        self._text = text
        if not self._terminal and time.monotonic() - self._printed >= PLAIN_SECONDS and self._check is not None:
            self._print(f"  {self._check.name}: {text}")

    def end(self, outcome: Outcome) -> None:
        """Show how the check ended."""
        self._stop()
        if self._terminal:
            self._console.print(_finished(outcome, self._console.width))
        else:
            self._print(f"  {SIGNS[outcome.status]} {outcome.check} ({outcome.seconds:.1f} s): {outcome.evidence}")

    def _line(self) -> Any:
        assert self._check is not None
        # What stands before it: the spinner, 17 letters of the name, the seconds and blanks.
        room = self._console.width - 29
        text = Text(self._text or self._check.proves, overflow="ellipsis", no_wrap=True, style="dim")
        text.truncate(room, overflow="ellipsis")
        seconds = f"{time.monotonic() - self._began:4.0f} s"
        self._spinner.text = Text.assemble((f"{self._check.name:<17}", "bold"), (seconds, "dim"), "  ", text)
        return self._spinner

    def _stop(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _print(self, text: str) -> None:
        self._printed = time.monotonic()
        print(text, file=self._stream, flush=True)


def _finished(outcome: Outcome, width: int) -> Any:
    sign = (f"{SIGNS[outcome.status]} ", STYLES[outcome.status])
    name, seconds = (f"{outcome.check:<17}", "bold"), (f"{outcome.seconds:4.0f} s", "dim")
    line = Text.assemble(sign, name, seconds, "  ", (outcome.proves, "dim"))
    line.truncate(width, overflow="ellipsis")
    return line


def show(report: Readiness, stream: TextIO | None = None) -> None:
    """Print the report: checks with their evidence, what to do, the rungs, plans side by side, the verdict."""
    stream = stream or sys.stdout
    console = Console(file=stream, highlight=False)
    asked = os.environ.get("COLUMNS", "")
    told = stream.isatty() or (asked.isdecimal() and int(asked) > 0)
    # Into a file rich would write 80 columns, and fold what has room.
    console.width = min(WIDTH, console.width) if told else WIDTH
    console.print()
    console.print(_checks(report))
    console.print()
    _print_remedies(console, report)
    _print_later(console, report)
    _print_rungs(console, report)
    plans = report.plans() if report.rehearsed else []
    # Three beside each other are what 100 columns hold.
    for first in range(0, len(plans), 3):
        console.print(_plans(plans[first : first + 3], report.stage))
        console.print()
    _print_remarks(console, plans)
    _print_verdict(console, report)


def _checks(report: Readiness) -> Any:
    # Without a plan no column of costs, rather than an empty one.
    later = any(report.late_of(outcome) for outcome in report.outcomes)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), expand=True)
    table.add_column("")
    table.add_column("check", no_wrap=True)
    table.add_column("evidence", overflow="fold", ratio=1)
    table.add_column("seconds", justify="right", no_wrap=True)
    if later:
        table.add_column("found later", justify="right", no_wrap=True)
    for outcome in report.outcomes:
        style = STYLES[outcome.status]
        cells = [Text(SIGNS[outcome.status], style=style), Text(outcome.check, style="bold"), Text(_evidence(outcome))]
        cells.append(Text(f"{outcome.seconds:.1f}"))
        if later:
            cells.append(Text(late_text(report.late_of(outcome)), style="dim"))
        table.add_row(*cells)
    return table


def _evidence(outcome: Outcome) -> str:
    """Return what stands in the table; all that is wrong with a failed check stands below it, with what to do."""
    if outcome.status != "fail":
        return outcome.evidence
    first = outcome.problems[0][0] if outcome.problems else outcome.evidence
    short = first if len(first) <= MOST_LETTERS else f"{first[: MOST_LETTERS - 1].rstrip()}…"
    return f"{len(outcome.problems)} problems: {short}; ..." if outcome.problems else short


def _print_remedies(console: Any, report: Readiness) -> None:
    """Print what is wrong and what to do, each problem by itself; then reservations; then what this machine cannot tell."""
    rows: list[tuple[Any, Any]] = []
    for outcome in report.outcomes:
        if outcome.status == "fail":
            problems = outcome.problems or ((outcome.evidence, outcome.fix),)
            for number, (problem, fix) in enumerate(problems):
                label = Text(f"✗ {outcome.check}" if number == 0 else "", style=STYLES["fail"])
                body = Text.assemble(problem, *([("\n→ ", "bold"), (fix or outcome.fix, "bold")]))
                rows.append((label, body))
    for outcome in report.outcomes:
        rows += [(Text(f"! {outcome.check}", style=STYLES["warn"]), Text(warning)) for warning in outcome.warnings]
    for outcome in report.outcomes:
        # What was kept from running by another failure needs no advice of its own: that failure has it.
        if outcome.status == "skip" and not outcome.blocks:
            rows.append((Text(f"– {outcome.check}", style="dim"), Text(f"for that: {outcome.fix}", style="dim")))
    if rows:
        console.print(_grid(rows))
        console.print()


def _print_later(console: Any, report: Readiness) -> None:
    if report.late:
        rules = "; ".join(f"{late.rule} {late_text(late)}" for late in report.late.values())
        rate = f"the rate of {report.late_target} times the minutes until the failure would show there"
        console.print(_grid([(Text("found later", style="dim"), Text(f"{rate}: {rules}", style="dim"))]))
        console.print()


def _print_rungs(console: Any, report: Readiness) -> None:
    rows = []
    for verdict in report.rungs():
        lacking = verdict.lacks and not (verdict.failed or verdict.untried or verdict.here)
        status = "ok" if verdict.ready else "warn" if lacking else "fail"
        rows.append((Text(f"{SIGNS[status]} rung {verdict.rung}", style=STYLES[status]), Text(verdict.words)))
    console.print(_grid(rows))
    console.print()


def _plans(plans: list[Plan], stage: str) -> Any:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), expand=True)
    table.add_column("plan", no_wrap=True, style="dim")
    for plan in plans:
        title = Text.assemble((plan.rig + stage, "bold"), ("" if plan.fits else " does not fit", "bold red"))
        table.add_column(title, overflow="fold", ratio=1)
    values = [{label: value for label, value, _ in lines(plan)} for plan in plans]
    for label in PLAN_ROWS:
        if any(label in found for found in values):
            table.add_row(label, *(Text(found.get(label, "")) for found in values))
    return table


def _print_remarks(console: Any, plans: list[Plan]) -> None:
    rows = [(Text(plan.rig, style="bold"), Text(note, style="dim")) for plan in plans for note in plan.notes]
    if rows:
        console.print(_grid(rows))
        console.print()


def _grid(rows: list[tuple[Any, Any]]) -> Any:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold", ratio=1)
    for row in rows:
        grid.add_row(*row)
    return grid


def _print_verdict(console: Any, report: Readiness) -> None:
    style = "bold green" if report.ready else "bold yellow" if report.holds else "bold red"
    console.print(Text(report.verdict, style=style))
    dearest = report.dearest()
    if dearest is not None and dearest.dollars:
        console.print(Text(f"found on {report.late_target} instead, {dearest.rule}: ${dearest.dollars:,.2f}"))
    if report.rehearsed:
        where = f"report: {report.context.folder / 'report.html'}" if report.unwritten is None else f"warn: {report.unwritten}"
        console.print(Text(f"{where}  ({report.seconds:.0f} s)"), soft_wrap=True)
    else:
        console.print(Text(f"{report.seconds:.0f} s", style="dim"))
    # soft_wrap: a command that rich broke over two lines could not be copied.
    console.print(Text(f"{report.next_place}: {report.next_command}"), soft_wrap=True)
    for beginning, command in zip((f"on {report.late_target}, your machine: ", "rented: "), report.next_rung, strict=False):
        console.print(Text(beginning + command), soft_wrap=True)
