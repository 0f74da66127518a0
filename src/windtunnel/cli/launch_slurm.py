"""windtunnel launch --to slurm: a job on a cluster, its state, and what the lists of runs say of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from windtunnel.recipe import UserError

from .options import rig_at
from .output import print_json, print_table, say

if TYPE_CHECKING:
    from windtunnel.cluster import JobLine, Prepared

COLUMNS = ("job", "Slurm", "state", "nodes", "attempts", "run", "step", "note")


def launch_slurm(
    recipe: str | None, on: str | None, sets: Sequence[str], *, options: Sequence[str], notice: int | None, container: str | None,
    root: Path, price: float | None, temporary: str, dry: bool, as_json: bool,
) -> int:  # fmt: skip
    """Submit the job of a recipe, print it, or run it in the allocation that is here; returns the exit code."""
    from windtunnel.cluster import in_allocation, run_here, submit_job, try_job

    if recipe is None:
        raise UserError("launch needs a recipe", "windtunnel launch charlm --on 8xH100 --to slurm")
    prepared, told = _prepare(
        recipe, on, sets, options=options, notice=notice, container=container, root=root, price=price, temporary=temporary
    )
    for text in (told, *prepared.notes):
        say(text)
    if dry:
        _show(prepared, as_json=as_json)
        return 0
    # Inside an allocation a second job would wait for nodes that this one holds.
    within = in_allocation()
    if within is not None:
        say(f"within allocation {within}: the job runs here, now (unset SLURM_JOB_ID to submit it instead)")
        return run_here(prepared)
    try_job(prepared)
    job = submit_job(prepared)
    if as_json:
        print_json({"job": job.name, "folder": str(job.path), "id": job.id})
        return 0
    typer.echo(
        f"submitted {job.name} as Slurm job {job.id}\n  look:  windtunnel launch --status --to slurm, or: windtunnel runs\n"
        f"  lines: tail -f {job.path}/output.log\n  end:   windtunnel stop {job.path}"
    )
    return 0


def _show(prepared: Prepared, *, as_json: bool) -> None:
    """Print a job and what Slurm says to it. Raises UserError where Slurm does not take it."""
    from windtunnel.cluster import Unreachable, try_job

    if not as_json:
        typer.echo(prepared.script)
    try:
        says = try_job(prepared)
    except Unreachable as error:
        says = f"not asked: {error.message}"
    if as_json:
        print_json({"script": prepared.script, "spec": dataclasses.asdict(prepared.spec), "slurm": says})
    else:
        say(f"Slurm: {says}")


def _prepare(
    recipe: str, on: str | None, sets: Sequence[str], *, options: Sequence[str], notice: int | None, container: str | None,
    root: Path, price: float | None, temporary: str,
) -> tuple[Prepared, str]:  # fmt: skip
    from windtunnel.cluster import Wish, prepare_job
    from windtunnel.plan import hours_text, plan_whole
    from windtunnel.recipe import load_recipe

    if on is None:
        raise UserError("a job is for the rig that its nodes are", "--on '2x(8xH100)', --on 8xH100, or --on cpu")
    loaded, rig = load_recipe(recipe, sets), rig_at(on, price)
    plan = plan_whole(loaded, rig)
    wish = Wish(
        # A time limit that the plan's own error may exceed would cut trainings that are on their way.
        rig=rig, hours=plan.hours * (1 + plan.error.get("time", 0.0)), save_seconds=plan.startup.get("last checkpoint", 0.0),
        disk_gib=plan.disk_gib, options=tuple(options), notice=notice, container=container, root=root,
        price=rig.dollars_per_hour, temporary=temporary,
    )  # fmt: skip
    prepared = prepare_job(loaded, wish)
    dollars = "" if plan.dollars is None else f", about ${plan.dollars:,.0f}"
    return prepared, f"{loaded.name} on {rig.name}: {hours_text(plan.hours)} of training planned{dollars}"


def show_jobs(root: Path, *, as_json: bool) -> None:
    """List the jobs below a folder of runs."""
    from windtunnel.cluster import list_jobs

    found = list_jobs(root)
    if as_json:
        print_json([{**dataclasses.asdict(line), "folder": str(line.folder), "run": _path(line.run)} for line in found])
    elif not found:
        typer.echo(f"no Slurm jobs under {root}/; submit one with: windtunnel launch charlm --on 8xH100 --to slurm")
    else:
        rows = [
            [
                line.name, line.id or "", line.state, line.nodes, str(line.attempts), line.run.name if line.run else "",
                "" if line.step is None else f"{line.step:,}", _note(line),
            ]
            for line in found
        ]  # fmt: skip
        print_table(f"Slurm jobs under {root}/", COLUMNS, rows, whole=("job", "Slurm", "state"))


def jobs_of_runs(root: Path) -> tuple[dict[Path, JobLine], list[JobLine]]:
    """Return the newest run of each job that has not ended -> the job, and the jobs that have no run yet."""
    # No job was ever submitted from here, and the cluster's code need not be imported to list runs.
    if not (root / "slurm").is_dir():
        return {}, []
    from windtunnel.cluster import list_jobs

    lines = list_jobs(root)
    return (
        {line.run.resolve(): line for line in lines if line.run is not None and line.state not in ("done", "stopped", "failed")},
        [line for line in lines if line.run is None],
    )


def stop_slurm(run: Path, root: Path, *, kill: bool, seconds: float, as_json: bool) -> bool:
    """End the Slurm job that is named, or that makes the run that is named; returns whether there is nothing else to stop."""
    places = (root / "slurm", run / "job.json", run / "manifest.json")
    if not any(place.exists() for place in places):  # nothing here was ever under Slurm, and nothing need be imported
        return False

    from windtunnel.cluster import SlurmJob, find_job, is_over, job_of, stop_job

    job = find_job(run, root)
    # A run that is named is stopped by its own means too, after its job, so that its state is reported as always.
    named = job is not None
    if job is None:
        made = next((made for folder in (run, root / run) if folder.is_dir() and (made := job_of(folder)) is not None), None)
        if made is None or not (made / "job.json").is_file():
            return False
        job = SlurmJob.open(made)
        if is_over(job):
            return False
    if not is_over(job):
        stop_job(job, say, kill=kill)
    _wait(job, seconds)
    runs = job.runs()
    if named and as_json:
        status, reason = job.state.end or ("ended", None)
        print_json({"job": str(job.path), "run": _path(runs[0].path if runs else None), "status": status, "reason": reason})
    elif named and runs:
        typer.echo(f"{job.name}: its run is {runs[0].path}: {runs[0].status}" + (f", {runs[0].reason}" if runs[0].reason else ""))
    elif named:
        end = job.state.end
        typer.echo(f"{job.name}: {': '.join(end) if end else 'ended'}; it has made no run")
    return named


def _wait(job: Any, seconds: float) -> None:
    """Wait until a job is over. Raises UserError where it is not in time."""
    import time

    from windtunnel.cluster import is_over

    limit = time.monotonic() + seconds
    while not is_over(job):
        if time.monotonic() > limit:
            raise UserError(f"{job.name} has not ended within {seconds:.0f} s", f"windtunnel stop {job.path} --kill")
        time.sleep(1.0)


def _note(line: JobLine) -> str:
    start = f", expected to start {line.start}" if line.start not in ("", "N/A") else ""
    return line.reason + start


def _path(path: Path | None) -> str | None:
    return None if path is None else str(path)
