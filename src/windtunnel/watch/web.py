"""windtunnel watch --web: pages of all runs and of each, in a browser, as they go on. Nothing is ever written."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from windtunnel.recipe import UserError
from windtunnel.web import Access, APIError, Guard, error_response, http_error, listening, serve_app, url_of

from .board import Board
from .page import STATIC, script_source
from .run_page import run_page

INTERVAL = 1.0
"""Seconds between two looks at a run."""
QUIET_SECONDS = 10.0
"""After so long without news a stream says that it is still there."""
TICKET_SECONDS = 60.0
# The page has no data of its own; a report's address is a secret of a minute.
PUBLIC = ("/", "/static/*", "/report/*")
# A report is one file with its style and its script inside.
REPORT_POLICY = (
    "default-src 'none'; script-src {script}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
)


def serve_board(
    root: Path,
    *,
    run: str | None = None,
    host: str = "127.0.0.1",
    port: int = 8080,
    token: str | None = None,
    on_ready: Callable[[str], None] = print,
) -> None:
    """Serve the pages until SIGTERM or SIGINT.

    Args:
        root: the folder of the runs.
        run: the name of the one that is shown first; None: the list.
        host: the address to listen on.
        port: 0 takes any free one.
        token: what readers must know; None: $WINDTUNNEL_TOKEN, or a new one, which the address that is told contains.
        on_ready: told the address once it is answered.

    Raises:
        UserError: the address is taken or not this machine's, or the token cannot be sent.
    """
    access = Access.of(host, token, what="see your runs", port=port, generate=True)
    with contextlib.closing(listening(host, port)) as listener:
        page = Pages(Board(root))
        # After '#': browsers send it to nobody, and it stands in no server's log.
        here = f"#token={quote(access.token or '', safe='')}" + (f"&run={quote(run)}" if run else "")
        serve_app(page.app(access), listener, lambda: on_ready(f"{url_of(host, listener)}/{here}"), ending=page.end)


class Pages:
    """The application: two pages in one, what they show as JSON, and streams of what is new.

    Args:
        board: reads the runs.
    """

    def __init__(self, board: Board) -> None:
        self._board = board
        self._ending = asyncio.Event()
        self._tickets: dict[str, tuple[float, str]] = {}

    def app(self, access: Access) -> Starlette:
        """Return the application, which only those with the token can read."""
        return Starlette(
            routes=[
                Route("/", self._page),
                Route("/api/runs", self._runs),
                Route("/api/runs/{name}", self._run),
                Route("/api/runs/{name}/ticket", self._ticket),
                Route("/api/events", self._all_events),
                Route("/api/runs/{name}/events", self._run_events),
                Route("/report/{ticket}", self._report),
                Mount("/static", StaticFiles(directory=STATIC)),
            ],
            middleware=[Middleware(Guard, access=access, max_body=0, public=PUBLIC)],
            exception_handlers={HTTPException: http_error, UserError: _user_error},
        )

    def end(self) -> None:
        """Let the streams end: the server is going to."""
        self._ending.set()

    async def _page(self, request: Request) -> Response:
        return FileResponse(STATIC / "board.html", headers={"Cache-Control": "no-cache"})

    async def _runs(self, request: Request) -> Response:
        return JSONResponse(await asyncio.to_thread(self._board.runs))

    async def _run(self, request: Request) -> Response:
        return JSONResponse(await asyncio.to_thread(self._board.run, request.path_params["name"]))

    async def _ticket(self, request: Request) -> Response:
        """Give a link, which cannot carry the token, an address that is good for a minute."""
        name, now = request.path_params["name"], time.monotonic()
        self._board.folder(name)
        # Old ones go whenever a new one is made: nobody else looks after them.
        self._tickets = {key: value for key, value in self._tickets.items() if value[0] > now}
        ticket = secrets.token_urlsafe(24)
        self._tickets[ticket] = (now + TICKET_SECONDS, name)
        return JSONResponse({"url": f"/report/{ticket}"})

    async def _report(self, request: Request) -> Response:
        until, name = self._tickets.get(request.path_params["ticket"], (0.0, ""))
        if until < time.monotonic():
            raise APIError(404, "this address of a report is not good any more: open it from the run's page again")
        page = await asyncio.to_thread(run_page, self._board.folder(name))
        policy = REPORT_POLICY.format(script=script_source())
        return HTMLResponse(page, headers={"Content-Security-Policy": policy, "Cache-Control": "no-store"})

    async def _all_events(self, request: Request) -> Response:
        return _stream(self._news(self._board.runs))

    async def _run_events(self, request: Request) -> Response:
        name = request.path_params["name"]
        self._board.folder(name)
        since = int(request.query_params.get("since", "-1"))

        def look() -> dict[str, Any]:
            nonlocal since
            tail = self._board.tail(name, since)
            found = {"moment": self._board.moment(name), **tail}
            # Kept for each stream: two browsers may be at different steps.
            since = tail["last"]
            return found

        # Without the time of looking, which is another every second.
        return _stream(self._news(look, lambda news: {**news, "moment": {**news["moment"], "at": 0}, "series": None}))

    async def _news(self, look: Callable[[], Any], essence: Callable[[Any], Any] = lambda news: news) -> AsyncIterator[str]:
        """Yield what a look finds, whenever its essence has changed, as server-sent events, until the server ends."""
        # A stream that says nothing for long is cut by proxies, and a browser cannot tell that its server has gone.
        before, said = None, time.monotonic()
        while not self._ending.is_set():
            try:
                news = await asyncio.to_thread(look)
            except UserError as error:
                yield f"event: problem\ndata: {json.dumps({'message': str(error)})}\n\n"
                return
            if essence(news) != before:
                before, said = essence(news), time.monotonic()
                yield f"data: {json.dumps(news)}\n\n"
            elif time.monotonic() - said > QUIET_SECONDS:
                said = time.monotonic()
                yield ": still here\n\n"
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), INTERVAL)


def _stream(events: AsyncIterator[str]) -> StreamingResponse:
    return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})


async def _user_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, UserError)
    return error_response(APIError(404, str(error), code="not_found"))
