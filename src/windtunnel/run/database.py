"""The metrics database: its schema, opening it for writing or reading, and putting a damaged one aside."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from urllib.parse import quote

from windtunnel.recipe import UserError

FORMAT = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS series (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS points (
    series INTEGER NOT NULL REFERENCES series(id), step INTEGER NOT NULL, value REAL, time REAL NOT NULL,
    PRIMARY KEY (series, step)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY, time REAL NOT NULL, step INTEGER, kind TEXT NOT NULL, level TEXT NOT NULL,
    message TEXT NOT NULL, data TEXT NOT NULL);
"""


def connect_writer(path: Path) -> sqlite3.Connection:
    """Open or create for writing, in WAL mode so that readers never wait. Raises sqlite3.DatabaseError when damaged."""
    connection = sqlite3.connect(path, timeout=30.0, check_same_thread=False, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise sqlite3.DatabaseError(found)
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > FORMAT:
            raise UserError(f"{path}: metrics format {version}, this version reads {FORMAT}", "upgrade windtunnel")
        connection.executescript(_SCHEMA)
        connection.execute(f"PRAGMA user_version={FORMAT}")
    except BaseException:
        connection.close()
        raise
    return connection


def connect_reader(path: Path) -> sqlite3.Connection:
    """Open for reading while another process may write. Raises UserError: missing, damaged or not a metrics database."""
    if not path.is_file():
        raise UserError(f"metrics {path} do not exist", "name a run folder; `windtunnel runs` lists them")
    address = f"file:{quote(str(path.resolve()))}"
    error: Exception | None = None
    for options in ("?mode=ro", "?immutable=1"):  # the second for folders this user may not write to
        try:
            connection = sqlite3.connect(address + options, uri=True, timeout=10.0, check_same_thread=False)
            connection.execute("SELECT count(*) FROM series").fetchone()
            return connection
        except sqlite3.DatabaseError as found:
            error = error or found
    raise damaged(path, error)


def damaged(path: Path, error: Exception | None) -> UserError:
    """The error readers get for a database they can make no sense of."""
    return UserError(f"metrics {path} are damaged or not metrics: {error}", "resuming the run puts them aside and starts afresh")


def put_aside(path: Path) -> Path:
    """Rename a damaged database and its WAL to the next free '.damaged-N'; nothing is deleted."""
    number = 1
    while (target := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    path.rename(target)
    for suffix in ("-wal", "-shm"):
        beside = path.with_name(path.name + suffix)
        if beside.exists():
            beside.rename(target.with_name(target.name + suffix))
    return target
