"""Requests to stop: signals, spot notices and `windtunnel stop`. The step loop asks between steps and saves before it ends.

SIGTERM, SIGINT (Ctrl-C) and SIGUSR1 (Slurm's warning before a time limit) end a run with a checkpoint and exit code 3.
SIGHUP does not: a lost terminal or SSH session costs the view of a training, not the training.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from .notices import NOTICE_VARIABLE, look_seconds, spot_look

STOP_FILE = "stop"
"""In the run's folder: its text says who asked the run to stop."""
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_STDERR = 2
_AT_INTERRUPT = b"\nsaving a checkpoint, then ending; Ctrl-C once more ends at once, without saving\n"


class StoppedEarly(KeyboardInterrupt):
    """A signal asked to stop before the step loop began: there is nothing to save. Its text is the signal's name."""


def stop_early(number: int, frame: FrameType | None) -> None:
    """Handle a signal outside the step loop: end in an orderly way by raising StoppedEarly."""
    raise StoppedEarly(signal.Signals(number).name)


class StopRequest:
    """Whether someone wants the run to end, and why. Use as a context manager in the main thread.

    The first of the `STOPPING` signals makes `requested` true; a second SIGINT raises KeyboardInterrupt at
    once. Handlers are put back on leaving.

    Args:
        folder: the run's, in which `windtunnel stop` leaves its file; None: nobody looks for it.
        notice: where spot notices appear: 'file:/path' (it exists), an http URL (200 with a text
            other than FALSE), 'aws', 'gcp' or 'azure' (their metadata services); None: from
            $WINDTUNNEL_SPOT_NOTICE; '': nowhere.
        period: seconds between looks at most; providers give 30 s (gcp, azure) to 2 min (aws), and are asked as often as
            their documents say.

    Raises:
        UserError: `notice` is none of these.
    """

    def __init__(self, notice: str | None = None, *, folder: Path | None = None, period: float = 5.0) -> None:
        notice = os.environ.get(NOTICE_VARIABLE, "") if notice is None else notice
        self._look, self._look_period, self._look_due = spot_look(notice), min(period, look_seconds(notice)), 0.0
        self._file = None if folder is None else folder / STOP_FILE
        # The file is looked for more often than a notice: whoever typed `stop` is waiting.
        self._period = min(period, 1.0)
        self._reason: str | None = None
        self._interrupted = False
        self._old: dict[int, Any] = {}
        self._left = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def requested(self) -> str | None:
        """Why the run is to stop; None while nobody asked."""
        return self._reason

    def request(self, reason: str) -> None:
        """Ask to stop; the first reason stays."""
        self._reason = self._reason or reason

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # Python allows handlers nowhere else
            for number in STOPPING:
                self._old[number] = signal.signal(number, self._handle)
            if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # otherwise someone, such as nohup, has decided already
                self._old[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        if self._look is not None or self._file is not None:
            self._thread = threading.Thread(target=self._poll, name="stop-notice", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._left.set()
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self._old.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            # Somebody at the keyboard has waited long enough.
            if self._interrupted:
                raise KeyboardInterrupt
            self._interrupted = True
            # One of the ranks says it, at a terminal only, in a way that is safe inside a handler.
            if os.environ.get("RANK", "0") == "0" and os.isatty(_STDERR):
                os.write(_STDERR, _AT_INTERRUPT)
        self.request(signal.Signals(number).name)

    def _poll(self) -> None:
        while not self._left.is_set() and self._reason is None:
            with contextlib.suppress(OSError, ValueError):  # unreachable now: look again later
                asked = self._asked()
                if asked:
                    self.request(asked)
                    return
            self._left.wait(self._period)

    def _asked(self) -> str | None:
        if self._file is not None and self._file.exists():
            return self._file.read_text(encoding="utf-8").strip() or "windtunnel stop"
        if self._look is None or time.monotonic() < self._look_due:
            return None
        self._look_due = time.monotonic() + self._look_period
        notice = self._look()
        return f"spot notice: {notice}" if notice else None
