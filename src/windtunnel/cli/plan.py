"""windtunnel plan: memory, time and dollars of a recipe on one or more rigs, or why it cannot run there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .options import JsonOption, RecipeArgument, SetOption
from .output import print_json, print_remarks, print_table

if TYPE_CHECKING:
    from windtunnel.plan import Plan

NO_PLAN = 1
# Rows of prose: they read better below the table.
REMARKS = ("does not fit", "instead", "warning", "note")


def plan(
    recipe: RecipeArgument,
    on: Annotated[
        list[str] | None,
        typer.Option(
            "--on", "--rig", metavar="RIG", help="here, 8xH100, g5.xlarge, 4x(4xGH200), ... (repeatable); otherwise here."
        ),
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
    plans = [make_plan(loaded, rig) for rig in rigs]
    if json:
        print_json([made.to_json() for made in plans])
    else:
        for rig, made in zip(rigs, plans, strict=True):
            _print_plan(loaded.name, rig.name, made)
    raise typer.Exit(0 if any(made.fits for made in plans) else NO_PLAN)


def _print_plan(recipe: str, rig: str, made: Plan) -> None:
    from windtunnel.plan import lines

    rows = lines(made)
    print_table(f"{recipe} on {rig}", ["", "value", "where it comes from"], [row for row in rows if row[0] not in REMARKS])
    print_remarks([(label, value + (f" ({source})" if source else "")) for label, value, source in rows if label in REMARKS])
