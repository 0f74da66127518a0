"""windtunnel predict: the actions of new theses."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import DEFAULT_ROOT, DeviceOption, JsonOption, RootOption, SetOption, StepOption, find_run, recipe_of
from .output import print_json, print_remarks, print_table, progress_lines, say

SHOWN = 3
"""Answers printed beneath the table."""


def predict(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL", help="A run's folder or name, a recipe's name (its newest run), or a Hugging Face folder."
        ),
    ],
    file: Annotated[Path, typer.Option("--file", metavar="FILE", help="Theses without an action: XML, JSON lines or Parquet.")],
    step: StepOption = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe", metavar="RECIPE", help="Of a Hugging Face folder: the recipe, or the run, that says how theses are asked."
        ),
    ] = None,
    sets: SetOption = None,
    tokens: Annotated[
        int | None, typer.Option("--tokens", min=1, help="Most tokens of an answer; otherwise as the recipe says, or 1,024.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="Write predictions.csv and .jsonl there; goes on where it was interrupted."),
    ] = None,
    device: DeviceOption = None,
    root: RootOption = DEFAULT_ROOT,
    json: JsonOption = False,
) -> None:
    """Predict the actions of new theses, with probabilities and the time each took."""
    from windtunnel.recipe import UserError

    folder = _find(model, root)
    if sets and recipe is None:
        raise UserError("--set changes --recipe, and there is none", "leave it out, or name the recipe")
    asked = None if recipe is None else recipe_of(recipe, sets or [], root)

    from windtunnel.evaluate import predict_file

    found = predict_file(
        folder, file, recipe=asked, checkpoint="best" if step is None else step, tokens=tokens, device=device, out=out,
        progress=progress_lines(),
    )  # fmt: skip
    for warning in (*found.warnings, *(f"left out: {reason}" for reason in found.left_out)):
        say(f"warn: {warning}")
    if json:
        print_json(found.to_json())
        return
    from windtunnel.evaluate import prediction_columns, prediction_rows

    print_table(f"predictions of {folder.name}", prediction_columns(), prediction_rows(found.made))
    remarks = [(f"{one.ticker} {one.as_of_date}", one.text or one.why) for one in found.made[:SHOWN]]
    remarks += [("unparsable", f"{one.ticker} {one.as_of_date}: {one.why}") for one in found.made if one.predicted is None][
        :SHOWN
    ]
    many = f"{len(found.made):,} predictions; seconds each: mean {found.latency.mean:.2f}, p50, p95 {found.latency}"
    print_remarks([*remarks, ("latency", many), *([("written", str(out))] if out is not None else [])])


def _find(model: Path, root: Path) -> Path:
    """Return the folder of a run or a model; of a recipe's name that of its newest run. Raises UserError."""
    from windtunnel.recipe import UserError
    from windtunnel.run import list_runs, newest_run

    try:
        return find_run(model, root)
    except UserError:
        if not any(run.recipe == str(model) for run in list_runs(root)):
            raise
    folder = newest_run(root, str(model))
    say(f"the newest run of {model}: {folder}")
    return folder
