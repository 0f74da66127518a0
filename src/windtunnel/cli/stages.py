"""What `windtunnel train` does and shows beside training itself: prepare and evaluate stages, and the gates of all of them."""

from __future__ import annotations

import json as json_format
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from windtunnel.recipe import UserError

from .output import print_remarks, print_table, progress_lines, say

if TYPE_CHECKING:
    from windtunnel.launch import StageReport
    from windtunnel.recipe import Recipe
    from windtunnel.run import Expected, GateResult


def kind_of_stage(recipe: Recipe, name: str) -> str | None:
    """Return the kind of a stage of the recipe; None where it has none of that name."""
    stage = recipe.stages.get(name)
    return None if stage is None else stage.kind


def evaluate_gated(recipe: Recipe, root: Path, *, as_json: bool) -> int:
    """Evaluate the run that has just ended, where the recipe's evaluate stage has gates; return the exit code."""
    return 0 if recipe.evaluation.gates is None else evaluate_newest(recipe, root, as_json=as_json)


def evaluate_newest(recipe: Recipe, root: Path, *, as_json: bool) -> int:
    """Evaluate the newest run of the recipe and judge its gates; return 1 where one does not hold.

    Raises:
        UserError: there is no run of the recipe, or none with a good checkpoint.
    """
    from windtunnel.evaluate import judge_evaluation
    from windtunnel.rl import evaluate_trained
    from windtunnel.run import newest_run
    from windtunnel.watch import write_run_page

    folder = newest_run(root, recipe.name)
    report = evaluate_trained(folder, progress=progress_lines())
    write_run_page(folder)
    results = judge_evaluation(recipe.evaluation.gates, report)
    if as_json:
        # One object a line, not print_json's indented one: `train --json` prints a stream of them.
        print(json_format.dumps({"evaluation": report.to_json(), "gates": [r.to_json() for r in results]}), flush=True)
    else:
        if report.tuned is not None:
            from .evaluate import show_tuned  # not where other verbs start

            show_tuned(report, f"evaluation of {report.run}")
        else:
            assert report.validation is not None
            # A model trained from nothing has no untuned one beside it, and two numbers say it all.
            rows = [["bits per byte", f"{report.validation.bits_per_byte:.4f}"]]
            if report.exact_match is not None:
                rows.append(["exact match", str(report.exact_match)])
            print_table(f"evaluation of {report.run}", ["", ""], rows)
        if results:
            _print_gates("gates of the evaluation", results)
            print_remarks([(r.name, r.advice) for r in results if r.advice])
    return 0 if all(result.held for result in results) else 1


def show_expected(folder: Path, *, as_json: bool) -> None:
    """Print what was expected of a run beside what came of it, and put it into the run's page; nothing where nothing was."""
    from windtunnel.run import RunFolder, compare_expected

    found = compare_expected(RunFolder.open(folder))
    if not found:
        return
    if as_json:
        print(json_format.dumps({"expected": [item.to_json() for item in found]}), flush=True)
    else:
        print_expected(found)
    renew_page(folder)


def print_expected(found: Sequence[Expected]) -> None:
    """Print what was expected of a run beside what was measured; nothing where nothing was."""
    if found:
        columns = ("", "expected", "measured", "met", "by")
        print_table("expected before the run", columns, [item.row() for item in found])


def renew_page(folder: Path) -> None:
    """Write a run's page anew, with what is known of it by now; where that fails say so."""
    from windtunnel.watch import write_run_page

    try:
        write_run_page(folder)
    except UserError as error:
        say(f"warn: the report was not written: {error.message}")


def show_gates(ended: StageReport, *, as_json: bool, alone: bool = False) -> None:
    """Print the gates of a stage that has ended, as a table with advice or as one JSON line.

    Args:
        ended: how the stage ended.
        as_json: print one line of JSON.
        alone: no other stage follows now.
    """
    if as_json:
        from windtunnel.watch import finite

        print(json_format.dumps(finite(ended.to_json()), ensure_ascii=False), flush=True)
        return
    if ended.gates is None:
        typer.echo(f"stage {ended.stage} has no gates (stages.{ended.stage}.gates is null): {_unjudged(ended, alone)}\n")
        return
    if ended.gates:
        _print_gates(f"gates of stage {ended.stage}", ended.gates)
    else:
        typer.echo(f"gates of stage {ended.stage}: none of them asks for anything here\n")
    remarks = [(gate.name, gate.advice) for gate in ended.gates if gate.advice]
    if ended.next_stage is not None:
        remarks.append(("next", _follows(ended, alone)))
    print_remarks(remarks)


def _print_gates(title: str, gates: Sequence[GateResult]) -> None:
    columns = ("gate", "held", "measured", "asked for")
    print_table(title, columns, [[gate.name, "yes" if gate.held else "NO", gate.measured, gate.limit] for gate in gates])


def _unjudged(ended: StageReport, alone: bool) -> str:
    verb = "goes on" if ended.goes_on else f"may start with --stage {ended.next_stage}" if alone else "starts"
    return f"stage {ended.next_stage} {verb} whatever came of it"


def _follows(ended: StageReport, alone: bool) -> str:
    """Say what becomes of the next stage."""
    if ended.held:
        verb = "goes on" if ended.goes_on else f"may start: --stage {ended.next_stage}" if alone else "starts"
        return f"stage {ended.next_stage} {verb}"
    if not ended.goes_on:
        return f"stage {ended.next_stage} is not started: nothing more is spent"
    # The first gate that failed is the one to name: with several, relaxing it shows the next.
    failed = next(gate.name for gate in ended.gates or () if not gate.held)
    relax = f"--set stages.{ended.stage}.gates.{failed}=..."
    return f"stage {ended.next_stage} does not go on: nothing more is spent; with a limit of your own it does: {relax}"
