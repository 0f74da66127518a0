"""The file of a run's metrics as its writer has it: opened, put aside where it is damaged, written again where it was deleted."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windtunnel.recipe import UserError

from . import thinned

FORMAT = 2
"""1 had no thinned."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS series (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS points (
    series INTEGER NOT NULL REFERENCES series(id), step INTEGER NOT NULL, value REAL, time REAL NOT NULL,
    PRIMARY KEY (series, step)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY, time REAL NOT NULL, step INTEGER, kind TEXT NOT NULL, level TEXT NOT NULL,
    message TEXT NOT NULL, data TEXT NOT NULL);
"""


LEAST_PAGES, MOST_PAGES = 16, 1000
SLACK = 1 << 18
"""Bytes that are left free beside what checkpoints need: for small files, and for the batch being written."""
VALUE_BYTES = 64
"""What a value takes, at most: in the log and then in the file."""


def connect_writer(path: Path) -> sqlite3.Connection:
    """Open or create for writing, in WAL mode so that readers never wait. Raises sqlite3.DatabaseError when damaged."""
    # Made here and used by the thread alone, which sqlite3 would refuse without check_same_thread. isolation_level None: BEGIN
    # is ours to say.
    connection = sqlite3.connect(path, timeout=30.0, check_same_thread=False, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        # Its log is copied into the file once it has so many pages, by default 4 MB: on a small disk 1 % of it.
        pages = max(LEAST_PAGES, min(MOST_PAGES, shutil.disk_usage(path.parent).total // 100 // 4096))
        connection.execute(f"PRAGMA wal_autocheckpoint={pages}")
        connection.execute(f"PRAGMA journal_size_limit={pages * 4096}")
        # A power cut may then cost the last commits, never the file, and no commit waits for the disk.
        connection.execute("PRAGMA synchronous=NORMAL")
        # Damage shows itself only where a page is read: better now than in the middle of a run.
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise sqlite3.DatabaseError(found)
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > FORMAT:
            raise UserError(f"{path}: metrics format {version}, this version reads {FORMAT}", "upgrade windtunnel")
        connection.executescript(_SCHEMA)
        if version < FORMAT:
            # In one go: a reader that sees the table may trust that it is whole.
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(thinned.SCHEMA)
            thinned.sum_up(connection)
            connection.execute(f"PRAGMA user_version={FORMAT}")
            connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def put_aside(path: Path) -> Path:
    """Rename a damaged database and its WAL to the next free '.damaged-N'; nothing is deleted."""
    number = 1
    while (target := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    path.rename(target)
    # SQLite would apply the old log to the new database.
    for suffix in ("-wal", "-shm"):
        beside = path.with_name(path.name + suffix)
        if beside.exists():
            beside.rename(target.with_name(target.name + suffix))
    return target


class DatabaseFile:
    """A database's file and log under their names, held beside the connection: SQLite goes on writing to ones that were deleted.

    Args:
        path: of a database that was just opened.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._log = path, path.with_name(f"{path.name}-wal")
        # A descriptor that can only be asked about: closing another one would give up SQLite's locks on the file.
        self._held = os.open(path, getattr(os, "O_PATH", os.O_RDONLY))
        self._logged = self._log.exists()  # not on every network's disk

    def lost(self) -> bool:
        """Return whether what is written would reach nobody: a file was deleted or replaced. A run may be moved as a whole."""
        if not self.path.parent.is_dir():
            return False
        return self._deleted or not self.path.exists() or (self._logged and not self._log.exists())

    def restore(self, connection: sqlite3.Connection) -> str:
        """Write all that was lost under its name again: SQLite still reads it.

        Returns:
            what became of it, in words.

        Raises:
            sqlite3.OperationalError: there is no room for it; nothing has changed then.
            OSError: likewise.
        """
        words = f"{self.path} was deleted or replaced while the run wrote to it: "
        fresh, whole = self.path.with_name(f"{self.path.name}.tmp-{os.getpid()}"), True
        try:
            with contextlib.closing(sqlite3.connect(fresh)) as copy:
                connection.backup(copy)
        except sqlite3.DatabaseError as error:
            fresh.unlink(missing_ok=True)
            if isinstance(error, sqlite3.OperationalError):
                raise
            whole = False
        words += "all that it held is there again" if whole else "what it held is lost, and later metrics go into a new one"
        if self.path.exists() and (self._deleted or not whole):
            words += f"; what lay in its place is {put_aside(self.path).name} now"
        # The log of what was lost goes with it.
        for suffix in ("-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        if whole:
            fresh.rename(self.path)
        return words

    def close(self) -> None:
        """Let the file go, after its connection."""
        os.close(self._held)

    @property
    def _deleted(self) -> bool:
        return os.fstat(self._held).st_nlink == 0


@dataclass
class Room:
    """How much of a disk metrics may take: what checkpoints of the same run need goes before.

    Attributes:
        wanted: gives the bytes that the next checkpoint needs, and that all which are kept will need beside what is there.
    """

    wanted: Callable[[], tuple[int, int]]

    def lacking(self, path: Path) -> int | None:
        """Return the bytes that are free where metrics have to give way; None where they need not.

        They need not where they are small beside a checkpoint, and all of theirs would not make the room that it lacks.
        """
        try:
            free = shutil.disk_usage(path.parent).free
        except OSError:  # a run that was moved
            return None
        held = _bytes_of(path)
        lacks = [(size, size + SLACK - free) for size in self.wanted()]
        return free if any(lack > 0 and held >= min(lack, size // 100) for size, lack in lacks) else None


def fitting(batch: Sequence[Any], path: Path) -> list[Any]:
    """Return what of a batch fits on a disk: all but points, and of points those of every so many steps and the last.

    Args:
        batch: as `Metrics` queues it.
        path: of the database. Raises OSError.
    """
    points = [item for item in batch if isinstance(item, tuple) and item[0] == "points"]
    room = max(1, shutil.disk_usage(path.parent).free - SLACK)
    every = max(1, -(-VALUE_BYTES * sum(len(item[2]) for item in points) // room))
    dropped = {id(item) for number, item in enumerate(reversed(points)) if number % every}
    return [item for item in batch if id(item) not in dropped]


def _bytes_of(path: Path) -> int:
    """Return the bytes of a database and its log on the disk."""
    total = 0
    for each in (path, path.with_name(f"{path.name}-wal")):
        with contextlib.suppress(OSError):
            total += each.stat().st_size
    return total
