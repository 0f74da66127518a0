"""The server of `nursery`: a program that imports torch once and forks a child for each check that it is told to run."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import resource
import signal
import sys
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from pathlib import Path

from windtunnel.check import attempt
from windtunnel.launch import stop_with_parent

STACK_SIGNAL = signal.SIGUSR2
"""A check that gets it writes where it stands. A watchdog thread would do that too, but then checks could not fork safely."""
PLAIN, HF = "--plain", "--hf"
"""Arguments of a server that imports nothing beforehand, or also what Hugging Face models need."""
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def main() -> None:
    """Serve until the other side hangs up."""
    if sys.platform == "linux":  # orphans of a check come to this process, which ends them
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    port = Connection(int(sys.argv[1]))
    if PLAIN not in sys.argv:
        _import_ahead(HF in sys.argv)
    while True:
        try:
            request = port.recv_bytes()
            handle = recv_handle(port)
        except (EOFError, OSError):
            return
        child = os.fork()
        if child == 0:
            port.close()
            _child(request, handle)
        os.close(handle)
        port.send(child)
        _, status = os.waitpid(child, 0)
        _end_orphans()
        port.send(status)


def _import_ahead(hf: bool) -> None:
    """Import what most checks import; what is missing or broken they will say themselves."""
    names = ["torch", "torch._dynamo", "windtunnel.model", "windtunnel.data", "windtunnel.train", "windtunnel.evaluate"]
    for name in (*names, "windtunnel.rl.engine") if hf else names:
        with contextlib.suppress(Exception):
            __import__(name)


def _child(request: bytes, handle: int) -> None:
    """Run one check, send its outcome and end the process: this does not return."""
    import faulthandler

    # Its own session: what it starts can be found and ended with it, and Ctrl-C does not reach it.
    os.setsid()
    stop_with_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    sender = Connection(handle, readable=False)
    environment, folder, paths, log, rest = pickle.loads(request)
    os.environ.clear()
    os.environ.update(environment)
    with contextlib.suppress(OSError):
        os.chdir(folder)
    sys.path[:] = paths
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, encoding="utf-8", errors="replace")
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="replace")
    faulthandler.enable(sys.stderr)
    check, context = pickle.loads(rest)
    faulthandler.register(STACK_SIGNAL, file=sys.stderr, all_threads=False)
    sender.send(attempt(check, context, sender.send, Path(log)))
    sys.stdout.flush()
    os._exit(0)  # the server's exit handlers are not this copy's to run


def _end_orphans() -> None:
    import psutil

    for member in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


if __name__ == "__main__":
    main()
