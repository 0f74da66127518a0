"""windtunnel stop: end a run from another shell."""

from __future__ import annotations

from typing import Annotated

import typer

from windtunnel.recipe import UserError

from .launch_mirror import stop_mirrored, url_of
from .launch_ssh import attach, is_remote
from .options import DEFAULT_ROOT, JsonOption, RootOption, RunArgument, find_run
from .output import print_json, say


def stop(
    run: RunArgument,
    wait: Annotated[float, typer.Option("--wait", min=0.0, metavar="SECONDS", help="How long to wait for the end.")] = 600.0,
    kill: Annotated[
        bool, typer.Option("--kill", help="End it at once, without a checkpoint; only a run of this machine.")
    ] = False,
    root: RootOption = DEFAULT_ROOT,
    json: JsonOption = False,
) -> None:
    """Ask a run to save a checkpoint and end, and wait until it has. It may train on another machine.

    Exits 0 when the run has ended, or had already; 1 when it failed or has not ended in time.
    """
    if is_remote(run):
        raise typer.Exit(
            attach(str(run), "stop", "--wait", f"{wait:g}", *(["--kill"] if kill else []), *(["--json"] if json else []))
        )

    if (url := url_of(run)) is not None:
        if kill:
            raise UserError("--kill ends a process of this machine", f"without it: windtunnel stop {url}")
        raise typer.Exit(stop_mirrored(url, seconds=wait, as_json=json))

    from .launch_slurm import stop_slurm

    if stop_slurm(run, root, kill=kill, seconds=wait, as_json=json):
        return

    from windtunnel.launch import stop_run

    folder = find_run(run, root)
    ended = stop_run(folder, seconds=wait, kill=kill, say=say)
    if json:
        print_json({"run": str(folder), "status": ended.status, "reason": ended.reason, "step": ended.step})
    else:
        typer.echo(f"{folder}: {ended.status}" + (f" after {ended.step:,} steps" if ended.step else "")
                   + (f": {ended.reason}" if ended.reason else ""))  # fmt: skip
        if ended.status == "stopped":
            typer.echo(f"go on with: windtunnel train --resume --run {folder}")
    raise typer.Exit(1 if ended.status in ("running", "failed") else 0)
