"""A function in a thread of its own, whose start fails where there is no memory for one."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable

BEGIN_SECONDS = 10.0


class Background:
    """Runs a function once, beside its caller; the process does not wait for it when it ends.

    `threading.Thread.start` waits without end for a thread that has died of too little memory before its first line.

    Args:
        function: must raise nothing.
    """

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function
        self._begun, self._ended, self._lock, self._given_up = threading.Event(), threading.Event(), threading.Lock(), False

    def start(self) -> None:
        """Begin. Raises MemoryError: the system gives no thread, or the thread does not begin."""
        try:
            _thread.start_new_thread(self._work, ())
        except RuntimeError as error:
            raise MemoryError(str(error)) from None
        if not self._begun.wait(BEGIN_SECONDS):
            with self._lock:
                self._given_up = not self._begun.is_set()
            if self._given_up:
                raise MemoryError("a thread was started and did not begin")

    def is_alive(self) -> bool:
        """Return whether the function is still at work."""
        return not self._ended.is_set()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the function has returned, at most `timeout` seconds."""
        self._ended.wait(timeout)

    def _work(self) -> None:
        with self._lock:
            if self._given_up:
                return
            self._begun.set()
        try:
            self._function()
        finally:
            self._ended.set()
