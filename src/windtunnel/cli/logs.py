"""windtunnel logs: what a run's processes printed."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from .launch_mirror import print_log, url_of
from .launch_ssh import attach, is_remote
from .options import DEFAULT_ROOT, RootOption, find_run
from .output import say

RUN = "run"
"""What --which calls the log of the run itself."""


def logs(
    run: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="A run's folder, name or address; otherwise the latest run.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines until the run ends.")] = False,
    lines: Annotated[int | None, typer.Option("--lines", "-n", min=0, help="Only the last so many lines, of each log.")] = None,
    which: Annotated[
        str,
        typer.Option(
            "--which", "-w", metavar="NAME",
            help="Another log than the run's own: engine, judges, the name of one (engine-0-1), or all.",
        ),
    ] = RUN,
    listed: Annotated[bool, typer.Option("--list", "-l", help="The logs that there are, with sizes.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --list: as JSON.")] = False,
    root: RootOption = DEFAULT_ROOT,
) -> None:  # fmt: skip
    """Print what a run's processes printed.

    Of the run itself all files, also the rotated ones, oldest first; with --which what engines and judges printed.
    """
    if is_remote(run):
        few = [] if lines is None else ["--lines", str(lines)]
        more = [*(["-f"] if follow else []), *(["--list"] if listed else []), *(["--json"] if as_json else [])]
        raise typer.Exit(attach(str(run), "logs", *more, *few, *([] if which == RUN else ["--which", which])))

    from windtunnel.recipe import UserError

    if run is not None and (url := url_of(run)) is not None:
        if listed or which != RUN:
            raise UserError("of a mirror only the run's own log is read", f"all of them: windtunnel fetch-run {url}")
        print_log(url, follow=follow, lines=lines)
        return

    from windtunnel.run import LOG, LOGS, log_files, newest_run, part_logs
    from windtunnel.watch import follow_logs, last_lines

    folder = find_run(run, root) if run else newest_run(root)
    if listed:
        _list(folder, as_json)
        return

    def wanted() -> dict[Path, str]:
        """Return the logs that are asked for and there, each with what stands before its lines."""
        parts = [path for path in part_logs(folder) if which == "all" or path.stem == which or path.stem.startswith(f"{which}-")]
        own = [folder / LOG] if which in (RUN, "all") else []
        one = not own and parts == [folder / LOGS / f"{which}.log"]
        return dict.fromkeys(own, "") | {path: "" if one else f"[{path.stem}] " for path in parts}

    files = wanted()
    there = log_files(folder)
    if which in (RUN, "all") and not there and not follow:
        raise UserError(f"run {folder} has no log: it was not started with `windtunnel train`", f"windtunnel watch {folder}")
    if not files and not follow:
        names = ", ".join([RUN, *(path.stem for path in part_logs(folder)), "all"])
        raise UserError(f"--which {which}: run {folder} has no such log", f"one of: {names}")
    # Sizes before the first line is printed: what is written meanwhile is neither lost nor shown twice by --follow.
    known = {path: path.stat().st_size for path in files if path.is_file()}
    for path, before in files.items():
        sys.stdout.writelines(last_lines(there if path == folder / LOG else [path], before, lines, known))
    if follow:
        sys.stdout.flush()
        try:
            follow_logs(folder, wanted, sys.stdout, known)
        except KeyboardInterrupt:
            return
    elif which == RUN and part_logs(folder):
        others = ", ".join(path.stem for path in part_logs(folder))
        say(f"besides: {others} (windtunnel logs {folder} --which NAME)")


def _list(folder: Path, as_json: bool) -> None:
    """Print the logs that a run has: name, file, bytes, and when the last line came."""
    from windtunnel.run import LOG, log_files, part_logs

    # Newest first: the file that is still written is the one most looked for.
    found = [(RUN if path.name == LOG else path.name, path) for path in log_files(folder)[::-1]]
    found += [(path.stem, path) for path in part_logs(folder)]
    rows = [{"name": name, "file": str(path), "bytes": path.stat().st_size, "time": path.stat().st_mtime} for name, path in found]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    for row in rows:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(str(row["time"]))))
        typer.echo(f"{row['name']:<20} {row['bytes']:>12,} bytes  {at}  {row['file']}")
