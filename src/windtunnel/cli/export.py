"""windtunnel export: a run's best weights alone, as safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import DEFAULT_ROOT, JsonOption, RootOption, RunArgument, find_run
from .output import print_json


def export(
    run: RunArgument,
    to: Annotated[Path | None, typer.Option("--to", help="The file to write; otherwise RUN/model.safetensors.")] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="fp32 or bf16.")] = "bf16",
    step: Annotated[int | None, typer.Option("--step", min=0, help="The checkpoint of this step; otherwise the best.")] = None,
    root: RootOption = DEFAULT_ROOT,
    json: JsonOption = False,
) -> None:
    """Write weights only: one safetensors file with the model's shape and tokenizer beside it."""
    folder = find_run(run, root)

    from windtunnel.recipe import UserError

    if dtype not in ("fp32", "bf16"):
        raise UserError(f"--dtype: expected fp32 or bf16 (got {dtype!r})")

    from windtunnel.evaluate import export_run

    path = export_run(folder, to or folder / "model.safetensors", dtype=dtype, step=step)
    if json:
        print_json({"path": str(path), "bytes": Path(path).stat().st_size})
    else:
        typer.echo(f"wrote {path} ({Path(path).stat().st_size / 1e6:,.1f} MB)")
