"""windtunnel plan: memory, time and dollars of a recipe on one or more rigs, or why it cannot run there."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import JsonOption, RecipeArgument, SetOption
from .output import print_json, print_remarks, print_table

if TYPE_CHECKING:
    from windtunnel.plan import Ladder, Opinion, Plan, Rung
    from windtunnel.recipe import Recipe
    from windtunnel.rig import Rig

NO_PLAN = 1
HERE = "here"
# Rows of prose: they read better below the table.
REMARKS = ("does not fit", "instead", "warning", "note")


def plan(
    recipe: RecipeArgument,
    on: Annotated[
        list[str] | None,
        typer.Option(
            "--on",
            "--rig",
            metavar="RIG",
            help="here, 8xH100, g5.xlarge, 4x(4xGH200), ... Given several times, it is a ladder: "
            "the last is the target, the others rehearse for it. Otherwise here.",
        ),
    ] = None,
    sets: SetOption = None,
    plot: Annotated[
        list[Path] | None,
        typer.Option("--plot", metavar="FILE", help="Draw memory, step and cost into a .png or .html file (repeatable)."),
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure ten full-size steps on this machine's GPUs and correct plans for them.")
    ] = False,
    calibration: Annotated[
        str | None,
        typer.Option("--calibration", metavar="FOLDER", help="Where corrections are kept; 'none' leaves them out."),
    ] = None,
    trace: Annotated[
        bool,
        typer.Option("--trace", help="Run a step of the real model on tensors without data, and compare memory with the plan."),
    ] = False,
    json: JsonOption = False,
) -> None:
    """What the recipe would take, with where each number comes from. Exits 1 when it does not fit the (last) rig."""
    if calibration is not None:
        # One switch for every reader: the planner, and the measuring processes started from here.
        from windtunnel.plan import CALIBRATION

        os.environ[CALIBRATION] = calibration

    from windtunnel.recipe import load_recipe

    loaded = load_recipe(recipe, sets or ())

    from windtunnel.rig import parse_rig

    rigs = [parse_rig(name) for name in on or [HERE]]
    _check_pictures(plot or [])
    if calibrate:
        _calibrate(loaded, rigs, json)
        return

    ladder = _climb(loaded, rigs, from_here=len(rigs) > 1 and not json)
    opinion = _trace(loaded, rigs[-1], ladder.plan) if trace else None
    if json:
        print_json([_finite(_entry(rung, opinion)) for rung in ladder.rungs])
    elif len(rigs) == 1:
        _print_plan(loaded.name, rigs[0].name, ladder.plan)
    else:
        _print_ladder(ladder)
    if opinion is not None and not json:
        print_table(
            f"{loaded.name} on {rigs[-1].name}: memory a rank, traced", ["", "planned", "traced", "off by"], opinion.rows()
        )
        print_remarks(opinion.remarks())
    _draw(ladder, rigs, plot or [], silent=json)
    raise typer.Exit(0 if ladder.plan.fits else NO_PLAN)


def _climb(recipe: Recipe, rigs: list[Rig], *, from_here: bool) -> Ladder:
    """The ladder over the rigs, with this machine as its first rung where that is wanted, possible and not named already."""
    from windtunnel.plan import climb
    from windtunnel.recipe import UserError
    from windtunnel.rig import detect_rig

    if from_here and not any(rig.gpu is None or rig.name == HERE for rig in rigs):
        with contextlib.suppress(UserError):  # the rigs that were named then have it too, or this machine does not matter
            return climb(recipe, [detect_rig(), *rigs])
    return climb(recipe, rigs)


def _check_pictures(paths: list[Path]) -> None:
    """Before anything is planned: a file that cannot be written is bad input."""
    for path in paths:
        from windtunnel.plan import check_plot_path

        check_plot_path(path)


def _draw(ladder: Ladder, rigs: list[Rig], paths: list[Path], *, silent: bool) -> None:
    for path in paths:
        from windtunnel.plan import write_plot

        write_plot([rung.plan for rung in ladder.rungs if rung.plan is not None and rung.rig in rigs], path)
        if not silent:
            print(f"wrote {path}")


def _entry(rung: Rung, opinion: Opinion | None) -> dict[str, Any]:
    """Of a rung with a plan also the trace, which is of the target's."""
    entry = rung.to_json()
    if rung.plan is None:
        return entry
    return entry | {"trace": opinion.to_json() if opinion is not None and rung.target else None}


def _trace(recipe: Recipe, rig: Rig, made: Plan) -> Opinion:
    """Of the target's plan."""
    from windtunnel.launch import trace_plan
    from windtunnel.plan import resolve

    if recipe.model.kind == "gpt":
        recipe = resolve(recipe, rig)
    return trace_plan(recipe, made, say=lambda text: typer.echo(text, err=True))


def _print_plan(recipe: str, rig: str, made: Plan) -> None:
    from windtunnel.plan import lines

    rows = lines(made)
    print_table(f"{recipe} on {rig}", ["", "value", "where it comes from"], [row for row in rows if row[0] not in REMARKS])
    print_remarks([(label, value + (f" ({source})" if source else "")) for label, value, source in rows if label in REMARKS])


def _print_ladder(ladder: Ladder) -> None:
    from windtunnel.plan import COLUMNS, count_text, ladder_remarks, ladder_rows

    target = ladder.plan
    title = f"{ladder.recipe} ({target.model.partition(':')[0]}, {count_text(target.params)} parameters), to {target.rig}"
    print_table(title, COLUMNS, ladder_rows(ladder))
    print_remarks(ladder_remarks(ladder))


def _calibrate(recipe: Recipe, rigs: list[Rig], json: bool) -> None:
    from windtunnel.launch import calibrate

    done = calibrate(recipe, rigs, say=lambda text: typer.echo(text, err=True))
    if json:
        print_json(_finite(done.to_json()))
        return
    print_table(f"{recipe.name} on {rigs[0].name}: {done.steps} steps", ["", "planned", "measured", "off by"], done.rows())
    print_remarks(done.remarks())


def _finite(value: Any) -> Any:
    """JSON has neither NaN nor infinity: null stands for a number that does not exist."""
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
