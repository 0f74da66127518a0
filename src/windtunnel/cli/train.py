"""windtunnel train: train a recipe on this machine, or go on with a run."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from windtunnel.recipe import UserError

from .options import (
    DEFAULT_ROOT,
    GpusOption,
    JsonOption,
    PriceOption,
    RootOption,
    SetOption,
    YesOption,
    find_run,
)
from .output import has_colours, say
from .stages import evaluate_gated, evaluate_newest, kind_of_stage, show_expected, show_gates

if TYPE_CHECKING:
    from windtunnel.launch import StageReport
    from windtunnel.recipe import Recipe

# Ten times a hundred would no longer be a smoke test: after that comes the training itself.
MOST_SMOKE = 100


def train(
    context: typer.Context,
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="[RECIPE]",
            help="A shipped recipe's name or a .yaml file; with --resume a run: as for --run, which it spares.",
        ),
    ] = None,
    sets: SetOption = None,
    stage: Annotated[
        str | None, typer.Option("--stage", metavar="NAME", help="Run only this stage, after the one before it.")
    ] = None,
    smoke: Annotated[
        int | None,
        typer.Option(
            "--smoke", min=1, metavar="N", help="At full size, N steps a stage and N answers judged: 10, then 100, then all."
        ),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            "--run", metavar="RUN", help="Go on with this run: a folder, a name under --root, or s3://... of its mirror."
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on from the newest good checkpoint of --run, or of the latest run under --root (of RECIPE, if given).",
        ),
    ] = False,
    restartable: Annotated[
        bool,
        typer.Option(
            "--restartable",
            help="Go on with RECIPE's newest run, from its mirror if another machine was lost; begin it where there is none.",
        ),
    ] = False,
    gpus: GpusOption = None,
    price: PriceOption = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Train on without this terminal; watch, logs and stop find the run again.")
    ] = False,
    yes: YesOption = False,
    root: RootOption = DEFAULT_ROOT,
    json: JsonOption = False,
) -> None:
    """Train within the budget. The same command on a laptop and on eight GPUs. Exits 1 when a stage's gate does not hold."""
    if restartable and (recipe is None or run is not None):
        raise UserError("--restartable finds the run of a recipe itself", "windtunnel train RECIPE --restartable, without --run")
    # `train --resume RUN` and `train s3://...` are what people type first; they mean --run.
    if run is None and recipe is not None and _is_run(recipe, root, resume=resume):
        recipe, run, resume = None, recipe, True
    place = _place_of(run, root)
    if recipe is None:
        from windtunnel.run import RunFolder

        place, resume = _to_resume(place, root, resume=resume), True
        recipe = str(RunFolder.open(place).job_path)
    loaded = _load(recipe, sets or (), smoke)
    if restartable:
        from windtunnel.launch import stand_again

        resume = stand_again(loaded, root, say)

    # Only now: these need the schema, without which a recipe that cannot be read is refused sooner.
    from windtunnel.recipe import recipe_notes

    if stage is not None:
        _unless_trained(loaded, recipe, stage, root, as_json=json)  # refused before anything heavy is imported

    ready = None
    if detach or context.obj:  # a program of its own, rather than a call from Python
        from windtunnel.launch import Compilers, ReadyRanks, supervise

        # The child goes on from here and trains. This process passes on what it prints, to the terminal and to the log of the
        # run, and may leave the terminal while it trains.
        supervise(detach=detach, as_json=json)
        ready = context.with_resource(ReadyRanks.of(loaded, gpus))  # before what takes seconds to import
        context.with_resource(Compilers.of(loaded))

    from windtunnel.launch import Options, mirror_again, run_stages, train_run
    from windtunnel.run import newest_run
    from windtunnel.watch import training_view

    # A view for each stage: it draws one run's curves, and gives the terminal back at that run's end.
    make_view = partial(training_view, as_json=json)
    for note in recipe_notes(loaded):
        say(f"note: {note}")
    colour = not json and has_colours()
    options = Options(
        run=place, resume=resume, yes=yes, root=root, price=price, gpus=gpus, called=recipe, colour=colour, ready=ready
    )  # fmt: skip
    # A recipe without stages is trained as it is: its run has no stage in its name, and no gates between.
    if not loaded.staged and stage is None:
        code, trained = train_run(loaded, options, make_view(), as_json=json)
        if code == 0:
            code = _after(loaded, trained, root, as_json=json, smoke=smoke)
            mirror_again(trained, make_view().say)
        raise typer.Exit(code)

    def report(ended: StageReport) -> None:
        show_gates(ended, as_json=json, alone=stage is not None)

    # Printed where a gate does not hold, so that what goes on is a command to copy rather than one to recall.
    again = _again(recipe, sets or (), smoke, root)
    code = run_stages(loaded, options, make_view, report, stage=stage, again=again, as_json=json)
    trained = newest_run(root, loaded.name)
    if code == 0 and stage is None:
        code = _after(loaded, trained, root, as_json=json, smoke=smoke)
    mirror_again(trained, make_view().say)
    raise typer.Exit(code)


def _is_run(name: str, root: Path, *, resume: bool) -> bool:
    """Return whether what stands in a recipe's place is a run to go on with: an address of a mirror, or a run's folder."""
    if "://" in name:
        return True
    return resume and any((folder / "manifest.json").is_file() for folder in (Path(name), root / name))


def _place_of(run: str | None, root: Path) -> Path | None:
    """Return the folder of the run to go on with; one that is in a mirror is brought here first, with those that it follows."""
    if run is None:
        return None
    if "://" not in run:
        return find_run(Path(run), root)

    from windtunnel.launch import bring_job

    return bring_job(run, root, say)


def _unless_trained(recipe: Recipe, called: str, stage: str, root: Path, *, as_json: bool) -> None:
    """Run a stage that does not train, and end with its exit code; return for one that does. Raises UserError: there is none."""
    from windtunnel.recipe import stage_recipe

    kind = kind_of_stage(recipe, stage)
    if kind == "prepare":
        from .prepare import prepare_data  # another verb

        raise typer.Exit(prepare_data([recipe], as_json=as_json, called=called))
    if kind == "evaluate":
        raise typer.Exit(evaluate_newest(recipe, root, as_json=as_json))
    stage_recipe(recipe, stage)


def _to_resume(place: Path | None, root: Path, *, resume: bool) -> Path:
    """Return the folder of the run to go on with where no recipe is named. Raises UserError."""
    from windtunnel.run import newest_run

    if place is None and not resume:
        raise UserError("train needs a recipe, or a run to go on with", "windtunnel train charlm, or: windtunnel train --resume")
    return place or newest_run(root)


def _load(recipe: str, sets: Sequence[str], smoke: int | None) -> Recipe:
    """Return the recipe, or its smoke test."""
    from windtunnel.recipe import load_recipe

    loaded = load_recipe(recipe, sets)
    if smoke is None:
        return loaded

    from windtunnel.recipe import smoke_recipe

    return smoke_recipe(loaded, smoke)


def _again(recipe: str, sets: Sequence[str], smoke: int | None, root: Path) -> str:
    """Return the command line that goes on with a recipe of stages."""
    again = " ".join(["windtunnel train", shlex.quote(recipe), *(f"--set {shlex.quote(item)}" for item in sets)])
    again += f" --smoke {smoke}" if smoke else ""
    # A root that the environment names is found again without the option.
    known = (str(DEFAULT_ROOT), os.environ.get("WINDTUNNEL_RUNS"))
    return again if str(root) in known else f"{again} --root {shlex.quote(str(root))}"


def _after(recipe: Recipe, trained: Path, root: Path, *, as_json: bool, smoke: int | None) -> int:
    """Evaluate a run that has ended where the recipe has gates for that, and show what was expected; return the exit code.

    A smoke test is evaluated in any case, and says which comes next.
    """
    if smoke is None:
        code = evaluate_gated(recipe, root, as_json=as_json)
    else:
        code = evaluate_newest(recipe, root, as_json=as_json)
        larger = f"the same with --smoke {10 * smoke}" if 10 * smoke <= MOST_SMOKE else "the same without --smoke"
        say(f"next: {larger}")
    show_expected(trained, as_json=as_json)
    return code
