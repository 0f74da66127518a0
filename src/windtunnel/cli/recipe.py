"""windtunnel recipe: a recipe as it is resolved, or all keys with meaning, unit and default."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from .options import JsonOption, SetOption
from .output import print_json, print_remarks, print_table, say

if TYPE_CHECKING:
    from windtunnel.recipe import Group


def recipe(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[RECIPE | WORD]",
            help="A recipe's name or file; with --keys its keys; or a section, a key, a word that others use.",
        ),
    ] = None,
    keys: Annotated[bool, typer.Option("--keys", help="List keys instead: meaning, unit, what is accepted, default.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="With --keys: as docs/recipe-keys.md has them.")] = False,
    sets: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Print a recipe as it is resolved, or all keys that a recipe may have."""
    from windtunnel.recipe import UserError, dump_recipe, load_recipe, recipe_names, recipe_notes

    if keys:
        _keys(name, markdown=markdown, as_json=json)
        return
    if markdown:
        raise UserError("--markdown is how --keys may be printed", "windtunnel recipe --keys --markdown")
    if name is None:
        raise UserError(
            f"recipe needs a name or a file; shipped: {', '.join(recipe_names())}", "windtunnel recipe charlm, or: recipe --keys"
        )
    loaded = load_recipe(name, sets or ())
    if json:
        print_json(loaded.model_dump(mode="json"))
        return
    # Notes go to standard error, so that standard output is a recipe that can be saved and trained.
    typer.echo(dump_recipe(loaded), nl=False)
    for note in recipe_notes(loaded):
        say(f"note: {note}")


def _keys(word: str | None, *, markdown: bool, as_json: bool) -> None:
    from windtunnel.recipe import find_keys, keys_page, recipe_keys

    groups = recipe_keys() if word is None else find_keys(word)
    if as_json:
        print_json([asdict(group) for group in groups])
    elif markdown:
        typer.echo(keys_page(groups), nl=False)
    else:
        for group in groups:
            _table(group)


def _table(group: Group) -> None:
    """Print a section: names without what all of them begin with, so that meanings have room at 80 columns."""
    start = f"{group.path}." if group.path else ""
    rows = [
        (key.path.removeprefix(start), key.meaning + (f" ({key.accepts})" if key.accepts else ""), key.unit, key.default)
        for key in group.keys
    ]
    print_table(group.title, ["key", "meaning (accepts)", "unit", "default"], rows, whole=("key", "unit"))
    print_remarks([("note", group.meaning)] if group.meaning else [])
