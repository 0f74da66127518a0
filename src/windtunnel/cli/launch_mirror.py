"""The verbs on a run that is reached through its mirror alone: s3://BUCKET/FOLDER/RUN, wherever its machine is."""

from __future__ import annotations

import getpass
import re
import socket
import tempfile
import time
from pathlib import Path

import typer

from windtunnel.recipe import UserError

from .output import print_json, say

# Every look is a few requests, which stores bill.
LOOK_SECONDS = 10.0


def url_of(run: object) -> str | None:
    """Return the address of a mirror, also of one that has been read as a path; None: it is none."""
    # One slash or more: pathlib, which reads the argument first, makes s3:/bucket of s3://bucket.
    found = re.fullmatch(r"(s3|gs|az|sftp|file):/+(.+)", str(run))
    if found is None:
        return None
    return f"{found[1]}://{'/' if found[1] == 'file' else ''}{found[2]}"


def show_status(url: str, *, as_json: bool) -> None:
    """List the runs below a mirror, as `launch --status` does those of a machine."""
    from windtunnel.mirror import is_trained, look, runs_in

    from .launch_ssh import print_status, status_of

    found = []
    with tempfile.TemporaryDirectory(prefix="wt-look-") as place:
        for name in runs_in(url):
            each = f"{url.rstrip('/')}/{name}" if name else url
            item = status_of(look(each, Path(place)))
            # What the mirror has is the last that was sent: whether anybody still trains is only seen by waiting for news.
            if item["status"] != "done" and (item["lost"] or item["status"] == "running"):
                say(f"looking whether {each} is still trained, for up to 20 s")
                alive = is_trained(each)
                item |= {"status": "running" if alive else "failed", "lost": not alive}
                item["reason"] = None if alive else "nobody trains it any more: its machine is gone"
            found.append(item | {"path": each})
    if as_json:
        print_json(found)
    else:
        print_status(url, found)


def print_log(url: str, *, follow: bool, lines: int | None) -> None:
    """Print a run's log as the mirror has it; with follow what is added, until nobody trains it any more."""
    from windtunnel.mirror import is_trained, read_log, run_url

    url = run_url(url)
    with tempfile.TemporaryDirectory(prefix="wt-log-") as place:
        _, text = read_log(url, Path(place))
        shown = len(text)
        kept = text.splitlines(keepends=True)
        typer.echo("".join(kept if lines is None else kept[len(kept) - lines :] if lines else []), nl=False)
        try:
            while follow and is_trained(url):
                time.sleep(LOOK_SECONDS)
                _, text = read_log(url, Path(place))
                # A log that has become shorter was rotated: all of it is new.
                typer.echo(text[shown:] if len(text) >= shown else text, nl=False)
                shown = len(text)
        except KeyboardInterrupt:
            return


def stop_mirrored(url: str, *, seconds: float, as_json: bool) -> int:
    """Ask whoever trains a run to save and end, through the store, and wait; returns the exit code."""
    from windtunnel.mirror import ask_to_stop, look, run_url

    from .launch_ssh import status_of

    url = run_url(url)
    who = f"{getpass.getuser()} on {socket.gethostname()}"
    ended = ask_to_stop(url, who, say, seconds=seconds)
    if not ended:
        raise UserError(f"{url}: it has not ended after {seconds:.0f} s", "wait longer: --wait SECONDS; or end its machine")
    with tempfile.TemporaryDirectory(prefix="wt-look-") as place:
        item = status_of(look(url, Path(place)))
    if as_json:
        print_json({"run": url, "status": item["status"], "reason": item["reason"], "step": item["step"]})
    else:
        step = "" if item["step"] is None else f" after {item['step']:,} steps"
        typer.echo(f"{url}: {item['status']}{step}" + (f": {item['reason']}" if item["reason"] else ""))
        typer.echo(f"  home:  windtunnel fetch-run {url}")
    return 1 if item["status"] in ("running", "failed") else 0
