"""windtunnel watch: follow a run that trains elsewhere, or look at a finished one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import DEFAULT_ROOT, JsonOption, RootOption, find_run


def watch(
    run: Annotated[Path | None, typer.Argument(metavar="[RUN]", help="A run's folder or name; otherwise the latest run.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one screen and exit.")] = False,
    interval: Annotated[float, typer.Option("--interval", min=0.2, help="Seconds between looks.")] = 2.0,
    web: Annotated[bool, typer.Option("--web", help="Serve a live page of all runs and of each to a browser.")] = False,
    host: Annotated[str, typer.Option("--host", help="With --web: address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="With --web; 0: any free one.")] = 8080,
    html: Annotated[bool, typer.Option("--html", help="Write the run's report.html and exit.")] = False,
    root: RootOption = DEFAULT_ROOT,
    json: JsonOption = False,
) -> None:
    """Show one screen: progress, loss, throughput, dollars, warnings. Reading disturbs nothing."""
    from windtunnel.run import newest_run
    from windtunnel.watch import watch_run

    if web:
        from windtunnel.watch import serve_board

        chosen = find_run(run, root) if run else None
        where = chosen.resolve().parent if chosen else root
        serve_board(
            where, run=chosen.resolve().name if chosen else None, host=host, port=port,
            on_ready=lambda url: typer.echo(f"runs under {where}/ at {url}\nCtrl-C ends the page, not the runs"),
        )  # fmt: skip
        return
    folder = find_run(run, root) if run else newest_run(root)
    if html:
        from windtunnel.watch import write_run_page

        typer.echo(f"report: {write_run_page(folder)}")
        return
    if json:
        from dataclasses import asdict

        from windtunnel.watch import read_snapshot

        from .output import print_json

        print_json(asdict(read_snapshot(folder)))
        return
    watch_run(folder, once=once, interval=interval)
