"""The cache of prepared data: where it is, one writer at a time, nothing half-written ever visible."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from windtunnel.files import fsync_folder
from windtunnel.recipe import UserError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}  # a quota, or the largest file that a disk can hold, is as good as full


def cache_root(cache: str | Path | None = None) -> Path:
    """Return $WINDTUNNEL_CACHE, else $XDG_CACHE_HOME/windtunnel, else ~/.cache/windtunnel; created.

    Raises:
        UserError: the folder cannot be created or written.
    """
    own, shared = os.environ.get("WINDTUNNEL_CACHE"), os.environ.get("XDG_CACHE_HOME")
    root = Path(cache or own or (Path(shared) / "windtunnel" if shared else Path.home() / ".cache" / "windtunnel"))
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(root, error) from None
    if not os.access(root, os.W_OK | os.X_OK):
        raise _unusable(root, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
    return root


def _unusable(root: Path, error: OSError) -> UserError:
    return UserError(f"cache folder {root} cannot be written: {error.strerror}", "set WINDTUNNEL_CACHE to a folder that can")


@contextlib.contextmanager
def locked(path: Path, waiting: Callable[[], None]) -> Iterator[bool]:
    """Hold the lock file, which the kernel frees when its holder dies; `waiting` is called if another has it.

    Gives False on a file system without locks: renaming is still atomic there, only work may be done twice.
    """
    while True:
        with open(path, "ab") as file:
            with contextlib.suppress(OSError):
                os.utime(path)  # when the data were last asked for
            held = True
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError:
                held = False
            if held and not _is_at(path, file.fileno()):
                continue  # removed while it was waited for: whoever comes next takes the new one
            yield held
            return


def _is_at(path: Path, descriptor: int) -> bool:
    """Return whether an open file is still the one of that name."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def new_folder(final: Path, alone: bool) -> Iterator[Path]:
    """Yield a temporary folder beside `final` that takes its place at the end; it is removed on any error.

    `alone`: the lock is held, so that other temporary folders were left by killed processes and are removed.

    Raises:
        UserError: the disk is full.
    """
    for stale in final.parent.glob(f".tmp-{final.name}-*") if alone else ():
        shutil.rmtree(stale, ignore_errors=True)
    folder = final.parent / f".tmp-{final.name}-{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir()
        yield folder
        # It is there where it is damaged or out of date; who has mapped its files keeps them.
        if final.exists():
            shutil.rmtree(final)
        os.rename(folder, final)
        fsync_folder(final.parent)  # a rename is lost in a power cut until its folder is written
    except OSError as error:
        if error.errno in _FULL:
            message = f"no space left for prepared data in {final.parent}: {error.strerror}"
            raise UserError(message, "free some space, or set WINDTUNNEL_CACHE to a larger disk") from None
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_free_space(folder: Path, needed: int) -> None:
    """Refuse before writing when `needed` bytes and a tenth more are not free. Raises UserError."""
    # A tenth for what else is written meanwhile.
    free, wanted = shutil.disk_usage(folder).free, int(needed * 1.1)
    if free < wanted:
        raise UserError(
            f"preparing the data needs {wanted / 1e9:.3g} GB in {folder}, {free / 1e9:.3g} GB are free",
            "free some space, set WINDTUNNEL_CACHE to a larger disk, or use a smaller corpus",
        )


@dataclass(frozen=True)
class CacheEntry:
    """Something that the cache holds.

    Attributes:
        size: bytes. used: when it was last asked for, in seconds since the epoch. busy: a process is writing it.
    """

    path: Path
    size: int
    used: float
    busy: bool


def cache_entries(root: Path) -> list[CacheEntry]:
    """Return the prepared data of a cache, the largest first, and what killed processes left half-written.

    Models that were fetched and measured speeds are not among them: nothing makes those again by itself.
    """
    found = []
    for folder in root.iterdir():
        lock = _lock_of(folder)
        if not folder.is_dir() or not lock.exists():
            continue
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        used = max(folder.stat().st_mtime, lock.stat().st_mtime)
        found.append(CacheEntry(folder, size, used, _is_held(lock)))
    return sorted(found, key=lambda entry: entry.size, reverse=True)


def remove_entry(entry: CacheEntry) -> bool:
    """Remove one, unless a process is writing it at this moment; whether it is gone."""
    if _is_held(_lock_of(entry.path)):
        return False
    shutil.rmtree(entry.path, ignore_errors=True)
    return not entry.path.exists()


def remove_locks(root: Path, age: float) -> int:
    """Remove lock files of data that are gone, that nobody holds or asked for in so many seconds; return how many."""
    removed = 0
    for lock in root.glob("[!.]*.lock"):
        name = lock.name.removesuffix(".lock")
        if (root / name).exists() or any(root.glob(f".tmp-{name}-*")):
            continue
        with contextlib.suppress(OSError), open(lock, "rb") as file:
            # Held while it goes: who waits for it sees that it is another file then (see `locked`).
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.time() - lock.stat().st_mtime >= age:
                lock.unlink()
                removed += 1
    return removed


def _lock_of(folder: Path) -> Path:
    """Return the lock under which a folder is written; .tmp-NAME-xxxxxxxx is NAME half-written."""
    half = folder.name.startswith(".tmp-")
    return folder.parent / f"{folder.name.removeprefix('.tmp-').rpartition('-')[0] if half else folder.name}.lock"


def _is_held(lock: Path) -> bool:
    if not lock.exists():
        return False
    try:
        with open(lock, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    return False
