"""Points of a run's series summed up by the block, kept as they are written: a curve of a long run is read from these."""

from __future__ import annotations

import sqlite3
from collections import defaultdict

BLOCK = 64
"""Steps of a block; block 0 begins at step 0."""
SCHEMA = """
CREATE TABLE IF NOT EXISTS blocks (
    series INTEGER NOT NULL REFERENCES series(id), block INTEGER NOT NULL, last INTEGER NOT NULL, time REAL NOT NULL,
    low REAL, total REAL, high REAL, numbers INTEGER NOT NULL, points INTEGER NOT NULL,
    PRIMARY KEY (series, block)) WITHOUT ROWID;
"""
_SUMS = "max(step), max(time), min(value), sum(value), max(value), count(value), count(*)"


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
