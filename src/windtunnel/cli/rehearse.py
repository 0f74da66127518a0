"""windtunnel rehearse: run the recipe's scale model end to end on this machine."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from .options import DEFAULT_ROOT, JsonOption, RecipeArgument, RootOption, SetOption, TargetsOption
from .output import print_json


def rehearse(
    recipe: RecipeArgument,
    on: TargetsOption = None,
    sets: SetOption = None,
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, help="Optimizer steps of the scale model; otherwise by rule.")
    ] = None,
    root: RootOption = DEFAULT_ROOT,
    json: JsonOption = False,
) -> None:
    """Prove the recipe here before GPUs are rented: check, then train, kill, resume, evaluate and serve its scale model.

    Where there is a GPU, ten full-size steps follow, and the same on all GPUs of the machine.

    Exits 0 when it is ready, 1 when it is not. A model whose weights are not here is rehearsed with random ones, and what is
    lacking is named: exit 0 with --on, since they are fetched on that rig, else 1.
    """
    from windtunnel.recipe import load_recipe

    loaded = load_recipe(recipe, sets or ())

    from windtunnel.rehearse import Options, Progress, show
    from windtunnel.rehearse import rehearse as rehearse_recipe

    called = [recipe, *(part for value in sets or () for part in ("--set", value))]
    options = Options(targets=on or (), root=root, steps=steps, called=called)
    # With --json standard output is the report's alone.
    with Progress(sys.stderr if json else sys.stdout) as progress:
        report = rehearse_recipe(loaded, options, progress)
    if json:
        print_json(report.to_json())
    else:
        show(report)
    raise typer.Exit(report.exit_code)
