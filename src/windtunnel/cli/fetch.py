"""windtunnel fetch: bring a model's weights to this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from .options import JsonOption
from .output import print_json, say


def fetch(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="A built-in model (smollm2-135m), OWNER/NAME on the hub, or, to --verify, a folder."),
    ] = None,
    only: Annotated[
        Literal["tokenizer"] | None,
        typer.Option(
            "--only", help="Config and tokenizer alone: megabytes, enough to plan and to prepare data.", metavar="tokenizer"
        ),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FOLDER", help="Into this folder, for model.config=FOLDER; otherwise found by name."),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Fetch nothing: read what is here and compare every file's hash.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Bring a model's weights, config and tokenizer to this machine, where recipes find it by its name.

    It comes from Hugging Face's hub into $WINDTUNNEL_MODELS or ~/.cache/windtunnel/models; what was cut off goes on. No GPU
    is needed: a login node or a cheap CPU machine does.
    """
    from windtunnel.model import fetch_model, verify_hashes
    from windtunnel.recipe import UserError

    if verify:
        made = verify_hashes(name, say, to=to)
    elif name is None:
        raise UserError("fetch: no model is named", "windtunnel fetch smollm2-135m-instruct, for example, or OWNER/NAME")
    else:
        made = fetch_model(name, say, to=to, weights=only is None)
    if json:
        values = {"name": made.name, "folder": str(made.folder), "source": made.source, "bytes": made.bytes}
        print_json({**values, "reused": made.reused})
        return
    done = "verified" if verify else "kept" if made.reused else "wrote"
    size = f"{made.bytes / 1e6:,.1f} MB of weights" if made.bytes else "config and tokenizer, no weights"
    typer.echo(f"{done} {made.folder}: {size}, {made.source}")
