"""windtunnel verify --serve: verdicts over HTTP, for trainers on other machines."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from windtunnel.recipe import UserError

GRACE_SECONDS = 15
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
    """Answer POST /verify and GET /health until SIGTERM or SIGINT; verdicts under way are finished first.

    Args:
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
    token = token or os.environ.get("WINDTUNNEL_TOKEN") or None
    if token is None and not is_loopback(host):
        raise UserError(
            f"--host {host} lets other machines run code here, and there is no token",
            "set WINDTUNNEL_TOKEN (or --token), or stay on 127.0.0.1 and reach it with: ssh -L 8200:127.0.0.1:8200",
        )
    if token is not None and not (token.isascii() and token.isprintable() and token.strip() == token):
        raise UserError("the token must be printable ASCII without spaces around it")
    if tasks is not None and not tasks.is_dir():
        raise UserError(f"--tasks {tasks}: there is no such folder", "a folder of NAME.json and NAME.py files")
    workers = workers or len(os.sched_getaffinity(0))
    with contextlib.closing(_bind(host, port)) as listener:
        from .kinds import Verifiers
        from .pool import Pool
        from .service_app import create_app

        url = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
        announce = on_ready or (lambda address: print(f"verifying on {address}", flush=True))
        with Verifiers(workers, tasks) as verifiers, Pool(workers, waiting or 32 * workers) as pool:
            layers = verifiers.layers()
            if not layers.hardened and not unhardened:
                lacking = "; ".join((*layers.missing, *(layers.breaches or ())))
                raise UserError(
                    f"the sandbox is not hardened on this machine: {lacking}",
                    "see windtunnel verify layers, or pass --unhardened",
                )
            app = create_app(verifiers, pool, layers, token=token, local_only=token is None, max_body=MOST_BODY)
            _run(app, listener, lambda: announce(url))


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UserError(f"--host {host}: {error.strerror or error}", "use 127.0.0.1") from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise UserError(f"cannot listen on {host}:{port}: {error.strerror or error}", "--port 0 takes any free port") from None
    return listener


def _run(app: object, listener: socket.socket, ready: Callable[[], None]) -> None:
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                ready()

    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
        timeout_keep_alive=30,
        h11_max_incomplete_event_size=65_536,
        http="h11",
        ws="none",
    )
    with _quiet_signals(), contextlib.suppress(KeyboardInterrupt):
        Server(config).run(sockets=[listener])


@contextlib.contextmanager
def _quiet_signals() -> Iterator[None]:
    """uvicorn raises the signal that stopped it once more when all is closed; by then it has done its work."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
