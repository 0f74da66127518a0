"""Following files that grow, that are rotated, and that appear while others are followed."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from windtunnel.run import is_live


class Tail:
    """What a file gets, from a place on; a file that was rotated is read to its end, and then the new one.

    Args:
        path: of the file, which need not be there yet.
        before: is put before each line.
        start: bytes of it that are known.
    """

    def __init__(self, path: Path, before: str = "", start: int = 0) -> None:
        self._path, self._before, self._start = path, before, start
        self._file: IO[str] | None = None
        self._rest = ""

    def pass_on(self, to: IO[str], *, last: bool = False) -> None:
        """Write what is new; a line that is not whole waits for its end, but where this is the `last` look."""
        with contextlib.suppress(FileNotFoundError):
            # The same name and another file: it was rotated, and the old one may have lines that were not read yet.
            if self._file is None or os.fstat(self._file.fileno()).st_ino != self._path.stat().st_ino:  # first, or rotated
                fresh = open(self._path, encoding="utf-8", errors="replace")  # noqa: SIM115 - closed below
                if self._file is None:
                    fresh.seek(self._start)
                else:
                    self._write(self._file.read(), to)
                    self._file.close()
                self._file = fresh
        if self._file is not None:
            self._write(self._file.read(), to)
        if last and self._rest:
            to.write(f"{self._before}{self._rest}\n")
            self._rest = ""

    def close(self) -> None:
        """Let the file go."""
        if self._file is not None:
            self._file.close()

    def _write(self, text: str, to: IO[str]) -> None:
        *lines, self._rest = (self._rest + text).split("\n")
        to.writelines(f"{self._before}{line}\n" for line in lines)


def follow_logs(
    folder: Path, find: Callable[[], Mapping[Path, str]], to: IO[str], known: Mapping[Path, int], interval: float = 0.3
) -> None:
    """Print what a run's logs get until nobody trains it any more.

    Args:
        folder: of the run.
        find: returns the files that are followed now, each with what is put before its lines.
        to: where lines are printed.
        known: bytes of files that have been printed.
        interval: seconds between two looks.
    """
    tails: dict[Path, Tail] = {}
    try:
        while True:
            # Before reading: what it prints last, after this look, is then read by the next one.
            live = is_live(folder)
            for path, before in find().items():
                tail = tails.setdefault(path, Tail(path, before, known.get(path, 0)))
                tail.pass_on(to, last=not live)
            to.flush()
            if not live:
                return
            time.sleep(interval)
    finally:
        for tail in tails.values():
            tail.close()


def last_lines(paths: Sequence[Path], before: str, most: int | None, known: Mapping[Path, int]) -> list[str]:
    """Return the lines of files, the oldest first.

    Args:
        paths: of the files.
        before: is put before each line.
        most: only the last so many; None: all.
        known: bytes of a file that are read; of others all.
    """
    found: deque[str] = deque(maxlen=most)
    for path in paths:
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            text = file.read(known.get(path, -1)).decode("utf-8", "replace")
            found.extend(f"{before}{line}\n" for line in text.removesuffix("\n").split("\n") if text)
    return list(found)
