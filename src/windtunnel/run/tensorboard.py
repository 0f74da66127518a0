"""TensorBoard event files, without torch or TensorFlow."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import struct
import time
from collections.abc import Sequence
from functools import cache
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
        # TensorBoard finds files by 'tfevents' in their names and reads them in the order of the time in it.
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
    """Write events to the end of a file, whole. Raises OSError.

    Each is framed as TFRecord frames it. tensorboard's own writer imports boto3 and more, which takes as long as a training step.
    """
    for event in events:
        data = event.SerializeToString()
        size = struct.pack("<Q", len(data))
        file.write(size + _checksum(size) + data + _checksum(data))
    file.flush()


def _checksum(data: bytes) -> bytes:
    """Return the CRC-32C of bytes, masked as TFRecord wants it."""
    table, crc = _table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    # The mask, a rotation and a constant, is TFRecord's (tensorflow/core/lib/hash/crc32c.h): a checksum of data that holds
    # checksums is weak.
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


@cache
def _table() -> tuple[int, ...]:
    """Return what each byte adds to a CRC-32C (Castagnoli's polynomial, bits reversed)."""
    found = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        found.append(byte)
    return tuple(found)
