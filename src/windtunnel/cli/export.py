"""windtunnel export: a run's best weights alone, in Hugging Face's layout."""

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
    """Write weights only: safetensors, the model's shape, its tokenizer and checksums, enough to use it anywhere."""
    folder = find_run(run, root)

    from windtunnel.checkpoint import export_run

    made = export_run(folder, to or folder / "export", dtype=dtype.value, which="best" if step is None else step)
    for warning in made.warnings:
        typer.echo(f"warn: {warning}", err=True)
    if json:
        values = {"path": str(made.folder), "files": list(made.files), "step": made.step, "dtype": dtype.value}
        print_json({**values, "bytes": made.bytes, "warnings": list(made.warnings)})
    else:
        what = made.files[0] if len(made.files) == 1 else f"{len(made.files)} files of weights"
        typer.echo(f"wrote {made.folder}: {what} ({made.bytes / 1e6:,.1f} MB, {dtype.value}, step {made.step:,})")
