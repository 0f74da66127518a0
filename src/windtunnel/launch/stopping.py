"""Stopping a run from outside."""

from __future__ import annotations

import contextlib
import getpass
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from windtunnel.files import write_atomic
from windtunnel.recipe import UserError
from windtunnel.run import STOP_FILE, MetricsReader, ProcessId, RunFolder, holder, outcome, record_end

TICK = 0.2
REMIND_SECONDS = 30.0


@dataclass(frozen=True)
class Stopped:
    """How a run stands after it was asked to stop.

    Attributes:
        status: running (not ended in time), done, stopped, failed. reason: why it ended. step: its last logged step.
    """

    status: str
    reason: str | None
    step: int


def stop_run(folder: Path, *, seconds: float, kill: bool = False, say: Callable[[str], None]) -> Stopped:
    """Ask the process that trains a run to save and end; return how the run stands then.

    The request is a file in the run's folder, so that it reaches a run on another machine that shares the folder. Where the
    folder cannot be written, as on a full disk, a process of this machine gets SIGTERM, which asks for the same.

    Args:
        folder: of the run.
        seconds: to wait for.
        kill: SIGKILL instead, to the process named in the run's lock and nobody else.
        say: told what is waited for.

    Raises:
        UserError: no run folder; or of a process of another machine, a folder that cannot be written, or a kill.
    """
    RunFolder.open(folder)
    by = holder(folder)
    if by is None:
        return _stands(folder)
    if kill:
        _kill(folder, by)
        return _stands(folder)
    # Who asked is written down: several people may watch a run.
    asked = f"windtunnel stop, by {_user()} on {socket.gethostname()}"
    try:
        write_atomic(folder / STOP_FILE, asked + "\n")
    except OSError as error:
        why = f"run folder {folder} cannot be written: {error.strerror or error}"
        if not by.here:
            raise UserError(why, f"make room there, or on {by.host}: windtunnel stop {folder}") from None
        say(why)
        by.send(signal.SIGTERM)
    say(f"asked {by} to save and end")
    began = reminded = time.monotonic()
    # Held by somebody else means that the run has ended and was begun again: that one was not asked to stop.
    while (left := holder(folder)) is not None and left == by and time.monotonic() - began < seconds:
        if time.monotonic() - reminded > REMIND_SECONDS:
            reminded = time.monotonic()
            say(f"still waiting after {reminded - began:.0f} s; `windtunnel stop {folder} --kill` ends it without a checkpoint")
        time.sleep(TICK)
    return _stands(folder)


def _kill(folder: Path, by: ProcessId) -> None:
    if not by.here:
        raise UserError(f"{by} trains {folder}, which is another machine", f"on {by.host}: windtunnel stop {folder} --kill")
    by.send(signal.SIGKILL)
    limit = time.monotonic() + 10.0
    while holder(folder) is not None and time.monotonic() < limit:
        time.sleep(TICK)
    time.sleep(2 * TICK)  # its supervisor, where there is one, records it
    record_end(folder, f"killed by {_user()} (windtunnel stop --kill), without saving", status="stopped")


def _stands(folder: Path) -> Stopped:
    stands = outcome(folder, RunFolder.open(folder).manifest)
    step = 0
    with contextlib.suppress(UserError), MetricsReader(folder / "metrics.sqlite") as reader:
        step = max((point.step for point in reader.latest().values()), default=0)
    return Stopped(stands.status, stands.reason, step)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "somebody"
