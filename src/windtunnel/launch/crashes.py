"""A training that ends with an exception nobody expected: told in one line, kept in full in the run's log."""

from __future__ import annotations

import signal
import traceback
from pathlib import Path

from windtunnel.recipe import UserError

CRASHED = 70
"""Exit code of a rank that raised what is no UserError (sysexits' EX_SOFTWARE)."""
STACK_SIGNAL = signal.SIGUSR2
"""On which a rank prints the stacks of its threads; see `windtunnel.launch.worker`."""


class Crashed(UserError):
    """Training raised what it should not have; the run says so."""

    exit_code = 1


def described(error: BaseException) -> str:
    """Return an exception as one line: its name, its first line, and where in windtunnel it was raised."""
    first = str(error).strip().partition("\n")[0]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "windtunnel" in Path(frame.filename).parts]
    where = f" ({Path(frames[-1].filename).parent.name}/{Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}{': ' if first else ''}{first[:500]}{where}"
