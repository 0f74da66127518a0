"""Small files written so that a crash leaves the old one or the new one, never half of either."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def fsync_folder(folder: Path) -> None:
    """Make renames and new names in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, text: str, *, durable: bool = True) -> None:
    """Replace a file's content in one step. Raises OSError."""
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        fsync_folder(path.parent)


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """`write_atomic` of a value as JSON."""
    write_atomic(path, json.dumps(value, indent=1) + "\n", durable=durable)
