"""windtunnel train: train a recipe on this machine, or go on with a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import DEFAULT_ROOT, GpusOption, JsonOption, PriceOption, RecipeArgument, RootOption, SetOption, YesOption


def train(
    recipe: RecipeArgument,
    sets: SetOption = None,
    run: Annotated[Path | None, typer.Option("--run", help="The run's folder; otherwise a new one under --root.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the newest good checkpoint of --run or the latest run.")
    ] = False,
    gpus: GpusOption = None,
    price: PriceOption = None,
    yes: YesOption = False,
    root: RootOption = DEFAULT_ROOT,
    json: JsonOption = False,
) -> None:
    """Train within the budget. The same command on a laptop and on eight GPUs."""
    from windtunnel.recipe import load_recipe

    loaded = load_recipe(recipe, sets or ())

    from windtunnel.launch import Options, run_training
    from windtunnel.watch import JsonLines, TerminalView

    view = JsonLines() if json else TerminalView()
    options = Options(run=run, resume=resume, yes=yes, root=root, price=price, gpus=gpus)
    raise typer.Exit(run_training(loaded, options, view, as_json=json))
