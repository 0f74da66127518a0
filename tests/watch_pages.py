"""The pages of runs, served as `windtunnel watch --web` serves them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from waiting import HANG

from windtunnel.watch.board import Board
from windtunnel.watch.web import Pages
from windtunnel.web import Access, Server, listening, url_of

TOKEN = "a token of the test"


@contextlib.contextmanager
def pages_of(root: Path) -> Iterator[str]:
    """Serve the runs below a folder; gives the address."""
    listener = listening("127.0.0.1", 0)
    pages = Pages(Board(root))
    ready = threading.Event()
    server = Server(pages.app(Access(TOKEN, False)), ready.set, ending=pages.end)
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
    thread.start()
    assert ready.wait(HANG)
    try:
        yield url_of("127.0.0.1", listener)
    finally:
        server.should_exit = True
        thread.join(HANG)
        assert not thread.is_alive()  # also where streams were open
        listener.close()
