"""windtunnel evaluate: measure a run's best checkpoint."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import typer

from .options import DEFAULT_ROOT, JsonOption, RootOption, RunArgument, find_run
from .output import print_json, print_table


def evaluate(
    run: RunArgument,
    step: Annotated[int | None, typer.Option("--step", min=0, help="The checkpoint of this step; otherwise the best.")] = None,
    root: RootOption = DEFAULT_ROOT,
    json: JsonOption = False,
) -> None:
    """Bits per byte, exact match with its interval, and samples."""
    folder = find_run(run, root)

    from windtunnel.evaluate import evaluate_run

    report: Any = evaluate_run(folder, step=step)
    values = report.to_json() if hasattr(report, "to_json") else dataclasses.asdict(report)
    if json:
        print_json(values)
        return
    rows = [[key.replace("_", " "), _text(value)] for key, value in values.items() if key != "samples"]
    print_table(f"evaluation of {folder}", ["", ""], rows)
    for sample in values.get("samples", []):
        typer.echo(repr(sample) if isinstance(sample, str) else "\n".join(f"  {k}: {v!r}" for k, v in sample.items()))


def _text(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
