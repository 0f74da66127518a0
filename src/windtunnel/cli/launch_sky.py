"""windtunnel launch --to aws|gcp|runpod|lambda|kubernetes: a task of SkyPilot."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from windtunnel.recipe import UserError

from .options import rig_at
from .output import print_json, say

if TYPE_CHECKING:
    from windtunnel.plan import Plan
    from windtunnel.recipe import Recipe
    from windtunnel.rig import Rig

CLOUDS = ("aws", "gcp", "runpod", "lambda", "kubernetes")
ALIASES = {"amazon": "aws", "ec2": "aws", "google": "gcp", "k8s": "kubernetes"}
"""What people call them -> their names here."""
ELSEWHERE = frozenset({"azure", "vast", "modal", "coreweave", "nebius", "oci", "oracle", "local", "localhost", "here"})
"""Names of places that no machine is rented from by this command."""


def launch_sky(
    recipe: str | None, on: str | None, to: str, sets: Sequence[str], *, price: float | None, dry: bool, spot: bool,
    interruptions: float | None, root: Path, as_json: bool,
) -> int:  # fmt: skip
    """Write the task for the rig that the plan priced, and start it; returns the exit code."""
    from windtunnel.plan import hours_text, plan_whole
    from windtunnel.recipe import load_recipe
    from windtunnel.remote import Rented, compare_with_schema, require_credentials, require_spot, start_command, write_job

    from .interrupted import OF_CLUSTERS, is_spot, rate_of

    if recipe is None or on is None:
        raise UserError("a machine is rented for a recipe and a rig", f"windtunnel launch charlm --on 8xH100 --to {to}")
    if spot and (told := require_spot(to)):
        say(f"warn: {told}")
    on = f"{on}@spot" if spot and "@" not in on else on
    loaded, rig = load_recipe(recipe, sets), rig_at(on, price)
    # Refused before anything is rented: this is the one mistake that costs the whole training.
    if loaded.checkpoints.mirror is None:
        raise UserError(
            "a rented machine ends with its disk: without a mirror nothing would come home",
            "--set checkpoints.mirror=s3://my-bucket/runs",
        )
    if not dry:
        # A dry run needs no account: it shows the task to people who are still choosing where to rent.
        require_credentials(to)
    plan = plan_whole(loaded, rig)
    rented = Rented(rig, plan.hours, plan.disk_gib)
    cost = (
        "no known price" if plan.dollars is None else f"about ${plan.dollars:,.0f} of GPU time at ${rig.dollars_per_hour:,.2f}/h"
    )
    say(f"{loaded.name} on {rig.name}: {hours_text(plan.hours)}, {cost} ({rig.price_note})")
    if to == "kubernetes" and is_spot(on):
        say(f"note: {OF_CLUSTERS}")
    rate = rate_of(on, interruptions, spot=spot and to != "kubernetes")
    _tell_interruptions(plan, rig, loaded, on, rate, root)
    if spot:
        say(_saved_within(plan, rig, to))
    if dry:
        # A dry run leaves nothing behind, but shows the very file that would be written.
        with tempfile.TemporaryDirectory() as place:
            file = write_job(loaded, rented, to, Path(place) / f"{loaded.name}-{to}", spot=spot)
            text, said = file.read_text(encoding="utf-8"), compare_with_schema(file)
        if as_json:
            import yaml

            print_json(yaml.safe_load(text))
        else:
            typer.echo(text)
        say(said)
        return 0
    folder = Path(f"{loaded.name}-{to}-{datetime.now(UTC):%Y%m%d-%H%M%S}")
    # Before the folder is written: it refuses where SkyPilot is not installed.
    command = start_command(folder / "task.yaml", to, spot=spot)
    file = write_job(loaded, rented, to, folder, spot=spot)
    say(f"{file}: SkyPilot rents the machine now, and asks first")
    # SkyPilot shows its own prices and asks: what is paid for is confirmed by a person, not by this command.
    _rent(command)
    job = f"{loaded.checkpoints.mirror}/{folder.name}"
    typer.echo(
        "a machine that is taken away is replaced, and the run goes on there: sky jobs queue"
        if spot
        else f"it trains there; while the machine is up, ssh:{command[3]} names it too"
    )
    for verb in ("look:  windtunnel launch --status --to", "lines: windtunnel logs -f", "end:   windtunnel stop"):
        typer.echo(f"  {verb} {job}")
    typer.echo(f"  home:  windtunnel fetch-run {job}")
    return 0


def _tell_interruptions(plan: Plan, rig: Rig, recipe: Recipe, on: str, rate: tuple[float, str] | None, root: Path) -> None:
    """Print what interruptions make of a plan, or that nobody knows how often a spot machine is taken away."""
    from .interrupted import UNCOUNTED, expect, is_spot

    if rate is not None:
        for label, text in expect(plan, rig, recipe, rate, root).remarks():
            say(f"{label}: {text}")
    elif is_spot(on):
        say(f"note: {UNCOUNTED}")


def _rent(command: Sequence[str]) -> None:
    """Run SkyPilot's command. Raises UserError: it failed; names quota and room with a fix where it speaks of them."""
    from windtunnel.remote import refused_by_cloud, run_and_keep

    code, said = run_and_keep(command)
    if not code:
        return
    again = f"to try again: {shlex.join(command)}"
    if (refused := refused_by_cloud(said)) is not None:
        raise UserError(f"{refused[0]}; what SkyPilot says is above (exit code {code})", f"{refused[1]}; {again}")
    raise UserError(
        f"SkyPilot ended with exit code {code}; what it says is above",
        f"where a quota is exceeded or no machine is left: another --to or --on; {again}",
    )


def _saved_within(plan: Plan, rig: Rig, to: str) -> str:
    """Say whether a checkpoint reaches the mirror between the notice and the machine's end, as far as arithmetic can tell."""
    from windtunnel.run import NOTICE_SECONDS

    from .interrupted import SAVE_GIB_PER_SECOND

    given = NOTICE_SECONDS.get(to)
    if given is None:
        return f"{to} gives no notice that is listened for: what is trained after the last mirrored checkpoint is trained again"
    written, sent = plan.checkpoint_gib / SAVE_GIB_PER_SECOND, plan.checkpoint_gib * 2**30 / (rig.download_gbs * 1e9)
    told = (
        f"notice: {plan.checkpoint_gib:,.2f} GiB are on the disk in {written:,.1f} s and, at {rig.download_gbs:g} GB/s, in the "
        f"mirror in {sent:,.1f} s more"
    )
    if written + sent <= given:
        return f"{told}; {to} gives {given:.0f} s. The check 'mirror' measures it there"
    return (
        f"warn: {told}, and {to} gives {given:.0f} s: steps after the last mirrored checkpoint are trained again\n"
        "  fix: lower checkpoints.every, or a store with a faster line"
    )
