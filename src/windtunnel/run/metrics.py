"""Metrics and events of a run: SQLite for windtunnel's own views, TensorBoard for everyone else's.

The step loop only puts values on a queue; a thread commits them in batches at least once a second.
"""

from __future__ import annotations

import contextlib
import json
import math
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

from windtunnel.recipe import UserError

from . import thinned
from .database import DatabaseFile, Room, connect_writer, fitting, put_aside
from .tensorboard import TensorBoard

Level = Literal["info", "warn", "bad"]
# A view that is half a second old is live; more commits would only wear the disk.
_PERIOD = 0.5
# What a run holds while its disk is full, before the oldest is given up.
_MOST_WAITING = 1_000_000
_FLUSH_SECONDS = 30.0
# A checkpoint that is being written takes room for a moment: nothing to tell of.
_TOLD_AFTER = 10.0
# In which the tables of a new file are made.
_MADE_SECONDS = 1.0


class Point(NamedTuple):
    """One value of a series; `time` in seconds since the epoch."""

    step: int
    value: float
    time: float


@dataclass(frozen=True)
class Event:
    """Something that happened in a run."""

    time: float
    step: int | None
    kind: str
    level: str
    message: str
    data: dict[str, Any] = field(default_factory=dict)


class MetricsReader:
    """Reads a run's metrics, also while another process writes them.

    Raises:
        UserError: the file is missing, damaged or no metrics database.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._connection = _connect_reader(self.path)

    def names(self) -> list[str]:
        """Names of all series that have points."""
        rows = self.rows("SELECT name FROM series WHERE EXISTS (SELECT 1 FROM points WHERE series = id) ORDER BY name")
        return [row[0] for row in rows]

    def series(self, name: str, since: int = -1) -> list[Point]:
        """Points of a series with step > `since`, by step. Empty for a name that was never logged."""
        rows = self.rows(
            "SELECT step, value, time FROM points"
            " WHERE series = (SELECT id FROM series WHERE name = ?) AND step > ? ORDER BY step",
            (name, since),
        )
        return [Point(step, _read(value), when) for step, value, when in rows]

    def latest(self) -> dict[str, Point]:
        """Return the newest point of every series, by its name."""
        rows = self.rows(
            # CROSS: the series first, then one look into the index each; otherwise SQLite reads all points.
            "SELECT name, step, value, time FROM series CROSS JOIN points ON series = id"
            " WHERE step = (SELECT max(step) FROM points AS own WHERE own.series = id)"
        )
        return {name: Point(step, _read(value), when) for name, step, value, when in rows}

    def events(self, kind: str | None = None, last: int | None = None) -> list[Event]:
        """Events in the order they happened; the last few only, if asked."""
        rows = self.rows(
            # The newest by number first, so that the limit cuts the oldest; then in order again.
            "SELECT * FROM (SELECT id, time, step, kind, level, message, data FROM events"
            " WHERE ?1 IS NULL OR kind = ?1 ORDER BY id DESC LIMIT ?2) ORDER BY id",
            (kind, -1 if last is None else last),
        )
        return [Event(r[1], r[2], r[3], r[4], r[5], json.loads(r[6])) for r in rows]

    def close(self) -> None:
        """Let the file go."""
        self._connection.close()

    def __enter__(self) -> MetricsReader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def rows(self, query: str, arguments: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Return what a query of the tables gives. Raises UserError: the database is damaged."""
        try:
            return self._connection.execute(query, arguments).fetchall()
        except sqlite3.DatabaseError as error:
            raise _damaged(self.path, error) from None


class Metrics:
    """Writes a run's metrics; one writer a run.

    A damaged database is put aside as `<name>.damaged-N`, one that is deleted while it is written is written again, and an event
    says so.

    Args:
        path: the SQLite file; made if missing.
        tensorboard_dir: event files go here too; None: none are written.
        resume_step: points of later steps are dropped, so that curves have no double points.

    Attributes:
        problem: why the last batch is not on disk yet, if it is not. damage: that the database was damaged and was put aside.
        on_problem: told, from the thread that writes, what the run's user should know.
        room: for which metrics give way; None: for nothing.
    """

    def __init__(self, path: Path | str, tensorboard_dir: Path | str | None = None, *, resume_step: int | None = None) -> None:
        self.path = Path(path)
        self.problem: str | None = None
        self.damage: str | None = None
        self.on_problem: Callable[[str], None] = lambda text: None
        self.room: Room | None = None
        self._waits_since: float | None = None  # what is not on disk yet
        self._told_waiting = False
        self._ids: dict[str, int] = {}
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._waiting: list[Any] = []
        self._notes: list[Event] = []
        self._connection = self._open()
        self._database_file = DatabaseFile(self.path)
        self._tensorboard = TensorBoard(Path(tensorboard_dir)) if tensorboard_dir is not None else None
        self._closed = False
        # A daemon: a process that ends by an exception does not wait for a full disk.
        self._thread = threading.Thread(target=self._work, name="metrics", daemon=True)
        self._thread.start()
        if resume_step is not None:
            self.rewind(resume_step)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record values of a step. Never blocks; a step logged again replaces its value."""
        self._queue.put(("points", step, {name: float(value) for name, value in values.items()}, time.time()))

    def event(
        self, kind: str, step: int | None, message: str, level: Level = "info", data: Mapping[str, Any] | None = None
    ) -> None:
        """Record that something happened. Never thinned. `data` must be JSON."""
        self._queue.put(Event(time.time(), step, kind, level, message, dict(data or {})))

    def rewind(self, step: int) -> None:
        """Drop points after `step`: the run goes back there. Events stay, they did happen."""
        self._queue.put(("rewind", step))

    def flush(self) -> None:
        """Wait until what was logged before is on disk. Raises UserError when it cannot be written."""
        done = threading.Event()
        self._queue.put(done)
        if not done.wait(_FLUSH_SECONDS) or self.problem:
            raise UserError(f"metrics {self.path} cannot be written: {self.problem or 'time-out'}", "free space on that disk")

    def close(self) -> None:
        """Write what is waiting and stop. Losing metrics to a full disk is not worth failing a run: see `problem`."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            self._thread.join()

    def __enter__(self) -> Metrics:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _open(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                return connect_writer(self.path)
            except sqlite3.OperationalError as error:
                raise UserError(f"metrics {self.path} cannot be opened: {error}") from None
            except sqlite3.DatabaseError as error:
                return self._start_afresh(error)
        except OSError as error:
            raise UserError(f"metrics {self.path} cannot be opened: {error.strerror or error}") from None

    def _start_afresh(self, error: Exception) -> sqlite3.Connection:
        aside = put_aside(self.path)
        self._ids.clear()
        message = f"metrics were damaged ({error}); they were put aside as {aside.name} and start afresh"
        self.damage = f"{self.path}: {message}"
        self._notes.append(Event(time.time(), None, "metrics_damaged", "bad", message))
        return connect_writer(self.path)

    def _work(self) -> None:
        for item in self._notes:
            self._waiting.append(item)
        ending = False
        due = time.monotonic()
        while not ending:
            flushes, ending = self._collect(due)
            (self._commit_last if ending else self._commit)()
            due = time.monotonic() + _PERIOD
            for flush in flushes:
                flush.set()
        self._connection.close()
        self._database_file.close()
        if self._tensorboard:
            self._tensorboard.close()

    def _collect(self, due: float) -> tuple[list[threading.Event], bool]:
        """Take items until the next commit is due, or someone waits for one."""
        flushes: list[threading.Event] = []
        while True:
            left = due - time.monotonic()
            if left <= 0 and self._waiting:
                return flushes, False
            try:
                item = self._queue.get(timeout=left if left > 0 else _PERIOD)
            except queue.Empty:
                continue
            if item is None:
                return flushes, True
            if isinstance(item, threading.Event):
                flushes.append(item)
                return flushes, False
            self._waiting.append(item)

    def _commit(self) -> None:
        if not self._waiting:
            return
        batch = self._waiting
        try:
            if self._database_file.lost():
                self._restore()
            if (free := self.room.lacking(self.path) if self.room else None) is not None:
                self._wait(f"the {free / 2**20:,.1f} MiB that are free are for checkpoints")
                return
            self._write(batch)
            self.problem = self._waits_since = None
        except (sqlite3.OperationalError, OSError) as error:  # disk full, locked: keep the batch and try again
            self._rollback()
            self._wait(str(error))
            return
        except sqlite3.DatabaseError as error:
            self._recover(error)
            return
        self._waiting = []
        # After SQLite has it: a batch that failed there comes again, and event files cannot take back what they have.
        if self._tensorboard:
            self._tensorboard.write(batch)

    def _commit_last(self) -> None:
        """Write what there is room for: nothing is held back for checkpoints any more."""
        everything, self.room = len(self._waiting), None
        with contextlib.suppress(OSError):
            if self._waits_since is not None:
                self._waiting = fitting(self._waiting, self.path)
        written = len(self._waiting)
        self._commit()
        lost = everything - (0 if self._waiting else written)
        if lost:
            self.on_problem(f"metrics {self.path}: {lost:,} of the last {everything:,} entries found no room and are lost")

    def _wait(self, problem: str) -> None:
        """Keep what is waiting until there is room for it, and tell once where that takes its time."""
        self.problem = problem
        del self._waiting[:-_MOST_WAITING]
        now = time.monotonic()
        self._waits_since = self._waits_since or now
        if self._told_waiting or now - self._waits_since < _TOLD_AFTER:
            return
        self._told_waiting = True
        words = f"metrics {self.path} wait for room: {problem}. Training goes on; curves and events follow once there is room"
        self._waiting.append(Event(time.time(), None, "metrics_wait", "warn", words))
        self.on_problem(words)

    def _restore(self) -> None:
        """Write a database that was deleted under our hands again. Raises sqlite3.DatabaseError, OSError."""
        words = self._database_file.restore(self._connection)
        self._reopen(connect_writer(self.path))
        self._waiting.append(Event(time.time(), None, "metrics_deleted", "warn", words))
        self.on_problem(words)

    def _reopen(self, connection: sqlite3.Connection) -> None:
        """Take another connection for the one there is, whose file is gone or put aside."""
        self._connection.close()
        self._database_file.close()
        self._connection, self._database_file = connection, DatabaseFile(self.path)
        self._ids.clear()

    def _recover(self, error: Exception) -> None:
        """Put aside the database, which was damaged under our hands, and go on with a fresh one."""
        self.problem = str(error)
        self._connection.close()
        self._notes = []
        try:
            self._reopen(self._start_afresh(error))
            self._write([*self._notes, *self._waiting])
        except (sqlite3.DatabaseError, OSError) as again:
            self.problem = str(again)
            return
        self.problem, self._waiting = None, []
        self.on_problem(self._notes[0].message)

    def _rollback(self) -> None:
        self._ids.clear()  # series that were made in it are gone with it
        if self._connection.in_transaction:
            self._connection.rollback()

    def _write(self, batch: list[Any]) -> None:
        run = self._connection
        # IMMEDIATE takes the lock now; a transaction that begins by reading can find it taken in the middle, and fail at once.
        run.execute("BEGIN IMMEDIATE")
        touched = thinned.Touched(run)
        for item in batch:
            if isinstance(item, Event):
                run.execute(
                    "INSERT INTO events (time, step, kind, level, message, data) VALUES (?, ?, ?, ?, ?, ?)",
                    (item.time, item.step, item.kind, item.level, item.message, json.dumps(item.data, default=str)),
                )
            elif item[0] == "rewind":
                run.execute("DELETE FROM points WHERE step > ?", (item[1],))
                touched.rewind(item[1])
            else:
                _, step, values, when = item
                rows = [(self._id(name), step, _stored(value), when) for name, value in values.items()]
                run.executemany("INSERT OR REPLACE INTO points VALUES (?, ?, ?, ?)", rows)
                for series, *_ in rows:
                    touched.add(series, step)
        touched.renew()
        run.execute("COMMIT")

    def _id(self, name: str) -> int:
        if name not in self._ids:
            self._connection.execute("INSERT OR IGNORE INTO series (name) VALUES (?)", (name,))
            row = self._connection.execute("SELECT id FROM series WHERE name = ?", (name,)).fetchone()
            self._ids[name] = row[0]
        return self._ids[name]


def _stored(value: float) -> float | None:
    number = float(value)
    return None if math.isnan(number) else number  # SQLite has no NaN


def _read(value: float | None) -> float:
    return math.nan if value is None else value


def _connect_reader(path: Path) -> sqlite3.Connection:
    """Open for reading while another process may write. Raises UserError: missing, damaged or not a metrics database."""
    if not path.is_file():
        raise UserError(f"metrics {path} do not exist", "name a run folder; `windtunnel runs` lists them")
    address = f"file:{quote(str(path.resolve()))}"
    until = time.monotonic() + _MADE_SECONDS
    while True:
        error: Exception | None = None
        for options in ("?mode=ro", "?immutable=1"):  # the second for folders this user may not write to
            try:
                connection = sqlite3.connect(address + options, uri=True, timeout=10.0, check_same_thread=False)
                try:
                    connection.execute("SELECT count(*) FROM series").fetchone()
                except sqlite3.DatabaseError:
                    connection.close()
                    raise
                return connection
            except sqlite3.DatabaseError as found:
                error = error or found
        # A run that has just begun has the file a moment before its tables.
        if "no such table" not in str(error) or time.monotonic() > until:
            raise _damaged(path, error)
        time.sleep(0.05)


def _damaged(path: Path, error: Exception | None) -> UserError:
    """Return the error that readers get for a database they can make no sense of."""
    return UserError(f"metrics {path} are damaged or not metrics: {error}", "resuming the run puts them aside and starts afresh")
