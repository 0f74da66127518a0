"""Long series in few numbers: what a curve of some hundred points needs, reduced by SQLite and not by Python.

Points are summed up by the block as they are written, in the writer's own transaction; a curve of a long run is read from these.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # whose module imports this one
    from .metrics import MetricsReader

# Small enough that a batch renews few points, large enough that a million steps are 16,000 rows.
BLOCK = 64
"""Steps of a block; block 0 begins at step 0."""
SCHEMA = """
CREATE TABLE IF NOT EXISTS blocks (
    series INTEGER NOT NULL REFERENCES series(id), block INTEGER NOT NULL, last INTEGER NOT NULL, time REAL NOT NULL,
    low REAL, total REAL, high REAL, numbers INTEGER NOT NULL, points INTEGER NOT NULL,
    PRIMARY KEY (series, block)) WITHOUT ROWID;
"""
_SUMS = "max(step), max(time), min(value), sum(value), max(value), count(value), count(*)"
_OF = "SELECT id FROM series WHERE name = ?1"


class Stretch(NamedTuple):
    """Neighbouring points of a series as one.

    Attributes:
        step, time: of the last one. low, mean, high: of those that are numbers; None where there is none.
        points: how many there are.
    """

    step: int
    time: float
    low: float | None
    mean: float | None
    high: float | None
    points: int


def stretches(reader: MetricsReader, name: str, most: int, *, since: int = -1) -> list[Stretch]:
    """Return a series in at most about `most` stretches of equally many steps; a short series point by point.

    A long one, whole, is read from its blocks: then there may be half as many stretches.

    Args:
        reader: of the run's metrics.
        name: of the series; one that was never logged has no stretches.
        most: stretches.
        since: only points of later steps.
    """
    ends = _ends(reader, name, since)
    if ends is None:
        return []
    first, last = ends
    # LIMIT: counting all points of a long series would read them.
    few = reader.rows(
        f"SELECT count(*) FROM (SELECT 1 FROM points WHERE series = ({_OF}) AND step > ?2 LIMIT ?3)", (name, since, most + 1)
    )
    if few[0][0] <= most:
        rows = reader.rows(
            f"SELECT step, time, value, value, value, 1 FROM points WHERE series = ({_OF}) AND step > ?2 ORDER BY step",
            (name, since),
        )
        return [Stretch(*row) for row in rows]
    # Rounded up, or there would be one stretch too many.
    width = -(-(last - first + 1) // most)
    # Of a part that begins within a block, its sums say nothing.
    if since < 0 and 2 * width > BLOCK and reader.rows("SELECT 1 FROM sqlite_master WHERE name = 'blocks'"):
        return _of_blocks(reader, name, most, first // BLOCK, last // BLOCK)
    # A look into the index for each stretch: GROUP BY would sort all points first.
    found = [
        reader.rows(
            "SELECT max(step), max(time), min(value), avg(value), max(value), count(*) FROM points"
            f" WHERE series = ({_OF}) AND step >= ?2 AND step < ?3",
            (name, start, start + width),
        )[0]
        for start in range(first, last + 1, width)
    ]
    return [Stretch(*row) for row in found if row[0] is not None]


def _ends(reader: MetricsReader, name: str, since: int) -> tuple[int, int] | None:
    """Return the first and the last step of a series after a step; None: there is none."""
    # Two queries: SQLite looks one end up in the index, but reads all points for both at once.
    where = f"FROM points WHERE series = ({_OF}) AND step > ?2"
    first, last = reader.rows(f"SELECT (SELECT min(step) {where}), (SELECT max(step) {where})", (name, since))[0]
    return None if first is None else (first, last)


def _of_blocks(reader: MetricsReader, name: str, most: int, first: int, last: int) -> list[Stretch]:
    """Return a series in at most `most` stretches, from the blocks that its writer summed up (see `blocks`)."""
    rows = reader.rows(
        # A sum that has both infinities is no number, and has no mean.
        "SELECT max(last), max(time), min(low), sum(total) / sum(numbers) FILTER (WHERE total IS NOT NULL), max(high),"
        f" sum(points) FROM blocks WHERE series = ({_OF}) GROUP BY (block - ?2) / ?3 ORDER BY 1",
        (name, first, -(-(last - first + 1) // most)),
    )
    return [Stretch(*row) for row in rows]


def sampled(reader: MetricsReader, name: str, most: int) -> list[float]:
    """Return at most `most` finite values of a series at equal distances, oldest first, without reading the others."""
    ends = _ends(reader, name, -1)
    if ends is None:
        return []
    first, last = ends
    # By step, not by count: the index finds a step at once, the n-th row only by walking there.
    wanted = sorted({first + (last - first) * i // max(1, most - 1) for i in range(most)})
    found = [
        reader.rows(f"SELECT step, value FROM points WHERE series = ({_OF}) AND step >= ?2 ORDER BY step LIMIT 1", (name, step))
        for step in wanted
    ]
    values = {rows[0][0]: rows[0][1] for rows in found if rows}
    return [value for value in values.values() if value is not None and abs(value) < float("inf")]


class Touched:
    """The blocks that a batch of points changes.

    Args:
        connection: to the database, in the transaction that writes the points.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._blocks: dict[int, set[int]] = defaultdict(set)

    def add(self, series: int, step: int) -> None:
        """Note that a point was written."""
        self._blocks[series].add(step // BLOCK)

    def rewind(self, step: int) -> None:
        """Note that all points of later steps are gone."""
        self._connection.execute("DELETE FROM blocks WHERE block > ?", (step // BLOCK,))
        for (series,) in self._connection.execute("SELECT id FROM series").fetchall():
            self.add(series, step)

    def renew(self) -> None:
        """Sum up again what was touched."""
        for series, blocks in self._blocks.items():
            for block in blocks:
                self._connection.execute("DELETE FROM blocks WHERE series = ? AND block = ?", (series, block))
                self._connection.execute(
                    f"INSERT INTO blocks SELECT series, ?2, {_SUMS} FROM points"
                    " WHERE series = ?1 AND step >= ?3 AND step < ?4 GROUP BY series",
                    (series, block, block * BLOCK, (block + 1) * BLOCK),
                )


def sum_up(connection: sqlite3.Connection) -> None:
    """Make all blocks of a database whose points were written without them, in the caller's transaction."""
    connection.execute("DELETE FROM blocks")
    connection.execute(f"INSERT INTO blocks SELECT series, step / {BLOCK}, {_SUMS} FROM points GROUP BY series, step / {BLOCK}")
