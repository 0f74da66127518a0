"""windtunnel check: everything about a recipe and a rig that can be proven without the rig."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .options import DEFAULT_ROOT, JsonOption, RecipeArgument, RootOption, SetOption, TargetsOption, find_run
from .output import print_json, print_table


def check(
    recipe: RecipeArgument = "charlm",
    on: TargetsOption = None,
    sets: SetOption = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="NAME", help="Only this check and what it needs (repeatable).")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the checks and what each proves; run none.")] = False,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the report as one HTML file too.")] = None,
    sbatch: Annotated[
        Path | None, typer.Option("--sbatch", metavar="FILE", help="A Slurm batch script that is to start the job.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume", "--run", metavar="RUN", help="A run that is to be gone on with: its folder, or its name under --root."
        ),
    ] = None,
    root: RootOption = DEFAULT_ROOT,
    json: JsonOption = False,
) -> None:
    """Prove what can be proven before GPUs are rented: environment, data, model, plan, budget, checkpoint, launcher.

    Exits 0 when it is ready, 1 when it is not, 2 when the recipe or a rig that was named does not exist. Where the model's
    weights alone are lacking here: 0 with --on, since they are fetched on that rig, else 1.
    """
    if listed:
        _list(json)
        return
    # Wrong options are refused before the checks' code is imported, which takes much longer.
    _refuse_unwritable(html)
    if sbatch is not None:
        _refuse_no_file(sbatch)
    if resume is not None:
        resume = find_run(resume, root)

    from windtunnel.rehearse import CheckOptions, Progress, check_recipe, show

    options = CheckOptions(
        source=recipe, overrides=sets or (), on=on or (), only=only or (), root=root, resume=resume, sbatch=sbatch,
    )  # fmt: skip
    # With --json standard output is the report's alone.
    with Progress(sys.stderr if json else sys.stdout) as progress:
        report = check_recipe(options, progress)
    if html is not None:
        from windtunnel.rehearse import write_page

        write_page(report, html)
    if json:
        print_json(report.to_json())
    else:
        show(report)
        if html is not None:
            typer.echo(f"report: {html}")
    raise typer.Exit(report.exit_code)


def _list(as_json: bool) -> None:
    from windtunnel.check import all_checks

    # Checks of one name apply to different kinds of recipes and prove the same.
    checks = list({check.name: check for check in all_checks()}.values())
    if as_json:
        print_json([{"check": c.name, "proves": c.proves, "needs": c.needs, "rung": c.rung, "shows": c.shows} for c in checks])
        return
    rows = [[c.name, c.proves, c.rung, c.shows] for c in checks]
    print_table("checks", ["check", "proves", "rung", "would show"], rows)


def _refuse_no_file(sbatch: Path) -> None:
    """Said at once likewise."""
    if sbatch.exists() and not sbatch.is_dir():
        return

    from windtunnel.recipe import UserError

    what = "is a folder" if sbatch.is_dir() else "does not exist"
    raise UserError(f"--sbatch {sbatch} {what}", "name the batch script; windtunnel launch --to slurm --dry-run prints one")


def _refuse_unwritable(html: Path | None) -> None:
    """Said at once, not after minutes of checking."""
    if html is None:
        return

    from windtunnel.recipe import UserError

    if html.is_dir():
        raise UserError(f"--html {html} is a folder", f"--html {html / 'check.html'}")
    if not html.absolute().parent.is_dir():
        raise UserError(f"--html {html}: there is no folder {html.absolute().parent}", f"mkdir -p {html.absolute().parent}")
