"""windtunnel serve: load the model, bind the port, answer until told to stop."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from windtunnel.recipe import UserError

GRACE_SECONDS = 15


def serve(
    run: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    step: int | None = None,
    device: str | None = None,
    supervision: int | None = None,
    insecure: bool = False,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve a run's best checkpoint, or an exported folder, until SIGTERM or SIGINT; requests under way are finished first.

    Args:
        port: 0 takes any free one.
        token: bearer token that clients must send; None: $WINDTUNNEL_TOKEN, if set.
        step: the checkpoint of this step in place of the best.
        supervision: supervision steps of a recursive model; None: as its recipe says.
        insecure: allow other addresses than loopback without a token.
        on_ready: told the URL once requests are answered; None prints it.

    Raises:
        UserError: the address is taken or not this machine's, it is open to others without a token, or there is no model.
    """
    token = token or os.environ.get("WINDTUNNEL_TOKEN") or None
    local = _is_loopback(host)
    if not local and token is None and not insecure:
        raise UserError(
            f"--host {host} lets other machines use the model, and there is no token",
            "set WINDTUNNEL_TOKEN (or --token), or stay on 127.0.0.1 and reach it with: ssh -L 8000:127.0.0.1:8000",
        )
    if token is not None and not (token.isascii() and token.isprintable() and token.strip() == token):
        raise UserError("the token must be printable ASCII without spaces around it")
    # Bound before the model is loaded: a port in use is known at once.
    with contextlib.closing(bind(host, port)) as listener:
        from .source import load_source

        source = load_source(run, step=step, device=device, supervision=supervision)
        url = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"

        from .app import create_app
        from .engine import Engine

        engine = Engine(source.model, source.tokenizer, slots=source.limits.slots, queue=source.limits.queue)
        app = create_app(
            engine,
            model=source.name,
            limits=source.limits,
            token=token,
            local_only=local and token is None,
            created=source.created,
        )
        announce = on_ready or (lambda address: print(f"serving {source.name} ({source.what}) on {address}", flush=True))
        try:
            _run(app, listener, lambda: announce(url))
        finally:
            engine.close()


def bind(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        UserError: the port is taken (names a free one), needs privileges, or the address is not this machine's.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UserError(f"--host {host}: {error.strerror or error}", "use 127.0.0.1") from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"port {port} on {host} is in use by another program", f"try --port {_free_port(host)}") from None
        if error.errno == errno.EACCES:
            raise UserError(f"port {port} needs administrator rights", "use a port above 1023") from None
        raise UserError(f"cannot listen on {host}:{port}: {error.strerror or error}", "use --host 127.0.0.1") from None
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


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _free_port(host: str) -> int:
    try:
        with contextlib.closing(bind(host, 0)) as probe:
            return int(probe.getsockname()[1])
    except UserError:
        return 0
