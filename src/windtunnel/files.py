"""Small files written so that a crash leaves the old one or the new one, never half of either."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from pathlib import Path
from typing import Any


def fsync_folder(folder: Path) -> None:
    """Make renames and new names in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, content: str | bytes, *, durable: bool = True) -> None:
    """Replace a file's content in one step. Raises OSError."""
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        fsync_folder(path.parent)


def write_atomic_or_over(path: Path, content: str) -> None:
    """Replace a text in one step; on a disk without room for a copy, over the old one if the new one is not longer.

    Blanks fill the rest then. That is one write into room that the file has: a kill leaves the old or the new text, only a
    power cut may leave parts of both. Raises OSError.
    """
    try:
        write_atomic(path, content)
    except OSError as error:
        new, room = content.encode("utf-8"), path.stat().st_size if path.is_file() else -1
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or len(new) > room:
            raise
        with open(path, "r+b", buffering=0) as file:
            file.write(new.ljust(room))
            os.fsync(file.fileno())


def give_usual_permissions(path: Path) -> None:
    """Let others read a file as they could read any new one here.

    safetensors leaves the permissions of its temporary file, which only its owner can read: a server under another account
    could not load the model. Raises OSError.
    """
    probe = path.with_name(f"{path.name}.tmp-{os.getpid()}")  # asking for the umask would change it for all threads
    try:
        probe.touch()
        path.chmod(stat.S_IMODE(probe.stat().st_mode))
    finally:
        probe.unlink(missing_ok=True)


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """Write a value as JSON with `write_atomic`. JSON has no NaN: null stands for it."""
    write_atomic(path, json.dumps(with_nulls(value), indent=1, allow_nan=False) + "\n", durable=durable)


def with_nulls(value: Any) -> Any:
    """Return a value as JSON can have it: None for numbers that are not finite, lists for tuples."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: with_nulls(item) for key, item in value.items()}
    return [with_nulls(item) for item in value] if isinstance(value, list | tuple) else value
