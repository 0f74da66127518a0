"""windtunnel export: a run's best weights alone, in Hugging Face's layout, adapters merged."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from .options import DEFAULT_ROOT, BaseOption, JsonOption, RootOption, RunArgument, StepOption, find_run
from .output import print_json, say

MUCH_ROUNDED = 0.1
"""Of an adapter's change, from which on it is said."""


def export(
    run: RunArgument,
    to: Annotated[Path | None, typer.Option("--to", metavar="FOLDER", help="Where to write; otherwise RUN/export.")] = None,
    dtype: Annotated[
        Literal["fp32", "bf16", "fp16"] | None,
        typer.Option("--dtype", help="Number format of the weights; otherwise bf16, of an adapter alone fp32."),
    ] = None,
    step: StepOption = None,
    adapter: Annotated[bool, typer.Option("--adapter", help="The adapter alone, as peft loads it, without its model.")] = False,
    base: BaseOption = None,
    root: RootOption = DEFAULT_ROOT,
    json: JsonOption = False,
) -> None:
    """Write weights only: safetensors, the model's shape, its tokenizer and checksums, enough to use it anywhere.

    Of a fine-tuned Hugging Face model that is a folder which transformers and vLLM load. Exits 1 when the best checkpoint is
    damaged, and the next best was written.
    """
    folder = find_run(run, root)

    from windtunnel.generate import export_model

    made = export_model(
        folder, to or folder / "export", dtype=dtype, which="best" if step is None else step,
        adapter=adapter, base=base,
    )  # fmt: skip
    for warning in made.warnings:
        say(f"warn: {warning}")
    if json:
        values = {"path": str(made.folder), "files": list(made.files), "step": made.step, "dtype": made.dtype}
        print_json({**values, "bytes": made.bytes, "warnings": list(made.warnings), "rounding": made.rounding})
    else:
        what = made.files[0] if len(made.files) == 1 else f"{len(made.files)} files of weights"
        typer.echo(f"wrote {made.folder}: {what} ({made.bytes / 1e6:,.1f} MB, {made.dtype}, step {made.step:,})")
        if made.rounding is not None and made.rounding > MUCH_ROUNDED:
            lost = f"rounding to {made.dtype} is off by {made.rounding:.0%} of what the adapter changes"
            typer.echo(f"note: {lost}: --dtype fp32, or --adapter, keeps all of it")
    # The next best was written in the place of a damaged checkpoint: usable, but not what was asked for.
    if made.warnings:
        raise typer.Exit(1)
