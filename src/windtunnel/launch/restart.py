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
        bring_job(found, root, say, recipe)
        return True
    if not any(run.recipe == recipe.name for run in list_runs(root)):
        return False
    newest_run(root, recipe.name)  # refuses a damaged one
    return True


def bring_job(url: str, root: Path, say: Callable[[str], None], recipe: Recipe | None = None) -> Path:
    """Bring a run from its mirror to go on with it here, and the runs of the stages before it; returns the run's folder.

    Args:
        url: of the run's mirror.
        root: the folder of runs.
        say: told what is brought.
        recipe: as this machine has it, whose places of files the runs take over; a state of the run that was left behind here is
            moved out of the way then. None: they stay as they are, and a run before it that is not in the mirror is only told.

    Raises:
        UserError: another machine trains the run; the store or the run cannot be read.
    """
    # Backwards through the stages: each run names the one before it, whose weights and gates are asked for.
    brought = run = bring_run(url, root, say, to_train=True, aside=recipe is not None)
    if recipe is not None:
        _name_files_here(run, recipe)
    while before := RunFolder.open(run).manifest.get("before"):
        run = root / str(before["run"])
        if run.exists():
            continue
        try:
            bring_run(f"{url.rstrip('/').rpartition('/')[0]}/{run.name}", root, say, to_train=False)
        except UserError as error:
            if recipe is not None:
                raise
            say(f"warn: {error.message}: it goes on without the run of the stage before")
            break
        if recipe is not None:
            _name_files_here(run, recipe)
    return brought


def _name_files_here(run: Path, recipe: Recipe) -> None:
    """Let a run that was brought from another machine name its files where this machine's recipe has them.

    That their content is the same is for the checksum of the data to tell.
    """
    # Only where files are is taken over; whatever else differs is for the checks of a resumed run to refuse.
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
