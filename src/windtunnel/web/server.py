"""Answer requests until told to stop."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp

GRACE_SECONDS = 15
LAST_WORDS_SECONDS = 2


def serve_app(
    app: ASGIApp, listener: socket.socket, ready: Callable[[], None], *, over: Callable[[], None] = lambda: None
) -> None:
    """Serve an application on a listening socket until SIGTERM or SIGINT; requests under way are finished first, for
    GRACE_SECONDS, and then cancelled.

    Args:
        ready: called once requests are answered.
        over: called when no request is left, or those left were cancelled: ends, without waiting, the work of threads that
            requests began. They are waited for.
    """
    import asyncio

    import uvicorn

    from .connection import HEAD_SECONDS, Connection

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                ready()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            try:
                await super().shutdown(sockets)
            finally:
                left = list(self.server_state.tasks)
                if self.force_exit:  # a second Ctrl-C: uvicorn leaves them alone
                    for task in left:
                        task.cancel()
                over()
                if left:  # what they say at their end is still sent
                    await asyncio.wait(left, timeout=LAST_WORDS_SECONDS)
                if self.force_exit:  # the application's own end, left alone too, which then logs a traceback
                    await self.lifespan.shutdown()

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
        timeout_keep_alive=HEAD_SECONDS,
        h11_max_incomplete_event_size=65_536,
        http=Connection,
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
