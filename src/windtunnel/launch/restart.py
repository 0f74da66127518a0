"""A job that may find itself on another machine: it goes on with its newest run, here or in its mirror, or begins."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windtunnel.files import write_atomic
from windtunnel.mirror import bring_run, newest_mirrored
from windtunnel.recipe import PLACES, Recipe, UserError, dump_recipe, load_recipe
from windtunnel.run import RunFolder, list_runs, newest_run


def stand_again(recipe: Recipe, root: Path, say: Callable[[str], None]) -> bool:
    """Make the newest run of a recipe stand under the folder of runs, from its mirror if need be; return whether there is one.

    The mirror decides where it has a run of the recipe: what lies here may have been left behind when another machine went on.
    Runs of the stages before it, whose weights and gates a later stage asks for, are brought too.

    Args:
        recipe: with the mirror that is this job's alone.
        root: the folder of runs.
        say: told what is brought.

    Raises:
        UserError: another machine trains the run; the store or the run cannot be read.
    """
    url = recipe.checkpoints.mirror
    found = None if url is None else newest_mirrored(url, recipe.name, say)
    if found is not None:
        run = bring_run(found, root, say, to_train=True, aside=True)
        _name_files_here(run, recipe)
        while (before := RunFolder.open(run).manifest.get("before")) and url is not None:
            run = root / str(before["run"])
            if not run.exists():
                run = bring_run(f"{url.rstrip('/')}/{run.name}", root, say, to_train=False)
                _name_files_here(run, recipe)
        return True
    if not any(run.recipe == recipe.name for run in list_runs(root)):
        return False
    newest_run(root, recipe.name)  # refuses a damaged one
    return True


def _name_files_here(run: Path, recipe: Recipe) -> None:
    """Let a run that was brought from another machine name its files where this machine's recipe has them.

    That their content is the same is for the checksum of the data to tell.
    """
    asked = recipe.model_dump(mode="json")
    for file in {run / "recipe.yaml", RunFolder.open(run).job_path}:
        own = load_recipe(file)
        told = own.model_dump(mode="json")
        moved = told | {name: _moved(told[name], asked[name]) for name in ("data", "model") if name in asked}
        if moved != told:
            try:
                write_atomic(file, dump_recipe(Recipe.model_validate(moved)))
            except OSError as error:
                raise UserError(f"{file} cannot be written: {error.strerror or error}") from None


def _moved(told: Any, asked: Any, key: str = "") -> Any:
    """Return a section with places of files as another one has them, wherever these have the same names."""
    if isinstance(told, dict) and isinstance(asked, dict):
        return {name: _moved(value, asked.get(name), name) for name, value in told.items()}
    if isinstance(told, list) and isinstance(asked, list) and len(told) == len(asked):
        return [_moved(value, other, key) for value, other in zip(told, asked, strict=True)]
    if key in ("files", *PLACES) and isinstance(told, str) and isinstance(asked, str):
        return os.path.abspath(asked) if os.path.basename(told) == os.path.basename(asked) and os.path.exists(asked) else told
    return told
