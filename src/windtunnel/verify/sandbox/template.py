"""The process that warm workers are forks of: it imports once, for all of them, what jobs need.

Started by the judge with one socket, on which it is told what to import and then to fork. It runs no candidate's code, nor
does it isolate itself: each fork does, before it serves a job.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import json
import os
import signal
import socket
import traceback

from . import outer
from .child import HIGH_FD
from .zygote import CONTROL_FD, work

MOST_MESSAGE = 1 << 16
FILES = 2  # of each order: the worker's socket, and where it prints


def main(orders_fd: int) -> None:
    """Serve until the judge closes the socket."""
    orders = socket.socket(fileno=fcntl.fcntl(orders_fd, fcntl.F_DUPFD_CLOEXEC, HIGH_FD))
    os.close(orders_fd)
    null = os.open("/dev/null", os.O_RDWR)
    for number in (outer.PROC_FD, CONTROL_FD):
        os.dup2(null, number, inheritable=False)  # kept free: a library that opens files must not get what forks need
    os.close(null)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # a Ctrl-C is the judge's to handle; it closes the socket
    for name in json.loads(orders.recv(MOST_MESSAGE))["preload"]:
        module, _, function = name.partition(":")
        loaded = importlib.import_module(module)
        if function:
            getattr(loaded, function)()
    gc.collect()
    gc.freeze()  # what is here now is not walked in the workers, so its pages stay shared
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # workers that ended are nobody's to wait for; the judge watches them
    orders.send(b"ready")
    while True:
        data, fds, _, _ = socket.recv_fds(orders, MOST_MESSAGE, FILES)
        if not data:
            os._exit(0)
        _fork(orders, fds)


def _fork(orders: socket.socket, fds: list[int]) -> None:
    """Fork one more worker; the judge is told its process id, with a file descriptor that stands for it."""
    pid = os.fork()
    if pid == 0:
        try:
            orders.close()
            _become_worker(*fds)
        except BaseException:  # a fork never returns into what its parent was doing
            traceback.print_exc()
        finally:
            os._exit(1)
    for fd in fds:
        os.close(fd)
    try:
        watch = os.pidfd_open(pid)
    except OSError as error:  # it has ended already
        orders.send(f"the worker ended at once: {error}".encode())
        return
    socket.send_fds(orders, [str(pid).encode()], [watch])
    os.close(watch)


def _become_worker(control: int, prints: int) -> None:
    """Begin, in the fork, a session of its own, its own files, and then its work."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for number in (1, 2):
        os.dup2(prints, number)
    os.close(prints)
    high = fcntl.fcntl(control, fcntl.F_DUPFD_CLOEXEC, HIGH_FD)
    os.close(control)
    os.dup2(high, CONTROL_FD, inheritable=False)
    os.close(high)
    work()
