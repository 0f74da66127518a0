"""A job made of a recipe and a plan: what is written, tried, submitted, or run in the allocation that is there."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from windtunnel.recipe import HuggingFaceModel, Recipe, UserError, dump_recipe, find_model
from windtunnel.rig import Rig, processor_of
from windtunnel.run import anchored

from . import scheduler
from .batch import Allocation, Driver
from .batch_script import read_batch_script
from .job import FOLDER, JobSpec, SlurmJob
from .script import python_command, read_options, render_script, require_layout, time_limit

USUAL_NOTICE = 120
# A shared disk is slower when all nodes write at once.
SAVING_MARGIN = 2.0
LOOKED_AT_SECONDS = 10.0
"""For Slurm's scheduler to say why a new job waits."""
_LIMITS = "sinfo --format='%P %l %D' shows the limits"
# Of the SIF header (github.com/sylabs/sif: HdrArch).
_CODES = {b"02": "x86_64", b"04": "aarch64"}
_ARCHES = {"x86_64": "amd64", "aarch64": "arm64"}
NEVER = {
    "PartitionTimeLimit": ("the time limit is longer than the partition's", f"a shorter --slurm time=H:MM:SS; {_LIMITS}"),
    "PartitionNodeLimit": ("the partition lets a job have fewer nodes", f"fewer nodes, or --slurm partition=NAME; {_LIMITS}"),
    "BadConstraints": ("no node is as asked for", "correct --slurm constraint=..., mem=... or nodelist=..."),
    "InvalidAccount": ("no such account", "--slurm account=NAME"),
    "InvalidQOS": ("no such quality of service", "--slurm qos=NAME"),
}
"""Reasons for which a job waits for ever: what each means, and the fix."""


@dataclass(frozen=True)
class Wish:
    """How a recipe is to run on a cluster.

    Attributes:
        rig: of the plan. hours: of the plan, with its error. save_seconds: that a checkpoint takes. disk_gib: that the run keeps.
        options: sbatch's, as users write them. notice: seconds before the time limit; None: as the checkpoint needs.
        container: an image for apptainer. root: folder of the runs, which all nodes see. price: dollars an hour for the rig.
        temporary: on each node's own disk.
    """

    rig: Rig
    hours: float
    save_seconds: float
    disk_gib: float
    options: tuple[str, ...] = ()
    notice: int | None = None
    container: str | None = None
    root: Path = Path("runs")
    price: float | None = None
    temporary: str = "/tmp"


@dataclass(frozen=True)
class Prepared:
    """A job before it is written. Attributes: path: its folder. script, recipe: texts. notes: to be told."""

    path: Path
    spec: JobSpec
    script: str
    recipe: str
    notes: list[str] = field(default_factory=list)


def prepare_job(recipe: Recipe, wish: Wish, environment: Mapping[str, str] = os.environ) -> Prepared:
    """Return the job of a recipe.

    Raises:
        UserError: options that Slurm does not take, or that are not those of the plan; a recipe that has no use for several
            nodes; no such image.
    """
    options = read_options(wish.options)
    if not Path(wish.temporary).is_absolute():
        raise UserError(
            f"--node-temp {wish.temporary}: a folder of each node's own disk begins with /", "for example --node-temp /scratch"
        )
    rig = wish.rig
    nodes, gpus = require_layout(options, rig=rig.name, nodes=rig.nodes, gpus_per_node=rig.gpus_per_node if rig.gpu else 0)
    if nodes > 1:
        _require_several(recipe, nodes)
    needed = SAVING_MARGIN * wish.save_seconds + 60
    notice = wish.notice if wish.notice is not None else max(USUAL_NOTICE, round(needed))
    limit = time_limit(options, wish.hours, notice)
    notes = []
    if notice < needed:
        notes.append(f"warn: --notice {notice}: a checkpoint takes about {wish.save_seconds:.0f} s; give {needed:.0f} or more")
    image = _image(wish.container)
    notes += _processor(rig, image)
    root = wish.root.absolute()
    # With the process's number: two launches in one second are two jobs.
    path = root / FOLDER / f"{recipe.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}"
    models = _models(recipe)
    spec = JobSpec(
        recipe=recipe.name, root=str(root), workdir=os.getcwd(), rig=rig.name, nodes=nodes,
        gpus_per_node=rig.gpus_per_node if rig.gpu else 0, gpu=rig.gpu.name if rig.gpu else None, notice=notice,
        python=python_command(image, [str(root), os.getcwd(), *models]),
        arguments=() if wish.price is None else ("--price", f"{wish.price:g}"),
        models=models, disk_gib=wish.disk_gib, ray=nodes > 1, temporary=wish.temporary,
    )  # fmt: skip
    script = render_script(spec, options, gpus=gpus, limit=limit, job=path, environment=environment)
    return Prepared(path, spec, script, dump_recipe(anchored(recipe)), [*notes, *_problems(script)])


def try_job(prepared: Prepared) -> str:
    """Ask Slurm whether it takes the job; returns when and where it would start.

    Raises:
        Unreachable: there is no Slurm to ask.
        UserError: Slurm does not take it.
    """
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "job.sbatch"
        file.write_text(prepared.script, encoding="utf-8")
        return scheduler.try_submit(file)


def submit_job(prepared: Prepared) -> SlurmJob:
    """Write the job's folder and submit it. Raises UserError; the folder is gone then."""
    job = SlurmJob.create(prepared.path, prepared.spec, script=prepared.script, recipe=prepared.recipe)
    try:
        number = scheduler.submit(job.path / "job.sbatch")
        job.submitted(number)
        _require_startable(number)
    except UserError:
        # A job that Slurm did not take would be listed as one that waits.
        shutil.rmtree(job.path, ignore_errors=True)
        raise
    return job


def run_here(prepared: Prepared) -> int:
    """Run the job in the allocation that this process is in, to its end; returns the exit code. Raises UserError."""
    given = Allocation.here()
    if len(given.nodes) != prepared.spec.nodes:
        raise UserError(
            f"allocation {given.id} has {len(given.nodes)} nodes, and {prepared.spec.nodes} are asked for",
            f"salloc --nodes={prepared.spec.nodes}, or --slurm nodes={len(given.nodes)}, or another --on RIG",
        )
    job = SlurmJob.create(prepared.path, prepared.spec, script=prepared.script, recipe=prepared.recipe)
    job.submitted(given.id)
    os.environ["TMPDIR"] = f"{prepared.spec.temporary}/wt-{given.id}"
    os.makedirs(os.environ["TMPDIR"], exist_ok=True)
    sys.stdout.flush()
    return Driver(job, given).run()


def _require_startable(number: str) -> None:
    """Cancel a job that Slurm keeps in the queue though it can never start. Raises UserError."""
    limit = time.monotonic() + LOOKED_AT_SECONDS
    while True:
        standing = scheduler.standings([number]).get(number)
        if standing is None or standing.state != "PENDING":
            return
        if standing.reason in NEVER:
            scheduler.cancel(number)
            meaning, fix = NEVER[standing.reason]
            raise UserError(f"Slurm would never start the job: {standing.reason} ({meaning})", fix)
        # Any other reason is one that passes, such as Resources or Priority.
        if standing.reason not in ("None", "PartitionConfig") or time.monotonic() > limit:
            return
        time.sleep(0.5)


def _problems(script: str) -> list[str]:
    """Return what the reader of batch scripts warns about; raise UserError for what sbatch would refuse."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "job.sbatch"
        file.write_text(script, encoding="utf-8")
        read = read_batch_script(file)
    for what, fix in read.problems:
        raise UserError(what.replace(str(file), "job.sbatch"), fix)
    return [f"warn: {text.replace(str(file), 'job.sbatch')}" for text in read.warnings]


def _require_several(recipe: Recipe, nodes: int) -> None:
    """Refuse a recipe that has no use for several nodes. Raises UserError."""
    stages = [stage for stage in recipe.training if stage.kind == "rl"]
    if not stages:
        raise UserError(
            f"{nodes} nodes: recipe {recipe.name} has no stage of kind rl, and the others train on one node",
            "--on with one node; or for Megatron-Bridge: windtunnel launch RECIPE --on RIG --to FOLDER",
        )
    for stage in stages:
        if getattr(stage, "placement", "ray") != "ray":
            raise UserError(
                f"{nodes} nodes: stages.{stage.name}.placement is not ray, so all would run on one",
                f"--set stages.{stage.name}.placement=ray, or --on with one node",
            )


def _processor(rig: Rig, image: str | None) -> list[str]:
    """Return what to know where the nodes have another processor than this machine. Raises UserError for an image of another."""
    needed, here = processor_of(rig), platform.machine()
    if rig.gpu is None or rig.name == "here":
        return []
    if image is None:
        if needed == here:
            return []
        return [f"warn: the nodes of {rig.name} are {needed}, and this Python is {here}: launch from such a node, or --container"]
    own = image_processor(Path(image))
    if own is not None and own != needed:
        fix = f"build the image on such a node, or: apptainer build --arch {_ARCHES[needed]} {Path(image).name} docker://NAME:TAG"
        raise UserError(f"--container {image}: it is for {own}, and the nodes of {rig.name} are {needed}", fix)
    return []


def image_processor(image: Path) -> str | None:
    """Return the processor that an image in Singularity's format is for, as its header says; None where it does not."""
    try:
        with open(image, "rb") as file:
            header = file.read(48)
    except OSError:
        return None
    # The header: 32 bytes of a launch script, 'SIF_MAGIC' and a zero, 3 bytes of version, 3 bytes of processor.
    return _CODES.get(header[45:47]) if header[32:41] == b"SIF_MAGIC" else None


def _image(container: str | None) -> str | None:
    """Return the absolute place of an image. Raises UserError where it is none here."""
    if container is None or "://" in container:  # docker://..., which apptainer fetches on the node
        return container
    path = Path(container).expanduser().absolute()
    if not path.exists():
        raise UserError(f"--container {container}: there is no such image", f"apptainer build {path.name} docker://NAME:TAG")
    return str(path)


def _models(recipe: Recipe) -> tuple[str, ...]:
    """Return the folders of models that the nodes must see."""
    if not isinstance(recipe.model, HuggingFaceModel) or Path(recipe.model.config).expanduser().is_file():
        return ()  # a config alone: its weights are random
    found = find_model(recipe.model.config)
    return (str(found.resolve()),) if found is not None else ()
