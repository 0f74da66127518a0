"""How quick a command is, whatever else the machine is doing and however fast it is."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time

YARDSTICK = (sys.executable, "-c", "import typer, pydantic, yaml, rich.table")
AT_REST = 0.17
"""Seconds the yardstick takes where nothing else runs, on a machine on which the limits hold as they are written."""
MOST_TIMES = 15


def assert_quick(limit: float, *arguments: str) -> None:
    """The quickest of several runs of windtunnel takes less than the limit, in seconds of a machine at rest."""
    best = yardstick = math.inf
    for _ in range(MOST_TIMES):
        best = min(best, _seconds((sys.executable, "-m", "windtunnel", *arguments)))
        yardstick = min(yardstick, _seconds(YARDSTICK))
        allowed = limit * max(1.0, yardstick / AT_REST)
        if best < allowed:
            return
    raise AssertionError(f"{best:.2f} s, and {allowed:.2f} s are allowed on a machine as slow as this one is now")


def _seconds(command: tuple[str, ...]) -> float:
    """Processor time, or by the clock where that is less."""
    before, start = os.times(), time.perf_counter()
    subprocess.run(command, capture_output=True, timeout=60, check=False)
    took, after = time.perf_counter() - start, os.times()
    return min(took, after.children_user + after.children_system - before.children_user - before.children_system)
