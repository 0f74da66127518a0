"""windtunnel launch --to ssh:HOST, and the verbs that take the address of a run there."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from windtunnel.recipe import UserError

from .output import number, print_json, print_table, say

if TYPE_CHECKING:
    from windtunnel.remote import How

COLUMNS = ("run", "status", "step", "loss", "validation", "$", "note")


def launch_ssh(
    recipe: str | None, to: str, sets: Sequence[str], how: How, *, as_json: bool
) -> None:  # fmt: skip
    """Start a recipe, or go on with a run from its mirror, on another machine; then say how to look at it."""
    from windtunnel.remote import Address, launch_from_mirror, launch_recipe

    address = Address.parse(to)
    if recipe is None:
        raise UserError("launch needs a recipe, or the address of a run's mirror", f"windtunnel launch charlm --to {to}")
    if "://" in recipe:
        # What is changed goes along as words: the run's own recipe is in the mirror, and is read there.
        more = tuple(word for item in sets for word in ("--set", item))
        run = launch_from_mirror(address, recipe, replace(how, arguments=more), say)
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
    recipe: str | None, to: str, sets: Sequence[str], how: How, *, job: str | None, every: float, as_json: bool
) -> int:  # fmt: skip
    """Train a recipe on one of several machines, on another one whenever that is lost, until it ends; returns the exit code."""
    from windtunnel.recipe import load_recipe
    from windtunnel.remote import Address, find, keep, own_mirror, relaunch

    def timed(text: str) -> None:
        say(f"{datetime.now():%H:%M:%S} {text}")

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
    # A job's name is how a second watch finds the runs of the first, on whichever machine they are by then.
    again, job = job is not None, job or f"{loaded.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    own, how = own_mirror(loaded, job), replace(how, arguments=("--restartable",))
    run = find(addresses, own, timed) if again else None
    run = run or relaunch(addresses, own, how, timed)
    words = ["windtunnel", "launch", recipe, "--to", to, *(word for item in sets for word in ("--set", item)), "--job", job]
    words += [] if how.price is None else ["--price", f"{how.price:g}"]
    words += [] if how.then_stop is None else ["--then-stop", how.then_stop]
    timed(f"{run} trains there, mirrored below {own.checkpoints.mirror}")
    timed(f"Ctrl-C ends this watch, not the training; to watch again: {shlex.join(words)}")
    try:
        kept = keep(addresses, run, own, how, timed, period=every)
    except KeyboardInterrupt:
        timed("the watch has ended; the run trains on")
        # As for Ctrl-C anywhere; what ended is only the watching.
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
        rows.append([Path(item["path"]).name, item["status"], *map(number, values), item["problem"] or item["reason"] or ""])
    print_table(f"runs on {where}", COLUMNS, rows, whole=("run", "status"))


def status_of(run: Path) -> dict[str, Any]:
    """Return a run of this machine as `windtunnel runs --json` tells it."""
    from windtunnel.run import list_runs

    # Through the list, so that one run is told with the same keys as many.
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

    return fetch_there(Address.parse(run), root, say)


def is_remote(run: object) -> bool:
    """Return whether this names a run of another machine."""
    return str(run).startswith("ssh:")
