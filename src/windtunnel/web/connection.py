"""A connection that does not wait for a request for ever. Imports uvicorn."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

# For all of a request's head, from the connection's start or the answer before: whoever connects and says nothing, or a word
# now and then, would hold one of the process's descriptors for good.
HEAD_SECONDS = 30


class Connection(H11Protocol):
    """uvicorn's, closed where no request's head has come after HEAD_SECONDS."""

    waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def on_response_complete(self) -> None:
        self._wait()  # before: there may be another request, which is read at once
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
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
