"""A trial child that tries to get out; what it reports is what a candidate could do too."""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main(message: dict[str, Any], buffers: list[memoryview]) -> tuple[dict[str, Any], list[bytes]]:
    """Try each thing that must not work. message: 'parent' is the judge's process id, 'secret' a file of the judge's."""
    secret = Path(message["secret"])
    trials: dict[str, Callable[[], object]] = {
        "opens a network socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM),
        "reads a file of the judge's": lambda: secret.read_bytes(),
        "reads /etc/passwd": lambda: Path("/etc/passwd").read_bytes(),
        "lists other processes": lambda: _others(),
        "writes beside its Python": lambda: _write(Path(sys.prefix) / "windtunnel-was-here"),
        "writes to /dev/shm": lambda: _write(Path("/dev/shm/windtunnel-was-here")),
        "starts a process": _fork,
        "signals its parent": lambda: _signal(os.getppid()),
        "signals the judge": lambda: _signal(message["parent"]),
        "traces a process": lambda: _syscalls("ptrace", 16, os.getppid(), None, None),
        "changes its namespaces": lambda: _syscalls("unshare", 0x10000000),
    }
    worked = []
    for what, attempt in trials.items():
        try:
            attempt()
        # Refused by the kernel, as it should be.
        except OSError:
            continue
        worked.append(what)
    return {"worked": worked}, []


def _others() -> None:
    if not [name for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]:
        raise OSError("none")


def _write(path: Path) -> None:
    path.write_bytes(b"")
    path.unlink()


def _fork() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _signal(pid: int) -> None:
    # In a process namespace there is no parent (0) and a number of outside names nobody, or the child itself.
    if pid in (0, os.getpid()):
        raise OSError("nobody")
    os.kill(pid, 0)


def _syscalls(name: str, *arguments: int | None) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), name)
