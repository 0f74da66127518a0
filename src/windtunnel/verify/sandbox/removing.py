"""Removes a folder that a candidate has filled: however deep, however forbidden."""

from __future__ import annotations

import contextlib
import os


def remove(folder: str) -> None:
    """Remove a folder and what is in it, without following links.

    What lies deeper is moved up level by level, so that no path grows too long and nothing recurses. What cannot be removed
    stays, silently.
    """
    with contextlib.suppress(OSError):
        os.chmod(folder, 0o700)
        while _one_level(folder):
            pass
        os.rmdir(folder)


def _one_level(folder: str) -> bool:
    """Remove the files in a folder and the folders, after moving their contents up; False when nothing (more) could be done."""
    with os.scandir(folder) as entries:
        found = list(entries)
    done = False
    for entry in found:
        with contextlib.suppress(OSError):
            if entry.is_dir(follow_symlinks=False):
                _empty(entry.path, folder)
                os.rmdir(entry.path)
            else:
                os.unlink(entry.path)
            done = True
    return done


def _empty(inner: str, outer: str) -> None:
    os.chmod(inner, 0o700)
    for name in os.listdir(inner):
        path = os.path.join(inner, name)
        with contextlib.suppress(OSError):
            if not os.path.islink(path) and os.path.isdir(path):
                os.chmod(path, 0o700)  # a folder that is not writable cannot be moved
            os.rename(path, os.path.join(outer, os.urandom(8).hex()))
