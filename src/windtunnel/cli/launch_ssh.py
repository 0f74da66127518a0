"""windtunnel launch --to ssh:HOST, and the verbs that take the address of a run there."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer

from windtunnel.recipe import UserError

from .output import print_json, print_table

COLUMNS = ("run", "status", "step", "loss", "validation", "$", "note")


def launch_ssh(
    recipe: str | None, to: str, sets: Sequence[str], *, python: str | None, price: float | None, gpus: int | None,
    then_stop: str | None, idle: float, as_json: bool,
) -> None:  # fmt: skip
    """Start a recipe, or go on with a run from its mirror, on another machine; then say how to look at it."""
    from windtunnel.remote import Address, How, launch_from_mirror, launch_recipe

    def say(text: str) -> None:
        typer.echo(text, err=True)

    address = Address.parse(to)
    if recipe is None:
        raise UserError("launch needs a recipe, or the address of a run's mirror", f"windtunnel launch charlm --to {to}")
    more = tuple(word for item in sets for word in ("--set", item)) if "://" in recipe else ()
    how = How(python, price, more, then_stop, idle, gpus)
    if "://" in recipe:
        run = launch_from_mirror(address, recipe, how, say)
    else:
        from windtunnel.recipe import load_recipe

        run = launch_recipe(address, load_recipe(recipe, sets), how, say)
    if as_json:
        print_json({"run": str(run)})
        return
    typer.echo(
        f"{run} trains there without this terminal\n  look:  windtunnel launch --status --to {run}\n"
        f"  lines: windtunnel logs {run} -f\n  end:   windtunnel stop {run}\n  home:  windtunnel fetch-run {run}"
    )


def keep_ssh(
    recipe: str | None, to: str, sets: Sequence[str], *, python: str | None, price: float | None, job: str | None,
    every: float, gpus: int | None, then_stop: str | None, idle: float, as_json: bool,
) -> int:  # fmt: skip
    """Train a recipe on one of several machines, on another one whenever that is lost, until it ends; returns the exit code."""
    from windtunnel.recipe import load_recipe
    from windtunnel.remote import Address, How, find, keep, own_mirror, relaunch

    def say(text: str) -> None:
        typer.echo(f"{datetime.now():%H:%M:%S} {text}", err=True)

    addresses = Address.parse_several(to)
    if recipe is None or "://" in recipe:
        raise UserError(
            "several machines are for a recipe, whose job they take over from each other", f"windtunnel launch RECIPE --to {to}"
        )
    loaded = load_recipe(recipe, sets)
    if loaded.checkpoints.mirror is None:
        raise UserError(
            "a machine that is lost takes the run with it: without a mirror no other one could go on",
            "--set checkpoints.mirror=s3://my-bucket/runs",
        )
    again, job = job is not None, job or f"{loaded.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    own, how = own_mirror(loaded, job), How(python, price, ("--restartable",), then_stop, idle, gpus)
    run = find(addresses, own, say) if again else None
    run = run or relaunch(addresses, own, how, say)
    words = ["windtunnel", "launch", recipe, "--to", to, *(word for item in sets for word in ("--set", item)), "--job", job]
    words += [] if price is None else ["--price", f"{price:g}"]
    words += [] if then_stop is None else ["--then-stop", then_stop]
    say(f"{run} trains there, mirrored below {own.checkpoints.mirror}")
    say(f"Ctrl-C ends this watch, not the training; to watch again: {shlex.join(words)}")
    try:
        kept = keep(addresses, run, own, how, say, period=every)
    except KeyboardInterrupt:
        say("the watch has ended; the run trains on")
        return 130
    if as_json:
        print_json({"run": str(kept.run), "status": kept.status, "reason": kept.reason, "moves": kept.moves, "job": job})
    else:
        name = kept.run.run
        typer.echo(
            f"{kept.run}: {kept.status}" + (f": {kept.reason}" if kept.reason else "") + f"; went on elsewhere {kept.moves} times"
        )
        typer.echo(f"  home:  windtunnel fetch-run {own.checkpoints.mirror}/{name}")
    return kept.code


def show_status(to: str, *, as_json: bool) -> None:
    """List the runs on a machine."""
    from windtunnel.remote import Address, status

    address = Address.parse(to)
    found = status(address)
    if as_json:
        print_json(found)
        return
    print_status(str(address), found)


def print_status(where: str, found: list[dict[str, Any]]) -> None:
    """Print runs as a table."""
    rows = []
    for item in found:
        values = (item[name] for name in ("step", "loss", "validation_loss", "dollars"))
        rows.append([Path(item["path"]).name, item["status"], *map(_text, values), item["problem"] or item["reason"] or ""])
    print_table(f"runs on {where}", COLUMNS, rows, whole=("run", "status"))


def status_of(run: Path) -> dict[str, Any]:
    """Return a run of this machine as `windtunnel runs --json` tells it."""
    from dataclasses import asdict

    from windtunnel.run import list_runs

    return next(asdict(item) for item in list_runs(run.parent) if item.path == run)


def attach(run: str, verb: str, *arguments: str) -> int:
    """Run a verb on a run of another machine; returns its exit code."""
    from windtunnel.remote import Address
    from windtunnel.remote import attach as attach_there

    return attach_there(Address.parse(run), verb, *arguments)


def fetch(run: str, root: Path) -> Path:
    """Bring a run home from another machine; returns its folder here."""
    from windtunnel.remote import Address
    from windtunnel.remote import fetch as fetch_there

    return fetch_there(Address.parse(run), root, lambda text: typer.echo(text, err=True))


def is_remote(run: object) -> bool:
    """Return whether this names a run of another machine."""
    return str(run).startswith("ssh:")


def _text(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if isinstance(value, float) else f"{value:,}"
