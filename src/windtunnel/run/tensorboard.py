"""TensorBoard event files, without torch or TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


class TensorBoard:
    """Writes scalars and rewinds as `Metrics` hands them over; used from its thread only.

    The tensorboard package is imported at the first write. A failing disk turns it off: curves in
    SQLite are the ones that count.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writer: Any = None
        self._off = False

    def write(self, batch: Sequence[Any]) -> None:
        """Write the points and rewinds of a batch and flush."""
        if self._off:
            return
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary

        try:
            writer = self._open()
            for item in batch:
                if not isinstance(item, tuple):
                    continue
                if item[0] == "rewind":  # readers forget steps from this one on
                    writer.add_event(Event(step=item[1] + 1, session_log=SessionLog(status=SessionLog.START)))
                    continue
                _, step, values, when = item
                scalars = [Summary.Value(tag=name, simple_value=float(value)) for name, value in values.items()]
                writer.add_event(Event(step=step, wall_time=when, summary=Summary(value=scalars)))
            writer.flush()
        except OSError:
            self._off = True

    def close(self) -> None:
        """Flush and close the file."""
        if self._writer is not None and not self._off:
            self._writer.close()

    def _open(self) -> Any:
        if self._writer is None:
            from tensorboard.summary.writer.event_file_writer import EventFileWriter

            self.folder.mkdir(parents=True, exist_ok=True)
            self._writer = EventFileWriter(str(self.folder))
        return self._writer
