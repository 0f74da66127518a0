"""windtunnel compare: several runs beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import DEFAULT_ROOT, JsonOption, RootOption, find_run
from .output import print_json, print_remarks, print_table

if TYPE_CHECKING:
    from windtunnel.watch import RunResult

LONGEST = 60
WRITTEN = {None: "null", True: "true", False: "false"}


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, or their names under --root.")],
    plot: Annotated[
        list[Path] | None,
        typer.Option(
            "--plot", metavar="FILE", help="Draw losses over tokens, hours, dollars: .png, .svg; .html: all curves (repeatable)."
        ),
    ] = None,
    root: RootOption = DEFAULT_ROOT,
    json: JsonOption = False,
) -> None:
    """Show how the recipes of runs differ, what each reached and spent, best checkpoints, and losses on one picture."""
    from windtunnel.watch import different_keys, draw_comparison, read_result

    results = [read_result(find_run(run, root)) for run in runs]
    differ = different_keys(results)
    for path in plot or []:
        draw_comparison(results, path)
    if json:
        print_json({"runs": [asdict(result) | {"name": result.name} for result in results], "differences": dict(differ)})
        return
    # Runs' names are long; numbers head the columns, and the first table says whose they are.
    short = [str(number) for number in range(1, len(results) + 1)]
    _tables(results, short)
    if differ:
        print_table("differences", ["key", *short], [[key, *map(_value, values)] for key, values in differ])
    else:
        print_remarks([("note", "their recipes are the same")])
    best = [
        [number, str(score.step), f"{score.loss:.4f}", "kept" if score.kept else "not kept"]
        for number, result in zip(short, results, strict=True)
        for score in result.best
    ]
    print_table("best validations", ["run", "step", "loss", "checkpoint"], best)
    if len({result.data for result in results}) > 1:
        print_remarks([("warning", "they were trained on different data: their losses are not those of the same text")])
    for path in plot or []:
        typer.echo(f"wrote {path}")


def _tables(results: Sequence[RunResult], short: Sequence[str]) -> None:
    """Print what the runs reached, and what they took beside what was planned."""
    from windtunnel.plan import count_text, hours_text

    def text(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    def share(part: float | None, whole: float | None) -> str:
        return "-" if not part or not whole else f"{part / whole:.0%}"

    reached = [
        [number, r.name, r.status, f"{r.steps:,}", count_text(r.tokens), text(r.loss, ".4f"), text(r.bits_per_byte, ".4f")]
        for number, r in zip(short, results, strict=True)
    ]
    columns = ["", "run", "status", "steps", "tokens", "loss", "bits/byte"]
    print_table("what they reached (best validation)", columns, reached, whole=("", "run", "status", "loss"))
    took = [
        [
            number, hours_text(r.hours), "-" if r.planned_hours is None else hours_text(r.planned_hours), text(r.dollars, ",.2f"),
            text(r.planned_dollars, ",.2f"), text(r.tokens_per_second, ",.0f"),
            share(r.tokens_per_second, r.planned_tokens_per_second),
        ]
        for number, r in zip(short, results, strict=True)
    ]  # fmt: skip
    print_table("what they took", ["", "time", "planned", "$", "planned $", "tokens/s", "of planned"], took)


def _value(value: Any) -> str:
    """Write a key's value as a recipe does, in one line."""
    text = WRITTEN[value] if value is None or isinstance(value, bool) else str(value)
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
