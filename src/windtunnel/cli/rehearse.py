"""windtunnel rehearse: run the recipe's scale model end to end on this machine."""

from __future__ import annotations

import typer

from .options import DEFAULT_ROOT, JsonOption, RecipeArgument, RootOption, SetOption


def rehearse(recipe: RecipeArgument, sets: SetOption = None, root: RootOption = DEFAULT_ROOT, json: JsonOption = False) -> None:
    """Prove the recipe here before GPUs are rented: plan, train, kill, resume, evaluate and serve its scale model."""
    from windtunnel.recipe import load_recipe

    loaded = load_recipe(recipe, sets or ())

    from windtunnel.rehearse import rehearse as rehearse_recipe

    raise typer.Exit(rehearse_recipe(loaded, root=root, as_json=json))
