"""Work in processes of their own: each is `python -m windtunnel.data.children`, which reads a function, then its arguments.

Threads share one interpreter lock, so what Python itself does for each record takes one core however many there are. A
child reads pickles from its standard input, answers each on its standard output and ends with its input: when its parent is
killed, so does it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import queue
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from types import TracebackType
from typing import Any, TypeVar

from windtunnel.recipe import UserError

from .write import cores, ordered_map

T = TypeVar("T")
R = TypeVar("R")

MOST = 8  # processes that one reader and one writer can keep busy
_PIPE = 1 << 20  # bytes: with the usual 64 KiB both ends wait for one another at every part
# A process a core: none needs threads of its own.
_ALONE = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"), "1"),
    "TOKENIZERS_PARALLELISM": "false",
}


def processes_for(size: int, worth: int = 64 << 20) -> int:
    """Return how many processes to spread `size` bytes over; below `worth` all is done before processes have started."""
    return 1 if size < worth else min(cores(), MOST)


def in_processes(work: Callable[[T], R], items: Iterable[T], processes: int) -> Generator[tuple[T, R], None, None]:
    """Yield each item and the `work` of it, in order, by so many processes; 1 does it in this one. Few are in memory at once.

    `work` can be pickled, as functions of a module, partials of them and instances of its classes can.

    Raises:
        UserError: a process was ended from outside. Whatever `work` raises is raised here, in the order of the items.
    """
    if processes == 1:
        with _rarely_collected():
            for item in items:
                yield item, work(item)
        return
    with _rarely_collected(), Children(work, processes) as children:
        made = ordered_map(lambda item: (item, children.run(item)), items, threads=processes)
        try:
            yield from made
        finally:
            children.kill()  # what they still make is not wanted, and must not be waited for
            made.close()


@contextlib.contextmanager
def _rarely_collected() -> Iterator[None]:
    """Look for cycles of objects seldom: records are many small objects without any, gone through over and over otherwise."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 50, 1000)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class Children:
    """Child processes, each busy with at most one item."""

    def __init__(self, work: Callable[[Any], Any], processes: int) -> None:
        self._work, self._number = work, processes
        self._all: list[subprocess.Popen[bytes]] = []
        self._idle: queue.Queue[subprocess.Popen[bytes]] = queue.Queue()

    def __enter__(self) -> Children:
        environment = os.environ | _ALONE | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        for _ in range(self._number):
            child = subprocess.Popen(
                [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, pipesize=_PIPE
            )
            self._all.append(child)
            with contextlib.suppress(OSError):  # whoever gives it work says that it has ended
                _send(child, self._work)
            self._idle.put(child)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
        for child in self._all:
            for stream in (child.stdin, child.stdout):
                with contextlib.suppress(OSError):  # an item that the child never read
                    assert stream is not None
                    stream.close()
            child.wait()

    def kill(self) -> None:
        """End all of them now."""
        for child in self._all:
            child.kill()

    def run(self, item: Any) -> Any:
        """Return the work of one item, by whichever child is idle."""
        child = self._idle.get()
        assert child.stdout is not None
        try:
            _send(child, item)
            good, result = pickle.load(child.stdout)
        except (OSError, EOFError, ValueError, pickle.UnpicklingError):
            raise UserError("a process that prepared data has ended, perhaps killed for memory", "start again") from None
        finally:
            self._idle.put(child)
        if not good:
            raise result
        return result


def _send(child: subprocess.Popen[bytes], content: Any) -> None:
    assert child.stdin is not None
    pickle.dump(content, child.stdin, pickle.HIGHEST_PROTOCOL)
    child.stdin.flush()


def _answer(work: Callable[[Any], Any], item: Any) -> bytes:
    """Return the pickle of (whether it went well, the result or what was raised)."""
    try:
        return pickle.dumps((True, work(item)), pickle.HIGHEST_PROTOCOL)
    except UserError as error:
        return pickle.dumps((False, error))
    except Exception as error:
        error.add_note(traceback.format_exc())
        try:
            return pickle.dumps((False, error))
        except Exception:  # it holds what cannot be pickled
            return pickle.dumps((False, RuntimeError(traceback.format_exc())))


def main() -> None:
    """Be the child."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted too, and ends its children
    # What is printed by accident must not come between the answers.
    with _rarely_collected(), os.fdopen(os.dup(sys.stdout.fileno()), "wb") as out:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        work = pickle.load(sys.stdin.buffer)
        with contextlib.suppress(EOFError, BrokenPipeError):
            while True:
                out.write(_answer(work, pickle.load(sys.stdin.buffer)))
                out.flush()


if __name__ == "__main__":
    main()
