"""The server of `nursery`: a program that imports torch once and forks a child for each check that it is told to run."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import resource
import signal
import sys
from importlib import import_module
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from pathlib import Path

from windtunnel.check import attempt
from windtunnel.launch import Forker, stop_with_parent

STACK_SIGNAL = signal.SIGUSR2
"""A check that gets it writes where it stands. A watchdog thread would do that too, but then checks could not fork safely."""
PLAIN, HF = "--plain", "--hf"
"""Arguments of a server that imports nothing beforehand, or also what Hugging Face models need."""
# What the checks that take longest import, and the programs that they fork.
_AHEAD: tuple[tuple[str, ...], ...] = (
    ("torch",), ("torch._dynamo",), ("windtunnel.data", "prepare"), ("windtunnel.model", "build_model"),
    ("windtunnel.train", "train", "run_trial"), ("windtunnel.checkpoint", "export_run"), ("windtunnel.rl", "evaluate_trained"),
    ("windtunnel.cli.verbs",), ("windtunnel.cli.train",), ("windtunnel.launch", "train_run", "run_stages"),
    ("windtunnel.launch.trial_worker",), ("windtunnel.watch", "training_view", "write_run_page"), ("matplotlib.figure",),
)  # fmt: skip
_OF_HUGGING_FACE = (("windtunnel.rl.engine",), ("windtunnel.train", "build_hf_engine"), ("windtunnel.generate", "hf_decoder"))
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
    """Import what most checks and the programs that they start use; what is missing or broken they will say themselves.

    A room imports little by itself: what needs time stands behind its names.
    """
    for module, *names in _AHEAD + (_OF_HUGGING_FACE if hf else ()):
        with contextlib.suppress(Exception):
            room = import_module(module)
            for name in names:
                getattr(room, name)


def _child(request: bytes, handle: int) -> None:
    """Run one check, send its outcome and end the process: this does not return."""
    import faulthandler

    # Its own session: what it starts can be found and ended with it, and Ctrl-C does not reach it.
    os.setsid()
    stop_with_parent()
    # A crash of native code would leave gigabytes of a core file in the user's folder.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    # The pipe's other end is with the main process; the server itself keeps none of it.
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
    if check.forks and context.device == "cpu":  # nothing is computed here yet; a GPU's driver is not forked by anybody
        context.forker = Forker()
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
