"""A limit of time for code that is not ours, such as chat templates: they are programs, and may loop for ever."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
TEMPLATE_SECONDS = 10.0
PERIOD = 0.25  # seconds between two looks at who is late
IDLE_LOOKS = 8  # after so many the thread that looks ends, so that no process forks beside it for nothing


class TookTooLong(Exception):
    """Raised in the thread whose work took too long. Interrupts Python code alone, not a single long operation."""

    def __str__(self) -> str:
        return "it computes for too long, as an endless loop does"


class _Work:
    """Work of one thread. A lock of its own decides whether it ended before it was interrupted."""

    def __init__(self, seconds: float) -> None:
        self._thread = threading.get_ident()
        of_thread = getattr(time, "pthread_getcpuclockid", None)  # a busy machine is no reason; macOS has none
        self._clock = time.CLOCK_MONOTONIC if of_thread is None else of_thread(self._thread)
        self._until = time.clock_gettime(self._clock) + seconds
        self._lock = threading.Lock()
        self.over = False

    def look(self) -> None:
        """Interrupt the work once if its time is up; called by another thread."""
        with self._lock:
            if not self.over and time.clock_gettime(self._clock) > self._until:
                self.over = True
                error = ctypes.py_object(TookTooLong)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), error)

    def end(self) -> None:
        """Note that the work is done, and let an interruption arrive that was on its way: nobody is to have it later.

        To take it back is no choice: Python 3.11 then expects one for ever, and whoever profiles or traces that process hangs.
        """
        try:
            with self._lock:
                late, self.over = self.over, True
            for _ in range(10 if late else 0):
                pass  # it arrives where a loop turns
        except TookTooLong:
            pass


_at_work: dict[int, _Work] = {}
_watcher: threading.Thread | None = None


def within(work: Callable[[], T], seconds: float | None = None) -> T:
    """Return what some work returns.

    Args:
        work: called in this thread. Nothing in it may catch every exception and go on.
        seconds: of processor time that it may take; otherwise those that a chat template has for a conversation.

    Raises:
        TookTooLong: it took more.
    """
    mine = _Work(TEMPLATE_SECONDS if seconds is None else seconds)
    _at_work[id(mine)] = mine
    _watch()
    try:
        return work()
    finally:
        _at_work.pop(id(mine), None)
        mine.end()


def _watch() -> None:
    """Start the thread that looks, unless there is one; a forked process has none."""
    global _watcher
    if _watcher is None or not _watcher.is_alive():
        _watcher = threading.Thread(target=_look, name="time-limit", daemon=True)
        _watcher.start()


def _look() -> None:
    global _watcher
    idle = 0
    while idle < IDLE_LOOKS:
        time.sleep(PERIOD)
        for key, work in list(_at_work.items()):
            work.look()
            if work.over:
                _at_work.pop(key, None)
        idle = 0 if _at_work else idle + 1
        if idle == IDLE_LOOKS:
            _watcher = None  # who comes from now on starts another
            idle = 0 if _at_work else idle


def _forget() -> None:
    """Forget the works of the process that this one was forked from."""
    global _watcher
    _at_work.clear()
    _watcher = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
