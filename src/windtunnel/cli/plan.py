"""windtunnel plan: memory, time and dollars of a recipe on one or more rigs, or why it cannot run there."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .options import JsonOption, RecipeArgument, SetOption
from .output import print_json, print_table

NO_PLAN = 1


def plan(
    recipe: RecipeArgument,
    on: Annotated[
        list[str] | None,
        typer.Option("--on", metavar="RIG", help="here, 8xH100, g5.xlarge, 4x(4xGH200), ... (repeatable); otherwise here."),
    ] = None,
    sets: SetOption = None,
    json: JsonOption = False,
) -> None:
    """What the recipe would take, with where each number comes from. Exits 1 when it fits on none of the rigs."""
    from windtunnel.recipe import load_recipe

    loaded = load_recipe(recipe, sets or ())

    from windtunnel.plan import make_plan
    from windtunnel.rig import parse_rig

    rigs = [parse_rig(name) for name in on or ["here"]]
    plans: list[Any] = [make_plan(loaded, rig) for rig in rigs]
    if json:
        print_json([{"rig": rig.name, **made.to_json()} for rig, made in zip(rigs, plans, strict=True)])
    else:
        for rig, made in zip(rigs, plans, strict=True):
            _print_plan(loaded.name, rig.name, made)
    raise typer.Exit(0 if any(made.fits for made in plans) else NO_PLAN)


def _print_plan(recipe: str, rig: str, made: Any) -> None:
    from windtunnel.plan import lines

    print_table(f"{recipe} on {rig}", ["", "value", "where it comes from"], [list(row) for row in lines(made)])
    marks = (("does not fit", made.reasons), ("would work", made.alternatives), ("note", made.notes))
    for label, texts in marks:
        for text in texts if label != "does not fit" or not made.fits else []:
            typer.echo(f"  {label}: {text}")
