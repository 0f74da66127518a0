"""windtunnel evaluate RUN --flop-matched: train FLOPs-matched baselines of a recursive run, and say whether recursion pays."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .output import print_json, print_remarks, print_table, say

if TYPE_CHECKING:
    from windtunnel.evaluate import Comparison
    from windtunnel.launch import Beside, Options

COST_COLUMNS = ("model", "size", "FLOPs", "about", "")


class Aside:
    """Shows on standard error what a training says; standard output is for the report."""

    def update(self, snapshot: Any) -> None:
        """Show nothing: the training shows its own."""

    def say(self, text: str) -> None:
        """Show one line."""
        say(text)

    def close(self) -> None:
        """Have no terminal to give back."""


def evaluate_flop_matched(folder: Path, *, steps: int | None, yes: bool, json: bool, isolated: bool = True) -> None:
    """Train the members that are not there yet, weigh them, print the report and write it into the run's folder.

    Written are flop_matched.json, flop_matched.png and report.html.

    Args:
        folder: of the recursive run.
        steps: train all members for as many, the recursive one too; None: as many as the run took.
        yes: train without asking.
        json: print one JSON document instead of tables.
        isolated: each training in a process of its own.

    Raises:
        UserError: the run cannot be compared, or trainings are to be confirmed.
    """
    from windtunnel.evaluate import (
        compare_run,
        comparison_columns,
        comparison_remarks,
        comparison_rows,
        report_comparison,
        write_comparison_plot,
    )
    from windtunnel.launch import Options, find_beside
    from windtunnel.watch import write_run_page

    view = Aside()
    comparison = compare_run(folder, steps)
    found = {m.name: find_beside(folder, m.name, m.recipe) for m in comparison.members if not _is_run(comparison, m.name)}
    _announce(comparison, found, yes=yes, json=json)
    runs = _trained(comparison, found, Options(yes=yes), view, json=json, isolated=isolated)
    report = report_comparison(comparison, runs, progress=view.say)
    picture = write_comparison_plot(report, folder / "flop_matched.png")
    page = write_run_page(folder)
    if json:
        print_json(report.to_json())
        return
    print_table(f"{folder.name} beside FLOPs-matched baselines", comparison_columns(report), comparison_rows(report))
    print_remarks(comparison_remarks(report))
    typer.echo(f"written: {folder / 'flop_matched.json'}, {picture}, {page}")


def _is_run(comparison: Comparison, name: str) -> bool:
    """Return whether a member is the run as it is."""
    return comparison.itself and name == comparison.members[0].name


def _announce(comparison: Comparison, found: dict[str, Beside], *, yes: bool, json: bool) -> None:
    """Say what will be trained and what that costs, beside the run.

    Raises:
        UserError: it costs more than `ASK_FROM` times the run and is not confirmed.
    """
    from windtunnel.evaluate import ASK_FROM
    from windtunnel.recipe import UserError

    rows, total = [], 0.0
    for member in comparison.members:
        beside, flops = found.get(member.name), comparison.member_flops(member)
        there = beside is None or beside.ended
        total += 0.0 if there else flops
        state = "there" if there else "goes on" if beside is not None and beside.run is not None else "to train"
        size = f"{member.shape.layers} x {member.shape.dim}"
        about = "-" if there else _time(comparison, flops)
        rows.append([member.role, size, f"{flops / comparison.flops:.2f}", about, state])
    lines = [" ".join(cells) for cells in rows]
    if json:
        for line in lines:
            say(line)
    else:
        print_table(f"compared for {comparison.length.steps:,} steps each; FLOPs as a share of the run's", COST_COLUMNS, rows)
    if not total:
        return
    share = total / comparison.flops
    models = sum(state != "there" for *_, state in rows)
    words = f"to train: {share:.2f} times the run's own FLOPs, about {_time(comparison, total)} and starting up {models} times"
    typer.echo(words, err=json)
    # Baselines may cost several times the run that they are for; that is spent only on purpose.
    if share > ASK_FROM and not yes:
        offered = comparison.steps_within()
        raise UserError(
            f"what the run is compared with costs more than {ASK_FROM:g} times the run itself: {words}",
            "confirm with --yes" + (f", or compare shorter trainings of all: --flop-matched-steps {offered}" if offered else ""),
        )


def _time(comparison: Comparison, flops: float) -> str:
    from windtunnel.plan import hours_text

    if comparison.seconds_per_flop is None:
        return "-"
    seconds = flops * comparison.seconds_per_flop
    return f"{seconds:.0f} s" if seconds < 60 else hours_text(seconds / 3600)


def _trained(
    comparison: Comparison, found: dict[str, Beside], options: Options, view: Aside, *, json: bool, isolated: bool
) -> dict[str, Path]:
    """Member name -> its run; ends the command with the exit code of a training that did not come to its end."""
    from windtunnel.launch import train_beside

    runs: dict[str, Path] = {}
    for number, member in enumerate(comparison.by_weight, 1):
        if member.name not in found:
            runs[member.name] = comparison.run
            continue
        if not found[member.name].ended:
            view.say(f"{number} of {len(comparison.members)}: {member.role}")
        code, runs[member.name] = train_beside(
            found[member.name], member.recipe, options, view, as_json=json, isolated=isolated,
            output=sys.stderr if json else None,
        )  # fmt: skip
        if code:
            view.say(f"{member.name} did not come to its end: the same command goes on from here ({runs[member.name]})")
            raise typer.Exit(code)
    return runs
