"""A run's folder that is moved while its job writes into it."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
WAIT_SECONDS = 30.0
"""For a link, or the folder itself, to come back to the old place: `mv` to another disk takes longer for large runs."""
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)


def retry_once_back(attempt: Callable[[], T], folder: Path) -> T:
    """Return what an attempt returns; one that failed because the folder was gone is made once more when it is back.

    Args:
        attempt: writes into the folder, and may be made twice.
        folder: that may be moved, and linked to from its old place, in the meantime.

    Raises:
        OSError: both attempts failed, or the first one for another reason.
    """
    try:
        return attempt()
    except OSError as error:
        if error.errno not in _GONE:
            raise
        until = time.monotonic() + WAIT_SECONDS
        while not folder.is_dir() and time.monotonic() < until:
            time.sleep(0.05)
        return attempt()
