"""Faults of the rig that was named, of the batch script, and of a run to be resumed."""

from __future__ import annotations

import dataclasses
import json

from planting import Plant, Site, group, sets
from sites import charlm, text_recipe

NAMES = "$1,000 guide: H100 PCIe taken for SXM, wrong peaks"
SLURM = "GRPO guide: sbatch, partitions, node availability, bad nodes"
RESUME = "DeepSeek-V3 guide: checkpoint corruption; $1,000 project: on resume all ranks read the same data"

SCRIPT = """#!/bin/bash
#SBATCH --job-name=charlm
#SBATCH --nodes=1
#SBATCH --gpus-per-node=h100:8
#SBATCH --partition=gpu
#SBATCH --time=02:00:00
#SBATCH --output=%x-%j.out

srun windtunnel train charlm --yes
"""
SINFO = "gpu*|up|2-00:00:00|4|gpu:h100:8(S:0-1)\ncpu|up|infinite|10|(null)\nold|down|1:00:00|2|gpu:v100:4\n"


def on(name: str) -> Plant:
    """Be ready for this rig."""

    def plant(site: Site) -> None:
        site.on = name

    return plant


def eight_bits_on_a100(site: Site) -> None:
    site.on = "8xA100-80"
    site.set("stages.pretrain.precision=fp8")


def dollars_without_a_price(site: Site) -> None:
    site.on = "RTX3090"
    site.set("budget.dollars=10", "model.depth=8")


def batch_script(site: Site) -> None:
    """charlm started by Slurm."""
    charlm(site)
    site.program("sinfo", f"cat <<'END'\n{SINFO}END\n")
    site.program("sbatch", "exit 0\n")  # that of this machine, where there is one, knows other partitions
    site.sbatch = site.file("job.sbatch", SCRIPT)


def script(old: str, new: str) -> Plant:
    def plant(site: Site) -> None:
        assert old in SCRIPT
        site.sbatch = site.file("job.sbatch", SCRIPT.replace(old, new))

    return plant


def silent_slurm(site: Site) -> None:
    site.program("sinfo", "echo 'slurm_load_partitions: Unable to contact slurm controller' >&2; exit 1\n")


def trained(site: Site) -> None:
    """A run of this recipe with two checkpoints."""

    import torch

    from windtunnel.checkpoint import CheckpointStore, Facts, save_now
    from windtunnel.plan import make_plan
    from windtunnel.recipe import load_recipe
    from windtunnel.rig import parse_rig
    from windtunnel.run import RunFolder

    site.file("a.txt", "\n\n".join(f"Number {i} is {i * i}." for i in range(4000)))
    site.recipe = text_recipe([str(site.folder / "a.txt")])
    recipe = load_recipe(site.source())
    rig = parse_rig("cpu")
    plan = make_plan(recipe, rig)
    with RunFolder.create(site.folder / "runs", recipe, rig=dataclasses.asdict(rig), plan=plan.to_json()) as run:
        for step in (100, 200):
            parts = {"model": {"w": torch.full((1000,), float(step))}, "optimizer": {"momentum.w": torch.zeros(1000)}}
            spent = {"anchor": [0, 0.0], "horizon": 400, "spent": {"seconds": 60.0, "dollars": 0.0}}
            save_now(CheckpointStore(run.checkpoints_dir), parts, Facts(step, {"position": step, "budget": spent}))
        site.resume = run.path


def flip(names: str) -> Plant:
    """Change a byte in the checkpoints' files of this name."""

    def plant(site: Site) -> None:
        assert site.resume is not None
        for path in (site.resume / "checkpoints").glob(names):
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 0xFF
            path.write_bytes(content)

    return plant


def spent(site: Site) -> None:
    assert site.resume is not None
    (site.resume / "spent.json").write_text(json.dumps({"seconds": 7200.0, "dollars": 3.0}))
    site.set("budget.hours=1")


def another_run(site: Site) -> None:
    site.resume = site.folder / "runs" / "charlm-yesterday"


def changed_data(site: Site) -> None:
    import os
    import time

    os.utime(site.folder / "a.txt", (time.time() + 3600, time.time() + 3600))


def no_data(site: Site) -> None:
    (site.folder / "a.txt").unlink()


def half_a_manifest(site: Site) -> None:
    assert site.resume is not None
    for path in site.resume.glob("manifest*.json"):  # and the copy that it could be mended from
        path.write_text(path.read_text()[:100])


FAULTS = (
    *group("rig", "rig", charlm)(
        ("a GPU that does not exist", NAMES, "did you mean h100", on("8xH1000")),
        ("a negative price", NAMES, "is not a price", on("8xH100@$-3")),
        ("no GPUs", NAMES, "at least 1", on("0xH100")),
        ("a rig whose brackets do not close", NAMES, "not understood", on("4x(8xH100")),
    ),
    *group("rig", "plan", charlm)(("8-bit products on a GPU without them", NAMES, "fp8", eight_bits_on_a100)),
    *group("rig", "budget", charlm)(
        ("a budget in dollars without a price", "$1,000 guide: budget breakdown", "no known price", dollars_without_a_price)
    ),
    *group("rig", "launcher", batch_script)(
        ("an option that sbatch does not know", SLURM, "no option --tiem", script("--time", "--tiem")),
        ("more nodes than the rig has", SLURM, "asks for 2 nodes", script("--nodes=1", "--nodes=2")),
        ("fewer GPUs than the rig has", SLURM, "asks for 4 gpus", script("h100:8", "h100:4")),
        ("GPUs of another kind", SLURM, "of kind a100", script("h100:8", "a100:8")),
        ("no GPU asked for", SLURM, "asks for no gpu", script("#SBATCH --gpus-per-node=h100:8\n", "")),
        ("less time than the plan needs", SLURM, "less than the", script("02:00:00", "00:30:00")),
        ("more time than the partition allows", SLURM, "more than partition", script("02:00:00", "3-00:00:00")),
        ("a partition that is none", SLURM, "no partition gpus", script("--partition=gpu", "--partition=gpus")),
        ("a partition that is down", SLURM, "is down", script("--partition=gpu", "--partition=old")),
        ("a partition without GPUs", SLURM, "has no gpus", script("--partition=gpu", "--partition=cpu")),
        ("a folder for logs that is not there", SLURM, "no folder", script("%x-%j.out", "/gone/logs/%j.out")),
        ("a script that starts nothing", SLURM, "starts nothing", script("srun windtunnel train charlm --yes", "echo done")),
        (
            "a script that bash does not understand",
            SLURM,
            "bash does not understand",
            script("srun windtunnel", "if srun windtunnel"),
        ),
        ("another recipe than was checked", SLURM, "trains other", script("train charlm", "train other")),
        ("an environment that is not there", SLURM, "reads gone/activate", script("srun", "source gone/activate\nsrun")),
        ("Slurm does not answer", SLURM, "unable to contact", silent_slurm),
    ),
    *group("rig", "resumable", trained)(
        ("the run of another recipe", RESUME, "another recipe", sets("seed=7")),
        ("a run that is not there", RESUME, "does not exist", another_run),
        ("the newest checkpoint damaged", RESUME, "checksum differs", flip("step-00000200/model/__0_0.distcp")),
        ("every checkpoint damaged", RESUME, "training would begin again", flip("step-*/model/*.distcp")),
        ("a budget that is spent", "$1,000 guide: stops itself at its budget", "is spent", spent),
        ("a manifest broken off", RESUME, "manifest.json", half_a_manifest),
        ("data changed since", RESUME, "other data", changed_data),
        ("data gone since", RESUME, "does not exist", no_data),
    ),
)
