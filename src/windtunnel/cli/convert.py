"""windtunnel convert: weights in fp8 or fp4 to bf16, and bf16 to fp8."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from windtunnel.recipe import GateFailed, UserError, find_model

from .options import JsonOption
from .output import print_json, say

# The whole report names every tensor, of which large models have a hundred thousand; on the screen go these.
BRIEF = ("tensors_by_kind", "not_finite", "left_out", "error")


def convert(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="A model's folder, or its name if it was fetched.")],
    to: Annotated[Path, typer.Argument(metavar="DST", help="The folder to write; it gets its name when it is whole.")],
    format: Annotated[Literal["bf16", "fp8"], typer.Option("--to", help="What the weights become.")] = "bf16",
    only_layers: Annotated[
        str | None, typer.Option("--only-layers", metavar="0-1", help="Only these blocks, renumbered.")
    ] = None,
    mtp: Annotated[
        Literal["keep", "drop"], typer.Option("--mtp", help="Blocks that predict further tokens (DeepSeek's last).")
    ] = "keep",
    device: Annotated[str, typer.Option("--device", help="cpu, cuda (all GPUs) or cuda:0; the bits are the same.")] = "cpu",
    workers: Annotated[int | None, typer.Option("--workers", min=1, max=256, help="Threads; otherwise one a core.")] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare samples with the plain formula afterwards; weights must be finite.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Convert a model's weights from fp8 or fp4 with block scales to bf16, exactly, or from bf16 to fp8.

    Nothing is written before the whole model was looked through. The same command goes on with a conversion that was interrupted.
    """
    from windtunnel.convert import REPORT, Choice, convert_folder, parse_layers, verify_folder

    if verify and format == "fp8":
        raise UserError("--verify compares with a formula that is exact, and fp8 is not", "read the error that --to fp8 states")
    if source.is_file() and source.name != "config.json":
        raise UserError(f"{source} is a file; expected a model's folder", f"windtunnel convert {source.parent} {to}")
    source = find_model(str(source)) or source
    layers = None if only_layers is None else parse_layers(only_layers)
    choice = Choice(format, layers, mtp)
    try:
        made = convert_folder(source, to, choice, workers=workers, device=device, progress=_reporter())
    except KeyboardInterrupt:
        say("stopped: the same command goes on with the files that are finished")
        raise
    verified = verify_folder(source, to, choice) if verify else None
    report = made.report
    for name in report["not_finite"][:5]:
        facts = report["tensors"][name]
        say(f"warn: {name} has {facts['nan']:,} NaN and {facts['inf']:,} infinite values")
    if json:
        values: dict[str, Any] = {"path": str(made.folder), "bytes": made.bytes, "shards": made.shards, "kept": made.kept}
        brief: dict[str, Any] = {key: report[key] for key in BRIEF if key in report}
        brief["verified"] = asdict(verified) if verified is not None else None
        print_json({**values, **brief, "seconds": made.seconds, "reused": made.reused, "report": str(made.folder / REPORT)})
    else:
        typer.echo(_summary(made))
        if verified is not None:
            samples = f"{verified.tensors:,} tensors, {verified.weights:,} weights of them"
            typer.echo(f"verified {samples}: all are as the formula says")
    if verify and report["not_finite"]:
        raise GateFailed(
            f"--verify: {len(report['not_finite']):,} tensors have NaN or infinite values, such as {report['not_finite'][0]}; "
            f"they were converted as they are, and {made.folder / REPORT} lists all of them under not_finite",
            f"windtunnel fetch {source} --verify compares the model's files with the hashes they should have",
        )


def _summary(made: Any) -> str:
    kinds, report = made.report["tensors_by_kind"], made.report
    what = f"{kinds['decode'] or kinds['encode']:,} tensors converted, {kinds['copy']:,} copied"
    lines = [f"{'kept' if made.reused else 'wrote'} {made.folder}: {made.bytes / 1e9:,.2f} GB in {made.shards} files, {what}"]
    if made.kept and not made.reused:
        lines.append(f"{made.kept} files were there from before, and are as they were")
    if "error" in report:
        mean, most = report["error"]["mean"], report["error"]["max_of_block"]
        lines.append(f"error: {mean:.2%} of the weights' magnitude on average, at most {most:.2%} of a block's largest")
    if report["left_out"]:
        lines.append(f"left out: {len(report['left_out']):,} tensors, such as {report['left_out'][0]}")
    return "\n".join(lines)


def _reporter(every: float = 0.5) -> Callable[[int, int], None]:
    """Return what prints progress on standard error: one line that changes on a terminal, elsewhere one every half minute."""
    terminal = sys.stderr.isatty()
    begun = last = time.monotonic()
    first: int | None = None

    def report(done: int, total: int) -> None:
        nonlocal last, first
        now = time.monotonic()
        # What was there from an interrupted conversion is no work of this one, and would make the rate a lie.
        first = done if first is None else first
        if now - last < (every if terminal else 30.0) and not (terminal and done == total):
            return
        last = now
        rate = (done - first) / max(now - begun, 1e-9)
        left = f", {_duration((total - done) / rate)} left" if rate > 0 and done < total else ""
        # Padded to a fixed width, so that a shorter line leaves nothing of the one before it.
        line = f"{done / 1e9:,.1f} of {total / 1e9:,.1f} GB written ({done / total:.0%}), {rate / 1e9:.2f} GB/s{left}"
        end = "\n" if not terminal or done == total else ""
        print(f"\r{line:<78}" if terminal else line, end=end, file=sys.stderr, flush=True)

    return report


def _duration(seconds: float) -> str:
    minutes = int(seconds + 30) // 60
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
