"""windtunnel evaluate: measure a run's best checkpoint."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from windtunnel.recipe import UserError

from .options import DEFAULT_ROOT, JsonOption, RootOption, RunArgument, YesOption, find_run
from .output import print_json, print_table


def evaluate(
    run: RunArgument,
    step: Annotated[int | None, typer.Option("--step", min=0, help="The checkpoint of this step; otherwise the best.")] = None,
    supervision: Annotated[
        int | None, typer.Option("--supervision", min=1, help="Supervision steps of a recursive model; also more than trained.")
    ] = None,
    worth: Annotated[
        bool, typer.Option("--worth", help="Train plain twins of a recursive run and say what its recursion is worth.")
    ] = False,
    worth_steps: Annotated[
        int | None,
        typer.Option("--worth-steps", min=10, help="With --worth: train all for this many steps, the run's too."),
    ] = None,
    yes: YesOption = False,
    root: RootOption = DEFAULT_ROOT,
    json: JsonOption = False,
) -> None:
    """Bits per byte, exact match with its interval, and samples; or what a run's recursion is worth."""
    folder = find_run(run, root)
    if worth or worth_steps is not None:
        from .worth import evaluate_worth

        for name, value in (("--step", step), ("--supervision", supervision)):
            if value is not None:
                raise UserError(
                    f"{name} {value} does not go with --worth: every model is measured at its best", f"leave {name} out"
                )
        evaluate_worth(folder, steps=worth_steps, yes=yes, json=json)
        return

    from windtunnel.evaluate import STEP_COLUMNS, evaluate_run

    report = evaluate_run(folder, step=step, supervision=supervision)
    values = report.to_json()
    for warning in (*report.warnings, *([report.unwritten] if report.unwritten else [])):
        typer.echo(f"warn: {warning}", err=True)
    if json:
        print_json(values)
        return
    shown = values | {"exact_match": report.exact_match}
    left_out = ("format", "samples", "puzzles", "by_step", "warnings")
    rows = [[k.replace("_", " "), _text(v)] for k, v in shown.items() if k not in left_out and v is not None]
    if report.puzzles is not None:
        rows += [list(row) for row in report.puzzles.rows()]
    print_table(f"evaluation of {folder}", ["", ""], rows)
    if report.by_step is not None and report.puzzles is None:  # those have the share that is solved by step
        print_table("held-out text by supervision step", STEP_COLUMNS, report.by_step.rows())
    for sample in values.get("samples", []):
        typer.echo(repr(sample) if isinstance(sample, str) else "\n".join(f"  {k}: {v!r}" for k, v in sample.items()))


def _text(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
