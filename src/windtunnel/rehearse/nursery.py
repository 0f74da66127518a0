"""Processes for checks: a server that has torch imported and forks one child a check, so that each starts in milliseconds.

A check may hang, crash, be killed for its memory or leave processes behind: its child alone dies, and
whatever it started with it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import replace
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any

from windtunnel.check import Check, Outcome, Say, always, failed
from windtunnel.launch import stop_with_parent
from windtunnel.recipe import UserError

from .processes import process_tree
from .server import HF, PLAIN, STACK_SIGNAL

SERVER = f"{__package__}.server"
TICK = 0.5
IMPORT_SECONDS = 120.0
STACK_SECONDS = 5.0
"""What a check that took too long gets to write where it stands."""


class Nursery:
    """Runs checks in processes of their own, one after another. The server starts with the first; leave the `with` to end it."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[bytes] | None = None
        self._port: Connection | None = None
        self._plain = False

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def run(self, check: Check, context: Any, say: Say, log: Path) -> Outcome:
        """Run a check and return its outcome; one that does not come back within its limit, or at all, has failed.

        Args:
            check: its `run` must be a function of a module.
            context: sent to the process; what the check changes in it is lost, but for the outcome's facts.
            say: told what the check is doing.
            log: gets what the check prints.
        """
        try:  # whether it applies was asked here: that function need not travel
            work = pickle.dumps((replace(check, applies=always), context))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            what = f"it cannot be sent to a process of its own: {error}"
            return failed(check, context, time.monotonic(), what, "make the check's `run` a function of a module")
        request = pickle.dumps((dict(os.environ), os.getcwd(), sys.path, str(log), work))
        # Twice: with torch imported ahead, and, where that kills the server itself, without.
        for _ in range(2):
            began = time.monotonic()
            try:
                return self._run(check, context, request, say, log, began)
            except (OSError, EOFError):
                # The server itself died, most likely while it imported torch: once more without.
                self.close()
                self._plain = True
        return failed(
            check, context, began, "no process could be started for it", "look at free memory and the limit of processes"
        )

    def close(self) -> None:
        """End the server and whatever it runs."""
        if self._port is not None:
            self._port.close()
            self._port = None
        if self._server is not None:
            _kill_tree(self._server.pid)
            self._server.wait()
            self._server = None

    def _run(self, check: Check, context: Any, request: bytes, say: Say, log: Path, began: float) -> Outcome:
        # What is imported ahead depends on the recipe: transformers takes seconds that a GPT's checks do not need.
        port = self._start(_is_hf(context))
        assert self._server is not None
        receiver, sender = Pipe(duplex=False)
        with receiver:
            with sender:
                port.send_bytes(request)
                # The end of a pipe of its own for each check: a child that is killed in the middle of a word spoils no other's.
                send_handle(port, sender.fileno(), self._server.pid)
            pid = self._await_pid(port, say)
            began = time.monotonic()  # importing torch for all checks is not this one's time
            status = _follow(port, receiver, pid, say, began + check.limit, log)
            if isinstance(status, Outcome):
                port.recv()  # its process has ended
                return status
        if status is None:
            port.recv()
            return failed(check, context, began, f"no result after {check.limit:.0f} s{_where(log)}", log=log)
        return failed(check, context, began, f"its process {_how(status)} without a result{_last_words(log)}", log=log)

    def _start(self, hf: bool) -> Connection:
        if self._port is not None:
            return self._port
        ours, theirs = Pipe()
        # -P: a file of the current folder must not hide a module from it; the check of imports says so.
        flags = [PLAIN] if self._plain else [HF] if hf else []
        command = [sys.executable, "-P", "-m", SERVER, str(theirs.fileno()), *flags]
        with theirs:
            # A session of its own: Ctrl-C is for the main process, which ends this one.
            self._server = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()], start_new_session=True, preexec_fn=stop_with_parent,
            )  # fmt: skip
        self._port = ours
        return ours

    def _await_pid(self, port: Connection, say: Say) -> int:
        if not port.poll(TICK):
            say("importing torch")
        if not port.poll(IMPORT_SECONDS):
            raise OSError("the server hangs")
        pid: int = port.recv()
        return pid


def _follow(port: Connection, receiver: Connection, pid: int, say: Say, until: float, log: Path) -> Outcome | int | None:
    """Wait for the child; return its outcome, else the status it ended with, None where it took too long and was killed."""
    ears: list[Any] = [receiver, port]
    while True:
        left = until - time.monotonic()
        if left <= 0:
            with contextlib.suppress(ProcessLookupError):
                # So that the report says where it hangs, not only that it does.
                os.kill(pid, STACK_SIGNAL)
                _await_stack(log)
                os.kill(pid, signal.SIGKILL)
            return None
        ready = wait(ears, min(left, TICK))
        if receiver in ready:
            try:
                message = receiver.recv()
            except Exception:  # cut off in the middle of a word: how it ended says more
                ears = [port]
                continue
            if isinstance(message, Outcome):
                return message
            say(str(message))
        elif port in ready:
            status: int = port.recv()
            return status


def _await_stack(log: Path) -> None:
    """Wait until the stack that was asked for is in the log; a process that cannot write it is not waited for."""
    until = time.monotonic() + STACK_SECONDS
    while not _frames(log) and time.monotonic() < until:
        time.sleep(TICK / 10)


def _is_hf(context: Any) -> bool:
    """Return whether the recipe, if it can be read, is of a Hugging Face model."""
    try:
        # A context of another kind than ours, as in a package's tests, need not know.
        return not getattr(context, "is_gpt", True)
    except UserError:
        return False


def _how(status: int) -> str:
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return f"was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    return f"ended with exit code {os.waitstatus_to_exitcode(status)}"


def _last_words(log: Path) -> str:
    try:
        lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    except OSError:
        return ""
    if not lines:
        return ""
    crash = [line for line in lines if line.startswith("Fatal Python error")]
    return f"; its last words: {(crash or lines)[-1][:200]} ({log})"


def _where(log: Path) -> str:
    """Return where a check stood when its time was over, from the stack that it left."""
    frames = _frames(log)
    return f": it hangs in {frames[0].removeprefix('File ')} ({log})" if frames else ": it hangs"


def _frames(log: Path) -> list[str]:
    """Return the lines of the last stack in a log, innermost first."""
    try:
        lines = log.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    start = max((i for i, line in enumerate(lines) if line.endswith("(most recent call first):")), default=None)
    return [line.strip() for line in lines[start:] if line.startswith("  File ")] if start is not None else []


def _kill_tree(pid: int) -> None:
    import psutil

    for member in process_tree(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
