"""windtunnel verify --serve: verdicts over HTTP, for trainers on other machines."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from windtunnel.recipe import UserError
from windtunnel.web import Access, listening, url_of

MOST_BODY = 8 << 20


def serve(
    *,
    host: str = "127.0.0.1",
    port: int = 8200,
    token: str | None = None,
    workers: int | None = None,
    waiting: int | None = None,
    tasks: Path | None = None,
    unhardened: bool = False,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Answer POST /verify and GET /health until SIGTERM or SIGINT.

    Verdicts under way are finished first, for 15 s; then the workers are ended, and those who still wait are told that nothing is
    known.

    Args:
        host: the address to listen on.
        port: 0 takes any free one.
        token: bearer token that clients must send; needed beyond loopback. None: $WINDTUNNEL_TOKEN, if set.
        workers: answers judged at once; None: as many as there are cores.
        waiting: answers that may wait; None: 32 for each worker. Beyond that the answer is 429.
        tasks: a folder of task files that requests may name.
        unhardened: go on where the kernel gives too little to call the sandbox hardened.
        on_ready: told the URL once requests are answered; None prints it.

    Raises:
        UserError: the address is taken or not this machine's, it is open to others without a token, the folder is missing, or
            the sandbox is not hardened.
    """
    access = Access.of(host, token, what="run code here", port=8200)
    if tasks is not None and not tasks.is_dir():
        raise UserError(f"--tasks {tasks}: there is no such folder", "a folder of NAME.json and NAME.py files")
    workers = workers or len(os.sched_getaffinity(0))
    with contextlib.closing(listening(host, port)) as listener:
        # Only once the address is known to be free: these imports take a second.
        from .kinds import Verifiers
        from .pool import Pool
        from .service_app import create_app

        announce = on_ready or (lambda address: print(f"verifying on {address}", flush=True))
        with Verifiers(workers, tasks) as verifiers, Pool(workers, waiting or 32 * workers) as pool:
            layers = verifiers.layers()
            if not layers.hardened and not unhardened:
                lacking = "; ".join((*layers.missing, *(layers.breaches or ())))
                raise UserError(
                    f"the sandbox is not hardened on this machine: {lacking}",
                    "see windtunnel verify layers, or pass --unhardened",
                )
            app = create_app(verifiers, pool, layers, access=access, max_body=MOST_BODY)

            # In this order: what waits is told so before the workers that it waits for are gone.
            def over() -> None:
                pool.stop()
                verifiers.stop()

            from windtunnel.web import serve_app

            serve_app(app, listener, lambda: announce(url_of(host, listener)), over=over)
