"""TensorBoard event files, without torch or TensorFlow."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

MOST_WAITING = 100_000
"""Events that are kept while the folder cannot be written; older ones are dropped."""
_numbers = itertools.count()


class TensorBoard:
    """Writes scalars and rewinds as `Metrics` hands them over; used from its thread only.

    The file stays open and is not found by its path each time, as tensorboard's own writer does: a run's folder may be moved
    while its job runs. Where another disk took it, a new file is begun as soon as the folder is there again, and what could not
    be written until then comes first. Nothing is raised: curves in SQLite are the ones that count.

    Args:
        folder: where to; its parent must be there when the first point comes. It is made again, but never its parent: a run
            that was moved must not come back in its old place.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: IO[bytes] | None = None
        self._path = folder
        self._waiting: list[Any] = []

    def write(self, batch: Sequence[Any]) -> None:
        """Write the points and rewinds of a batch, after those that could not be written before.

        Args:
            batch: as `Metrics` queues them: ('points', step, values by name, seconds since the epoch) and ('rewind', step);
                what else is in it is passed over.
        """
        # tensorboard is imported at the first write.
        self._waiting += [event for item in batch if isinstance(item, tuple) for event in [_event(item)]]
        del self._waiting[:-MOST_WAITING]
        if not self._waiting:
            return
        try:
            if self._file is not None and self._lost(self._file):
                self._drop()
            file = self._file or self._open()
            _put(file, self._waiting)
            self._waiting.clear()
        except OSError:
            self._drop()  # half an event may be at its end, which readers pass over only at the end of a file

    def close(self) -> None:
        """Close the file."""
        self._drop()

    def _lost(self, file: IO[bytes]) -> bool:
        """Return whether what is written would reach nobody: the file was deleted, or the folder's copy is on another disk."""
        own = os.fstat(file.fileno())
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return own.st_nlink == 0  # else it was moved, and goes on being written where it is
        return (own.st_dev, own.st_ino) != (there.st_dev, there.st_ino)

    def _open(self) -> IO[bytes]:
        """Begin a new file, as TensorBoard finds them. Raises OSError."""
        from tensorboard.compat.proto.event_pb2 import Event

        self.folder.mkdir(exist_ok=True)
        now = time.time()
        self._path = self.folder / f"events.out.tfevents.{int(now):010d}.{socket.gethostname()}.{os.getpid()}.{next(_numbers)}"
        self._file = open(self._path, "ab")  # noqa: SIM115 - open as long as the run
        _put(self._file, [Event(wall_time=now, file_version="brain.Event:2")])
        return self._file

    def _drop(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None


def _event(item: tuple[Any, ...]) -> Any:
    """Return TensorBoard's event for points or a rewind."""
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import Summary

    if item[0] == "rewind":  # readers forget steps from this one on
        return Event(step=item[1] + 1, session_log=SessionLog(status=SessionLog.START))
    _, step, values, when = item
    scalars = [Summary.Value(tag=name, simple_value=float(value)) for name, value in values.items()]
    return Event(step=step, wall_time=when, summary=Summary(value=scalars))


def _put(file: IO[bytes], events: Sequence[Any]) -> None:
    """Write events to the end of a file, whole. Raises OSError."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    writer = RecordWriter(file)
    for event in events:
        writer.write(event.SerializeToString())
    writer.flush()
