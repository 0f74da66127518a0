"""Processes of a job: none outlives whoever started it, and one that crashes is told in one line."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from windtunnel.recipe import UserError

CRASHED = 70
"""Exit code of a rank that raised what is no UserError (sysexits' EX_SOFTWARE)."""
ALLOCATOR = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
"""Environment, read when CUDA starts. Without it freed blocks of other sizes stay reserved: 61.5 GiB, not 45, at depth 24."""
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Crashed(UserError):
    """Training raised what it should not have; the run says so."""

    exit_code = 1


def share_threads(ranks: int) -> dict[str, str]:
    """Return the environment in which ranks do not wait for each other's threads: each has its share of the cores."""
    return {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // ranks))} if ranks > 1 else {}


def described(error: BaseException) -> str:
    """Return an exception as one line: its name, its first line, and where in windtunnel it was raised."""
    first = str(error).strip().partition("\n")[0]
    # The deepest frame of the package itself: where in PyTorch it was raised says less.
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "windtunnel" in Path(frame.filename).parts]
    first = "; ".join(filter(None, [first[:500], *getattr(error, "__notes__", ())]))
    where = f" ({Path(frames[-1].filename).parent.name}/{Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}{': ' if first else ''}{first}{where}"


def stop_with_parent() -> None:
    """Ask the kernel to send this process SIGTERM when its parent dies; it then saves and ends. Linux only, else nothing."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def send_below(pid: int, number: int) -> None:
    """Send a signal to all that a process has started, and what those have: ranks, which have sessions of their own."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.send_signal(number)


class Process(Protocol):
    """What is asked of a process that was started or forked: `subprocess.Popen` has it, and `windtunnel.launch.Forked`."""

    pid: int
    returncode: int | Any  # None before its end

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""

    def wait(self) -> int:
        """Wait for its end and return the exit code."""

    def send_signal(self, sig: int) -> None:
        """Send a signal, if it still runs."""


def run_child(
    arguments: Sequence[str], environment: Mapping[str, str], log: Path, stage: Path, timeout: float, say: Callable[[str], None]
) -> tuple[int, str | None]:
    """Run the interpreter to its end, or for `timeout` seconds; nothing that it started outlives this call.

    Args:
        arguments: what follows the interpreter.
        environment: all of the process's.
        log: gets standard output and standard error.
        stage: a file in which the process keeps what it is doing.
        timeout: seconds after which it is killed.
        say: told each new content of that file.

    Returns:
        The exit code, and why the process was stopped, or None where it ended by itself.
    """
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [sys.executable, *arguments], env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True, preexec_fn=stop_with_parent,
        )  # fmt: skip
    stopped = watch([process], stage, timeout, say)
    return process.returncode, stopped


def watch(processes: Sequence[Process], stage: Path, timeout: float, say: Callable[[str], None]) -> str | None:
    """Wait until processes have ended, or one has failed, or for `timeout` seconds; then end them and all that they started.

    Returns:
        why they were stopped, or None where they ended by themselves.
    """
    try:
        return _wait(processes, stage, timeout, say)
    finally:
        for process in processes:
            _kill(process)


def stage_of(path: Path) -> str:
    """Return what a process wrote last of what it is doing; '' before it wrote anything."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _wait(processes: Sequence[Process], path: Path, timeout: float, say: Callable[[str], None]) -> str | None:
    deadline, told = time.monotonic() + timeout, ""
    # One that fails ends all: the others would wait for it in a collective until its time-out.
    while None in (codes := [process.poll() for process in processes]) and not any(codes):
        stage = stage_of(path)
        if stage != told:
            say(stage)
            told = stage
        if time.monotonic() > deadline:
            return f"stopped after {timeout:,.0f} s, while {stage or 'starting'}"
        time.sleep(0.05)
    return None


def _kill(process: Process) -> None:
    """End the process and all that it started: torchrun gives its workers sessions of their own."""
    # Before the process itself: once it is gone its children are nobody's and cannot be found.
    send_below(process.pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # what its own death has orphaned, such as compilers
    process.wait()
