"""Processes that compile what a training's first step needs: named in the environment, so that whoever takes that step waits."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable

from .processes import ProcessId

NAMED = "WINDTUNNEL_COMPILERS"
COMPILING_SECONDS = 60.0
"""Most that such a process takes, and most that is waited for it."""
_TICK = 0.02


def name_compilers(pids: Iterable[int]) -> None:
    """Name them to the processes that are started from now on, and to this one."""
    os.environ[NAMED] = json.dumps([ProcessId.of(pid).dump() for pid in pids])


def _at_work() -> bool:
    """Return whether one of them still runs."""
    named = (ProcessId.parse(text) for text in json.loads(os.environ.get(NAMED, "[]")))
    return any(one is not None and one.alive for one in named)


def wait_for_compilers(stopped: Callable[[], object], seconds: float = COMPILING_SECONDS) -> None:
    """Wait until all have ended, or for so long, or until `stopped`: whoever compiled the same meanwhile would have it later."""
    limit = time.monotonic() + seconds
    while _at_work() and time.monotonic() < limit and not stopped():
        time.sleep(_TICK)
