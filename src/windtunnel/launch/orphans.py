"""Training processes must not outlive whoever started them: they would go on spending unseen."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def stop_with_parent() -> None:
    """Ask the kernel to send this process SIGTERM when its parent dies; it then saves and ends. Linux only, else nothing."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
