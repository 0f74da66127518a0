"""Makes batches of puzzles in processes of their own: `python -m windtunnel.data.sudoku_child BOX GRADE SEED SIZE`.

A child reads batch numbers from its standard input, one a line, writes each batch to its standard output and ends
with its input: when its parent is killed, so does it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
from collections.abc import Generator, Iterable
from types import TracebackType
from typing import IO

import numpy as np

from windtunnel.recipe import UserError

from .documents import Array
from .sudoku_make import Puzzles, make_batch
from .write import ordered_map


def batches(box: int, grade: int, seed: int, size: int, numbers: Iterable[int], processes: int) -> Generator[Puzzles, None, None]:
    """Yield `make_batch` of each number, in order, by so many processes; 1 makes them in this one."""
    if processes == 1:
        for number in numbers:
            yield make_batch(box, grade, seed, number, size)
        return
    with _Children([str(value) for value in (box, grade, seed, size)], box**4, processes) as children:
        made = ordered_map(children.make, numbers, threads=processes)
        try:
            yield from made
        finally:
            children.kill()  # what they still make is not wanted, and must not be waited for
            made.close()


class _Children:
    """Child processes, each busy with at most one batch."""

    def __init__(self, arguments: list[str], cells: int, processes: int) -> None:
        self._arguments, self._cells, self._number = arguments, cells, processes
        self._all: list[subprocess.Popen[bytes]] = []
        self._idle: queue.Queue[subprocess.Popen[bytes]] = queue.Queue()

    def __enter__(self) -> _Children:
        command = [sys.executable, "-m", __name__, *self._arguments]
        # A process a core: none needs threads of its own.
        environment = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        for _ in range(self._number):
            child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
            self._all.append(child)
            self._idle.put(child)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
        for child in self._all:
            for stream in (child.stdin, child.stdout):
                with contextlib.suppress(OSError):  # a number that the child never read
                    assert stream is not None
                    stream.close()
            child.wait()

    def kill(self) -> None:
        """End all of them now."""
        for child in self._all:
            child.kill()

    def make(self, number: int) -> Puzzles:
        """Return one batch, by whichever child is idle."""
        child = self._idle.get()
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(b"%d\n" % number)
            child.stdin.flush()
            return _receive(child.stdout, self._cells)
        except (OSError, ValueError):
            raise UserError("a process that made puzzles has ended, perhaps killed for memory", "start again") from None
        finally:
            self._idle.put(child)


def _send(out: IO[bytes], puzzles: Puzzles) -> None:
    parts = (puzzles.inputs, puzzles.solutions, puzzles.grades, puzzles.splits.astype("<u2"))
    out.write(len(puzzles).to_bytes(4, "little"))
    for part in parts:
        out.write(np.ascontiguousarray(part).tobytes())
    out.flush()


def _receive(source: IO[bytes], cells: int) -> Puzzles:
    n = int.from_bytes(_exactly(source, 4).tobytes(), "little")
    inputs, solutions = (_exactly(source, n * cells).reshape(n, cells) for _ in range(2))
    return Puzzles(inputs, solutions, _exactly(source, n), _exactly(source, 2 * n).view("<u2").astype(np.uint16))


def _exactly(source: IO[bytes], size: int) -> Array:
    content = source.read(size)
    if len(content) != size:
        raise ValueError("the stream has ended")
    return np.frombuffer(content, dtype=np.uint8)


def main(arguments: list[str]) -> None:
    """Make the batches whose numbers stand on standard input, one a line, until there are no more."""
    box, grade, seed, size = map(int, arguments)
    for line in sys.stdin:
        _send(sys.stdout.buffer, make_batch(box, grade, seed, int(line), size))


if __name__ == "__main__":
    main(sys.argv[1:])
