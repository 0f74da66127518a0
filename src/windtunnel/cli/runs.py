"""windtunnel runs: what has been run."""

from __future__ import annotations

import dataclasses
from typing import Any

import typer

from .options import DEFAULT_ROOT, JsonOption, RootOption
from .output import print_json, print_table


def runs(root: RootOption = DEFAULT_ROOT, json: JsonOption = False) -> None:
    """List the runs under --root, the newest first. Damaged ones are listed as such."""
    from windtunnel.run import list_runs

    summaries: list[dict[str, Any]] = [
        dataclasses.asdict(item) if dataclasses.is_dataclass(item) and not isinstance(item, type) else dict(item)
        for item in list_runs(root)
    ]
    if json:
        print_json(summaries)
        return
    if not summaries:
        typer.echo(f"no runs under {root}/; start one with: windtunnel train charlm")
        return
    columns = [key for key in summaries[0] if any(s.get(key) not in (None, "") for s in summaries)]
    print_table(
        f"runs under {root}/", [c.replace("_", " ") for c in columns], [[_text(s.get(c)) for c in columns] for s in summaries]
    )


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
