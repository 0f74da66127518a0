"""windtunnel launch: train on another machine, or render the job of a plan that Megatron-Bridge runs."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from windtunnel.recipe import UserError

from .launch_mirror import show_status as show_mirrored
from .launch_mirror import url_of
from .launch_sky import ALIASES, CLOUDS, ELSEWHERE
from .options import DEFAULT_ROOT, JsonOption, PriceOption, RootOption, SetOption
from .output import print_json, print_remarks, print_table


def launch(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="[RECIPE]", help="A recipe's name or file, or the address of a run's mirror (s3://...) to go on with."
        ),
    ] = None,
    on: Annotated[
        str | None, typer.Option("--on", "--rig", metavar="RIG", help="The rig that a job's folder is for, such as '4x(8xH100)'.")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="WHERE",
            help="ssh:[USER@]HOST[:PORT], several of them with commas, slurm, a cloud, or a job's folder, which must be new.",
        ),
    ] = None,
    sets: SetOption = None,
    stage: Annotated[
        str | None, typer.Option("--stage", metavar="NAME", help="The stage that fine-tunes; otherwise the only one.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="FOLDER", help="Where a job's nodes find the model's files; otherwise as here."),
    ] = None,
    status: Annotated[
        bool, typer.Option("--status", help="With --to ssh:HOST, slurm or the address of a mirror: list runs there instead.")
    ] = False,
    python: Annotated[
        str | None,
        typer.Option("--python", metavar="PATH", help="The Python to use there; otherwise the first that is suitable."),
    ] = None,
    price: PriceOption = None,
    dry: Annotated[
        bool, typer.Option("--dry-run", help="With a cloud or slurm: print what would be started, and start nothing.")
    ] = False,
    spot: Annotated[bool, typer.Option("--spot", help="With a cloud: a machine that may be taken away, for less.")] = False,
    interruptions: Annotated[
        float | None,
        typer.Option("--interruptions", min=0.0, metavar="RATE", help="With a cloud: how often an hour a machine is taken away."),
    ] = None,
    job: Annotated[
        str | None, typer.Option("--job", metavar="NAME", help="With several machines: watch this job again, as it was named.")
    ] = None,
    every: Annotated[
        float,
        typer.Option("--every", min=0.1, metavar="SECONDS", help="With several machines: between looks at the one that trains."),
    ] = 30.0,
    then_stop: Annotated[
        str | None,
        typer.Option(
            "--then-stop", metavar="COMMAND", help="With ssh: run this there when the work is done: 'sudo shutdown -h now'."
        ),
    ] = None,
    idle: Annotated[
        float, typer.Option("--idle", min=0.0, metavar="MINUTES", help="With --then-stop: how long nothing must have run there.")
    ] = 10.0,
    slurm: Annotated[
        list[str] | None,
        typer.Option(
            "--slurm", metavar="KEY=VALUE", help="With --to slurm: an option of sbatch: --slurm partition=gpu (repeatable)."
        ),
    ] = None,
    notice: Annotated[
        int | None,
        typer.Option("--notice", metavar="SECONDS", help="With --to slurm: how long before the time limit the run is saved."),
    ] = None,
    container: Annotated[
        str | None, typer.Option("--container", metavar="IMAGE", help="With --to slurm: train in this image, through apptainer.")
    ] = None,
    temporary: Annotated[
        str, typer.Option("--node-temp", metavar="FOLDER", help="With --to slurm: a folder on each node's own disk.")
    ] = "/tmp",
    root: RootOption = DEFAULT_ROOT,
    json: JsonOption = False,
) -> None:
    """Train on another machine, over ssh, under Slurm, or rented through SkyPilot; or write a job for Megatron-Bridge.

    Over ssh: the package, recipe and data are brought there, checked there, and trained there without this terminal.
    Otherwise: batch script, driver, layout, what each rank holds, and packed data, for plans that split matrices, experts or
    layers over ranks, which the package's own engine does not train.
    """
    if to is None:
        raise UserError("launch needs to know where", "--to ssh:HOST, or --to FOLDER for a job of Megatron-Bridge")
    # A mirror is where runs are seen, not where they train, though both are given with --to.
    if (url := url_of(to)) is not None:
        if not status:
            raise UserError(f"--to {to}: a mirror is no machine", f"--to ssh:HOST --set checkpoints.mirror={url}")
        show_mirrored(url, as_json=json)
        return
    if to.startswith("ssh:"):
        from .launch_ssh import keep_ssh, launch_ssh, show_status

        if status:
            show_status(to, as_json=json)
            return
        from windtunnel.remote import How

        price, gpus = _of_rig(on, price)
        how = How(python, price, (), then_stop, idle, gpus)
        if "," in to:
            raise typer.Exit(keep_ssh(recipe, to, sets or (), how, job=job, every=every, as_json=json))
        launch_ssh(recipe, to, sets or (), how, as_json=json)
        return
    if to == "slurm":
        from .launch_slurm import launch_slurm, show_jobs

        if status:
            show_jobs(root, as_json=json)
            return
        raise typer.Exit(
            launch_slurm(
                recipe, on, sets or (), options=slurm or (), notice=notice, container=container, root=root, price=price,
                temporary=temporary, dry=dry, as_json=json,
            )
        )  # fmt: skip
    # What is left may be a folder. Clouds first: a folder named aws has to be given as ./aws.
    to = ALIASES.get(to.lower(), to)
    if to in CLOUDS:
        from .launch_sky import launch_sky

        if status:
            raise UserError(
                f"--status --to {to}: a rented machine is asked through its mirror, or by its name",
                "--to s3://BUCKET/FOLDER/JOB, or --to ssh:CLUSTER, as the launch printed them",
            )

        raise typer.Exit(
            launch_sky(
                recipe, on, to, sets or (), price=price, dry=dry, spot=spot, interruptions=interruptions, root=root, as_json=json
            )
        )
    _refuse_unknown(to, recipe, sets or ())
    if recipe is None or on is None:
        raise UserError("a job's folder is for a recipe and a rig", "windtunnel launch RECIPE --on '4x(8xH100)' --to FOLDER")
    _render(recipe, on, Path(to), sets or (), stage, model, as_json=json)


def _of_rig(on: str | None, price: float | None) -> tuple[float | None, int | None]:
    """Return dollars an hour, where none were given by the rig's plan, and how many GPUs the machine must have; None: any."""
    if on is None:
        return price, None
    from windtunnel.rig import parse_rig

    rig = parse_rig(on)
    if rig.nodes > 1:
        raise UserError(f"--on {on}: ssh trains on one machine", "several nodes: --to slurm")
    return rig.dollars_per_hour if price is None else price, rig.gpus or None


def _refuse_unknown(to: str, recipe: str | None, sets: Sequence[str]) -> None:
    """Refuse what is rather the name of a provider than of a folder: of a recipe that has no job, any bare word."""
    if "/" in to or Path(to).exists():
        return
    # `--to lamda` would else write a folder of that name, and seem to have worked.
    known = difflib.get_close_matches(to.lower(), [*CLOUDS, *ALIASES, "sky", "slurm"], n=1, cutoff=0.6)
    if known or to.lower() in ELSEWHERE or (recipe is not None and not _has_job(recipe, sets)):
        raise UserError(
            f"--to {to}: unknown provider", f"expected {', '.join(CLOUDS)}, slurm, ssh:HOST, or a folder such as ./{to}"
        )


def _has_job(recipe: str, sets: Sequence[str]) -> bool:
    """Whether Megatron-Bridge can be handed a stage of a recipe."""
    from windtunnel.recipe import load_recipe

    return any(stage.kind == "sft" for stage in load_recipe(recipe, sets).stages.values())


def _render(
    recipe: str, on: str, to: Path, sets: Sequence[str], stage: str | None, model: str | None, *, as_json: bool
) -> None:  # fmt: skip
    """Write the job of Megatron-Bridge."""
    from windtunnel.launch import render_job
    from windtunnel.plan import make_plan
    from windtunnel.recipe import load_recipe, stage_recipe
    from windtunnel.rig import parse_rig

    loaded, rig = load_recipe(recipe, sets), parse_rig(on)
    if stage is not None or len(loaded.training) == 1:
        loaded = stage_recipe(loaded, stage or loaded.training[0].name)
    elif loaded.training:
        names = ", ".join(each.name for each in loaded.training)
        raise UserError(f"recipe {loaded.name} has several stages that train: {names}", "--stage NAME")
    plan = make_plan(loaded, rig)
    # A job that cannot fit would fail only once its nodes are allocated and waited for.
    if not plan.fits:
        raise UserError(
            f"{loaded.name} does not fit {rig.name}: {'; '.join(plan.reasons)}",
            f"windtunnel plan {shlex.quote(recipe)} --on {shlex.quote(on)}",
        )
    job = render_job(loaded, plan, rig, to, model=model, called=recipe)
    if as_json:
        stages = [{"parameters": count, "weight_bytes": size} for count, size in job.stages]
        found = {"folder": str(job.folder), "files": list(job.files), "layout": plan.layout.as_dict(), "stages": stages}
        print_json(found | {"sequences": job.sequences, "steps": plan.steps, "hours": plan.hours, "dollars": plan.dollars})
        return
    rows = [[str(i), f"{count:,}", f"{size / 2**30:.2f} GiB"] for i, (count, size) in enumerate(job.stages)]
    print_table(
        f"wrote {job.folder}: {loaded.name} on {rig.name}", ("pipeline stage", "parameters a rank", "their bf16 weights"), rows
    )
    dollars = "" if plan.dollars is None else f", ${plan.dollars:,.0f}"
    print_remarks(
        [
            ("layout", job.layout),
            (
                "batch",
                f"{plan.layout.batch_sequences:,} packed sequences a step, one at a time, as Megatron-Bridge takes packed ones",
            ),
            (
                "length",
                f"{plan.steps:,} steps, about {plan.hours:.1f} h{dollars} (±{plan.error['time']:.0%}, arithmetic, not measured)",
            ),
            ("data", ", ".join(f"{count:,} packed sequences for {name}" for name, count in job.sequences.items())),
            ("next", f"copy the folder to a disk that all nodes see, and there: sbatch {job.script}"),
        ]
    )
