"""windtunnel fetch-run: bring a run home from its mirror or from the machine that trains it."""

from __future__ import annotations

from typing import Annotated

import typer

from .launch_ssh import fetch, is_remote
from .options import DEFAULT_ROOT, JsonOption, RootOption
from .output import print_json, say


def fetch_run(
    run: Annotated[str, typer.Argument(metavar="RUN", help="ssh:HOST/RUN, ssh:HOST for the newest, or s3://... of its mirror.")],
    root: RootOption = DEFAULT_ROOT,
    json: JsonOption = False,
) -> None:
    """Bring a copy of a run home from a mirror or another machine, also while it still trains there."""
    from windtunnel.mirror import bring_run, run_url
    from windtunnel.recipe import UserError

    if is_remote(run):
        folder = fetch(run, root)
    elif "://" not in run:
        raise UserError(f"{run} is no address", "for example: windtunnel fetch-run ssh:HOST, or s3://bucket/runs/RUN")
    else:
        folder = bring_run(run_url(run), root, say, to_train=False)
    if json:
        print_json({"run": str(folder)})
    else:
        typer.echo(f"{folder} is here; look at it with: windtunnel watch {folder}")
