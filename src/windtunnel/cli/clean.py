"""windtunnel clean: what the cache of prepared data holds, and room again."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from .options import JsonOption
from .output import print_json, print_remarks, print_table

DAY = 86_400.0
MEGABYTE = 1e6


def clean(
    older: Annotated[
        float | None,
        typer.Option("--older", min=0.0, metavar="DAYS", help="Remove what was not asked for in so many days; 0: everything."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """List prepared data in the cache, with size and age; with --older remove it. It is made again when it is needed."""
    from windtunnel.data import cache_entries, cache_root, remove_entry, remove_locks

    root, now = cache_root(), time.time()
    entries = cache_entries(root)
    old = [entry for entry in entries if older is not None and now - entry.used >= older * DAY]
    removed = [entry for entry in old if remove_entry(entry)]
    if older is not None:
        # Lock files are empty and many; their data are gone, and nobody else would remove them.
        remove_locks(root, older * DAY)
    freed, whole = sum(entry.size for entry in removed), sum(entry.size for entry in entries)
    if json:
        listed = [
            {"path": str(e.path), "bytes": e.size, "days": (now - e.used) / DAY, "busy": e.busy, "removed": e in removed}
            for e in entries
        ]
        print_json({"cache": str(root), "bytes": whole - freed, "freed": freed, "entries": listed})
        return
    rows = [
        [e.path.name, f"{e.size / MEGABYTE:,.1f}", f"{(now - e.used) / DAY:,.1f}", _state(e in removed, e.busy)] for e in entries
    ]
    if rows:
        print_table(f"prepared data in {root}", ["data", "MB", "days ago", ""], rows, whole=("MB", "days ago"))
    said = [("cache", f"{(whole - freed) / MEGABYTE:,.1f} MB in {len(entries) - len(removed)} prepared sets")]
    if older is not None:
        said.append(("freed", f"{freed / MEGABYTE:,.1f} MB in {len(removed)}"))
    elif entries:
        said.append(("note", "remove what a month did not ask for: windtunnel clean --older 30; everything: --older 0"))
    print_remarks(said)


def _state(removed: bool, busy: bool) -> str:
    return "removed" if removed else "being written" if busy else ""
