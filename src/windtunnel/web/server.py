"""Answer requests until told to stop, and let nobody hold a connection for good. Imports uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from starlette.types import ASGIApp

GRACE_SECONDS = 15
LAST_WORDS_SECONDS = 2
# For all of a request's head, from the connection's start or the answer before: whoever connects and says nothing, or a word
# now and then, would hold one of the process's descriptors for good.
HEAD_SECONDS = 30
# Where there are more, the one that has waited longest for a request's head is closed: each holds a descriptor.
MOST_CONNECTIONS = 512


class Connection(H11Protocol):
    """uvicorn's, closed where no request's head has come after HEAD_SECONDS."""

    waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request, and close the connection that has been silent longest where there are too many."""
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > MOST_CONNECTIONS:
            silent = [c for c in self.connections if isinstance(c, Connection) and c.waiting and not c.busy]
            min(silent, key=lambda c: c.waiting.when()).transport.close()  # type: ignore[union-attr]

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._wait()  # before: there may be another request, which is read at once
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        if self.waiting is not None:
            self.waiting.cancel()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self.waiting is not None:
            self.waiting.cancel()
        self.waiting = self.loop.call_later(HEAD_SECONDS, self._close_unless_later_than, self.cycle)

    def _close_unless_later_than(self, cycle: object) -> None:
        """cycle: the last request that had come, None for none."""
        if self.cycle is cycle and not self.transport.is_closing():
            self.transport.close()


class Server(uvicorn.Server):
    """uvicorn's, as `serve_app` runs it. `should_exit = True` ends it from another thread."""

    def __init__(
        self,
        app: ASGIApp,
        ready: Callable[[], None] = lambda: None,
        over: Callable[[], None] = lambda: None,
        ending: Callable[[], None] = lambda: None,
    ) -> None:
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
            # The same as for a first head: `Connection` counts both.
            timeout_keep_alive=HEAD_SECONDS,
            h11_max_incomplete_event_size=65_536,
            http=Connection,
            ws="none",
        )
        super().__init__(config)
        self._ready, self._over, self._ending = ready, over, ending

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let the requests under way end."""
        self._ending()
        try:
            await super().shutdown(sockets)
        finally:
            left = list(self.server_state.tasks)
            if self.force_exit:  # a second Ctrl-C: uvicorn leaves them alone
                for task in left:
                    task.cancel()
            self._over()
            if left:  # what they say at their end is still sent
                await asyncio.wait(left, timeout=LAST_WORDS_SECONDS)
            if self.force_exit:  # the application's own end, left alone too, which then logs a traceback
                await self.lifespan.shutdown()


def serve_app(
    app: ASGIApp,
    listener: socket.socket,
    ready: Callable[[], None],
    *,
    over: Callable[[], None] = lambda: None,
    ending: Callable[[], None] = lambda: None,
) -> None:
    """Serve an application on a listening socket until SIGTERM or SIGINT, which a program ignores from then on.

    Requests under way are then finished first, for GRACE_SECONDS, and cancelled if that was not enough.

    Args:
        app: the ASGI application.
        listener: a socket that listens.
        ready: called once requests are answered.
        over: called when no request is left, or those left were cancelled: ends, without waiting, the work of threads that
            requests began. They are waited for.
        ending: called in the server's loop before requests under way are waited for: tells those that have no end of their own.
    """
    with _quiet_signals(), contextlib.suppress(KeyboardInterrupt):
        Server(app, ready, over, ending).run(sockets=[listener])


@contextlib.contextmanager
def _quiet_signals() -> Iterator[None]:
    """Ignore the signal that uvicorn raises once more when all is closed, and from then on all: the program has done its work.

    Whoever asks it a second time to end meets it while it closes, or Python at its own end, which would tell of it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ending = (signal.SIGTERM, signal.SIGINT)
    for number in ending:
        signal.signal(number, lambda *_: None)
    try:
        yield
    finally:
        for number in ending:
            signal.signal(number, signal.SIG_IGN)
