"""windtunnel preview: conversations as the model is trained on them."""

from __future__ import annotations

import shutil
from typing import Annotated

import typer

from .options import JsonOption, RecipeArgument, SetOption
from .output import WIDEST, has_colours, print_json, say


def preview(
    recipe: RecipeArgument = "finetune",
    sets: SetOption = None,
    samples: Annotated[int, typer.Option("--samples", "-n", min=1, help="How many conversations.")] = 3,
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="Most tokens shown of each.")] = 600,
    json: JsonOption = False,
) -> None:
    """Show conversations as the model is trained on them: decoded, with what is learned set apart.

    What is learned is green on a terminal, else between ⟦ and ⟧. How many were packed, cut or left out stands above.
    """
    from windtunnel.recipe import load_recipe

    loaded = load_recipe(recipe, sets or ())

    from dataclasses import asdict

    from windtunnel.data import describe_packing, prepare, shown_samples
    from windtunnel.data import preview as decoded
    from windtunnel.launch import data_lines

    data = prepare(loaded, progress=data_lines(say))
    shown = shown_samples(data, samples, tokens)  # refuses data without a mask
    packed = describe_packing(data, loaded.model.sequence)
    if json:
        print_json({"notes": data.notes, "packed": packed, "samples": [asdict(sample) for sample in shown]})
        return
    for line in (*data.notes, *packed):
        typer.echo(line)
    colour = has_colours()
    typer.echo(f"what is learned is {'green' if colour else 'between ⟦ and ⟧'}:\n")
    width = min(WIDEST, shutil.get_terminal_size().columns)
    typer.echo(decoded(data, samples, colour=colour, width=width, most_tokens=tokens), nl=False, color=colour)
