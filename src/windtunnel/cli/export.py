"""windtunnel export: a run's best weights alone, as safetensors."""

from __future__ import annotations

import shutil
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from .options import DEFAULT_ROOT, JsonOption, RootOption, RunArgument, find_run
from .output import print_json


class DType(StrEnum):
    """Number formats of exported weights."""

    fp32 = "fp32"
    bf16 = "bf16"
    fp16 = "fp16"


def export(
    run: RunArgument,
    to: Annotated[Path | None, typer.Option("--to", metavar="FOLDER", help="Where to write; otherwise RUN/export.")] = None,
    dtype: Annotated[DType, typer.Option("--dtype", help="Number format of the weights.")] = DType.bf16,
    step: Annotated[int | None, typer.Option("--step", min=0, help="The checkpoint of this step; otherwise the best.")] = None,
    root: RootOption = DEFAULT_ROOT,
    json: JsonOption = False,
) -> None:
    """Write weights only: model.safetensors, the model's shape and its tokenizer, enough to use it anywhere."""
    folder = find_run(run, root)

    from windtunnel.recipe import UserError
    from windtunnel.run import CheckpointStore, RunFolder

    opened = RunFolder.open(folder)
    store = CheckpointStore(opened.checkpoints_dir)
    checkpoint = store.best() if step is None else store.at(step)
    if checkpoint is None:
        raise UserError(f"run {folder} has no good checkpoint", "train it first, or name another run")

    from windtunnel.data import load_tokenizer
    from windtunnel.model import export_weights, recipe_shape

    shape = recipe_shape(opened.recipe, load_tokenizer(opened.tokenizer_path).vocab)
    target = to or folder / "export"
    try:
        path = export_weights(target, shape, checkpoint.weights(), dtype=dtype.value)
        shutil.copyfile(opened.tokenizer_path, target / "tokenizer.json")
    except OSError as error:
        raise UserError(f"export to {target} failed: {error.strerror or error}", "name another folder with --to") from None
    size = path.stat().st_size
    if json:
        print_json({"path": str(path), "step": checkpoint.step, "dtype": dtype.value, "bytes": size})
    else:
        typer.echo(f"wrote {path} ({size / 1e6:,.1f} MB, {dtype.value}, step {checkpoint.step:,}), shape.json and tokenizer.json")
