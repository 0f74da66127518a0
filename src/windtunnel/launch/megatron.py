"""Render a job that Megatron-Bridge runs: a plan's layout, what each rank holds, packed data, a driver and a batch script."""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.convert import Ranks, layers_of_stages, megatron_parameters, megatron_problem, rank_shapes
from windtunnel.files import write_atomic
from windtunnel.model import hf_shape
from windtunnel.plan import Plan
from windtunnel.recipe import MEGATRON, HuggingFaceModel, Recipe, UserError, dump_recipe, find_model
from windtunnel.rig import Rig

if TYPE_CHECKING:
    from windtunnel.data import ConversationFile, PreparedData

DRIVER = "megatron_driver.py"
BRIDGE = "megatron-bridge>=0.6,<0.7"
ROWS_AT_ONCE = 512
AROUND = 60
"""Minutes asked for beside the plan's and its stated error: check, import and export."""


@dataclass(frozen=True)
class MegatronJob:
    """A rendered job.

    Attributes:
        folder: what was written. files: in it. script: the batch script.
        stages: parameters and bytes of bf16 weights that a rank of each pipeline stage holds.
        sequences: packed sequences of each split.
    """

    folder: Path
    files: tuple[str, ...]
    script: str
    stages: tuple[tuple[int, int], ...]
    sequences: dict[str, int]
    layout: str


def render_job(
    recipe: Recipe, plan: Plan, rig: Rig, to: Path, *, model: str | None = None, called: str | None = None
) -> MegatronJob:
    """Write the folder of a job for a plan that Megatron-Bridge runs.

    Args:
        recipe: resolved for the one stage that fine-tunes all weights.
        plan: of the recipe on the rig.
        rig: gives nodes and GPUs.
        to: the folder; it must not be there. It gets its name when it is whole.
        model: where the ranks find the model's files; None: where they are found here.
        called: what the command called the recipe; None: its name.

    Raises:
        UserError: the plan is no such plan, its ranks cannot share the model, or the folder cannot be written.
    """
    config, source = _renderable(recipe, plan, model, called)
    ranks = Ranks(plan.layout.tensor, plan.layout.expert, plan.layout.pipeline)
    problem = megatron_problem(config, ranks)
    if problem is not None:
        raise UserError(problem, "another size under `layout`, or null for the plan to search")
    if to.exists():
        raise UserError(f"--to {to} is there already", "name a folder that is not")
    parameters = megatron_parameters(config)
    stages = [rank_shapes(parameters, ranks, stage) for stage in range(ranks.pipeline)]
    from windtunnel.data import prepare

    prepared = prepare(recipe)
    # Under a name of its own until it is whole: a job that lacks a file would fail on rented nodes.
    partial = to.with_name(f"{to.name}.partial-{os.getpid()}")
    try:
        (partial / "data").mkdir(parents=True)
        sequences = _write_data(prepared, plan.layout.sequence, partial / "data")
        job = _job(recipe, plan, config, source, sequences)
        write_atomic(partial / "job.json", json.dumps(job, indent=1) + "\n", durable=False)
        write_atomic(partial / "parameters.json", json.dumps(stages) + "\n", durable=False)
        write_atomic(partial / "recipe.yaml", dump_recipe(recipe), durable=False)
        write_atomic(partial / "job.sbatch", _script(recipe, plan, rig), durable=False)
        shutil.copyfile(Path(__file__).with_name(DRIVER), partial / DRIVER)
        partial.rename(to)
    except OSError as error:
        raise UserError(f"--to {to} cannot be written: {error.strerror or error}", "name a folder on a disk with room") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    held = tuple((len(stage), 2 * sum(math.prod(shape) for shape in stage.values())) for stage in stages)
    files = tuple(sorted(str(path.relative_to(to)) for path in to.rglob("*") if path.is_file()))
    return MegatronJob(to, files, "job.sbatch", held, sequences, plan.layout.describe())


def _renderable(recipe: Recipe, plan: Plan, model: str | None, called: str | None) -> tuple[dict[str, Any], str]:
    """Return the model's config and where its files are."""
    if not isinstance(recipe.model, HuggingFaceModel) or recipe.sft is None:
        raise UserError(
            f"recipe {recipe.name}: only fine-tuning is handed to Megatron-Bridge", "a recipe with a stage of kind sft"
        )
    if recipe.model.adapter is not None:
        raise UserError(
            f"recipe {recipe.name}: all weights are trained there, and model.adapter is given", "--set model.adapter=null"
        )
    if plan.layout.engine != MEGATRON:
        raise UserError(
            f"recipe {recipe.name} on {plan.rig}: the plan is for the package's own engine, which needs no such job",
            f"windtunnel train {shlex.quote(called or recipe.name)}; or a split of your own: --set layout.tensor=2",
        )
    if plan.layout.precision == "fp8":
        raise UserError(
            f"stages.{recipe.sft.name}.precision: fp8: the job computes in bf16", f"--set stages.{recipe.sft.name}.precision=auto"
        )
    if plan.layout.offload != "none":
        raise UserError("layout.offload: optimizer states in CPU memory are not rendered", "--set layout.offload=none")
    found = find_model(recipe.model.config)
    return hf_shape(recipe.model.config).raw, model or (str(found.resolve()) if found is not None else recipe.model.config)


def _job(recipe: Recipe, plan: Plan, config: dict[str, Any], source: str, sequences: dict[str, int]) -> dict[str, Any]:
    """Return what the driver reads."""
    stage, layout = recipe.sft, plan.layout
    assert stage is not None
    every = stage.validate_every.steps or max(1, round((stage.validate_every.seconds or 0.0) / plan.step_seconds))
    save = recipe.checkpoints.every
    # As many whole batches as there are: the last one is not filled up.
    most = max(1, min(sequences["validation"], stage.validation_tokens // layout.sequence) // layout.batch_sequences)
    peak = plan.hyper["learning_rate"]
    parts = layers_of_stages(int(config["num_hidden_layers"]), layout.pipeline)
    kinds = [["decoder"] * len(part) for part in parts]
    # Megatron counts embedding and loss as layers of the first and the last stage.
    kinds[0] = ["embedding", *kinds[0]]
    kinds[-1] = [*kinds[-1], "loss"]
    return {
        "model": source,
        "needs": BRIDGE,
        "sequence": layout.sequence,
        "batch_sequences": layout.batch_sequences,
        "steps": plan.steps,
        "learning_rate": {
            "peak": peak,
            "final": peak * stage.schedule.final,
            "warmup_steps": min(stage.schedule.warmup_steps, plan.steps - 1),
            "decay_steps": max(1, round(stage.schedule.warmdown * plan.steps)),
        },
        "validate_every": every,
        "validation_batches": most,
        "save_every": save.steps or max(1, round((save.seconds or 0.0) / plan.step_seconds)),
        "seed": recipe.seed,
        "any_shapes": False,
        "layout": {
            "ranks": layout.ranks,
            "data": layout.data,
            "tensor": layout.tensor,
            "expert": layout.expert,
            "pipeline": layout.pipeline,
            "stages": kinds,
            "shard": layout.shard != "none",
            "recompute": layout.recompute == "block",
        },
    }


def _write_data(prepared: PreparedData, sequence: int, folder: Path) -> dict[str, int]:
    """Write both splits packed as training packs them: the same tokens, of which the same are learned.

    The columns are Megatron-Bridge's: input_ids, seq_start_id (where each sample begins), and loss_mask, which says of each
    position whether the token after it is learned.

    Returns:
        Sequences of each split.
    """
    from windtunnel.data import conversation_files

    if len(conversation_files(prepared)) != 1:
        raise UserError("data.corpus.kind: only one corpus of conversations or theses is written for it", "no mixture, no text")
    splits = (("training", conversation_files(prepared)[0]), ("validation", prepared.validation))
    return {name: _write_packs(file, sequence, folder / f"{name}.idx.parquet") for name, file in splits}  # type: ignore[arg-type]


def _write_packs(file: ConversationFile, sequence: int, path: Path) -> int:
    import pyarrow
    from pyarrow import parquet

    ids, flags = pyarrow.list_(pyarrow.int32()), pyarrow.list_(pyarrow.int8())
    schema = pyarrow.schema({"input_ids": ids, "loss_mask": flags, "seq_start_id": ids})
    packing = file.packing(sequence)
    with parquet.ParquetWriter(path, schema) as writer:
        # A few rows at a time: packed data may be larger than memory.
        for first in range(0, len(packing), ROWS_AT_ONCE):
            rows = []
            for pack in range(first, min(first + ROWS_AT_ONCE, len(packing))):
                begin, end = int(packing.starts[pack]), int(packing.starts[pack + 1])
                row: dict[str, list[int]] = {"input_ids": [], "loss_mask": [], "seq_start_id": []}
                for number, length in zip(packing.order[begin:end], packing.lengths[begin:end], strict=True):
                    tokens, learned = (each[: int(length)] for each in file.sample(int(number)))
                    row["seq_start_id"].append(len(row["input_ids"]))
                    row["input_ids"] += tokens.tolist()
                    # Megatron's mask says of a position whether the token after it is learned; ours, whether this one is.
                    row["loss_mask"] += [*learned[1:].astype(int).tolist(), 0]
                rows.append(row)
            writer.write_table(pyarrow.Table.from_pylist(rows, schema))
    return len(packing)


def _script(recipe: Recipe, plan: Plan, rig: Rig) -> str:
    """Return the batch script: one torchrun a node, and the steps one after the other."""
    # With the plan's own error: a job that is cut off an hour before its end costs more than a longer request.
    minutes = AROUND + math.ceil(60 * plan.hours * (1 + plan.error.get("time", 0.0)))
    return f"""#!/bin/bash
#SBATCH --job-name={recipe.name}
#SBATCH --nodes={rig.nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={rig.gpus_per_node}
#SBATCH --exclusive
#SBATCH --time={minutes}
#SBATCH --output=%x-%j.log
# Needs Python 3.12 and {BRIDGE}, as NVIDIA's NeMo container has.
# Submit from this folder, on a disk that all nodes see. The same command goes on with what was interrupted.
# Without Slurm, on one node: torchrun --nproc-per-node {rig.gpus_per_node} {DRIVER} check (then import, train, export).
set -euo pipefail
cd "${{SLURM_SUBMIT_DIR:-.}}"
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
run() {{
  srun torchrun --nnodes {rig.nodes} --nproc-per-node {rig.gpus_per_node} --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID-$1" \\
    --rdzv-endpoint "$head:29500" {DRIVER} "$1"
}}
run check
if [ ! -e imported.done ]; then run import && touch imported.done; fi
run train
run export
"""
