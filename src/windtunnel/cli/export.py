"""windtunnel export: a run's best weights alone, as safetensors."""

from __future__ import annotations

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

    from windtunnel.evaluate import export_run

    made = export_run(folder, to or folder / "export", dtype=dtype.value, step=step)
    size = made.file.stat().st_size
    if json:
        print_json({"path": str(made.file), "step": made.step, "dtype": dtype.value, "bytes": size})
    else:
        typer.echo(f"wrote {made.file} ({size / 1e6:,.1f} MB, {dtype.value}, step {made.step:,}), shape.json and tokenizer.json")
