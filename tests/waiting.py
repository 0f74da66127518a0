"""How long tests wait for what must happen: so long that only what hangs fails, however busy the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable

HANG = 300.0  # seconds


def until(happened: Callable[[], object], what: str = "") -> None:
    """Return as soon as happened() is true; fail when it never is. what: said then."""
    deadline = time.monotonic() + HANG
    while not happened():
        assert time.monotonic() < deadline, what or "it never happened"
        time.sleep(0.02)
