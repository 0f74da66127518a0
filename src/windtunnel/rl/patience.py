"""Telling what is waited for while it takes long: an engine that starts slowly, or never, is named before its limit ends it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

TELL_SECONDS = 20.0
TAIL_BYTES = 4096


@contextlib.contextmanager
def told_while(
    what: str, say: Callable[[str], None], last: Callable[[], str] = str, seconds: float = TELL_SECONDS
) -> Iterator[None]:
    """Say every few seconds that something still goes on, for how long, and what was last heard of it.

    Args:
        what: goes on.
        say: is told; from a thread of its own.
        last: returns what was last heard; '': nothing.
        seconds: between two.
    """
    # A thread: what is waited for blocks the caller's, in a library that has no hook for this.
    over, began = threading.Event(), time.monotonic()

    def tell() -> None:
        while not over.wait(seconds):
            heard = last()
            say(f"{what}: for {time.monotonic() - began:.0f} s now{f'; last: {heard}' if heard else ''}")

    thread = threading.Thread(target=tell, name="patience", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def last_line(log: Path) -> str:
    """Return the last line of a file that is not empty; '': there is none."""
    with contextlib.suppress(OSError), open(log, "rb") as file:
        # An engine may print megabytes; the end of the file is enough for a line.
        file.seek(max(0, log.stat().st_size - TAIL_BYTES))
        lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
        return lines[-1][-200:] if lines else ""
    return ""
