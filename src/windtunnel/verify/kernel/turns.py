"""Whose turn it is on a GPU: many at a time for what is not timed, one alone for what is. Across all processes of a machine.

Made of file locks, which the kernel gives back when their holder dies, however it dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

# Contexts made at once. The driver makes one at a time: more processes that want one get it no sooner, and burn CPU on its locks.
PLACES = 4
LOOK_SECONDS = 0.005
FOLDER = Path("/tmp")  # not the temporary folder of one session: all who use the GPU must meet here


class Turns:
    """A lock of one kind of use: shared by many, or held alone. An object serves one thread of one process.

    fds: of two files, a gate and a room. Who wants to be alone holds the gate together with others who want that, and takes the
    room for himself; who comes to share passes the gate only when nobody holds it. Who has begun to share and comes back
    (`again`) passes beside the gate. So those who want to be alone wait until all who have begun are done, and then have their
    turns one after the other, without others in between that would have to be waited for each time. They cannot keep the others
    out for ever: each has to come in through the gate before he comes back.
    """

    def __init__(self, fds: Sequence[int]) -> None:
        self.gate, self.room = fds
        self._inside = False

    @contextlib.contextmanager
    def shared(self, *, again: bool = False) -> Iterator[None]:
        """While this lasts nobody is alone; waits until that is so. again: it belongs to what was begun in an earlier turn."""
        self._enter(again=again)
        try:
            yield
        finally:
            self._leave()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Within shared: out of the room for a while, for work that disturbs nobody. Where one is out already, nothing."""
        if not self._inside:
            yield
            return
        self._leave()
        try:
            yield
        finally:
            self._enter(again=True)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """While this lasts nobody else is in; waits until that is so. Not from within shared: it would wait for itself."""
        fcntl.flock(self.gate, fcntl.LOCK_SH)
        try:
            fcntl.flock(self.room, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self.room, fcntl.LOCK_UN)
        finally:
            fcntl.flock(self.gate, fcntl.LOCK_UN)

    def _enter(self, *, again: bool) -> None:
        if not again:
            fcntl.flock(self.gate, fcntl.LOCK_EX)
        try:
            fcntl.flock(self.room, fcntl.LOCK_SH)
        finally:
            if not again:
                fcntl.flock(self.gate, fcntl.LOCK_UN)
        self._inside = True

    def _leave(self) -> None:
        fcntl.flock(self.room, fcntl.LOCK_UN)
        self._inside = False


@contextlib.contextmanager
def opened(path: Path | None) -> Iterator[tuple[int, ...]]:
    """The two files of a lock, opened anew, which makes another holder of it. None: no files, for where nothing is shared.

    Closing them gives the lock back, once every process that was handed them has closed them too or died.
    """
    with contextlib.ExitStack() as stack:
        fds = []
        for kind in ("gate", "room") if path is not None else ():
            fd = _open(f"{path}.{kind}")
            stack.callback(os.close, fd)
            fds.append(fd)
        yield tuple(fds)


def turns_of(fds: Sequence[int]) -> Turns | None:
    """The lock of these files, None of none."""
    return Turns(fds) if fds else None


@contextlib.contextmanager
def places(path: Path | None) -> Iterator[tuple[int, ...]]:
    """A file for each of a few places, opened anew. None: no files, for where there are as many as are wanted."""
    with contextlib.ExitStack() as stack:
        fds = []
        for number in range(PLACES) if path is not None else ():
            fds.append(_open(f"{path}.{number}"))
            stack.callback(os.close, fds[-1])
        yield tuple(fds)


@contextlib.contextmanager
def in_place(fds: Sequence[int]) -> Iterator[None]:
    """In one of the places, as soon as one is free; at once where there are no files."""
    held = None
    while held is None and fds:
        held = next((fd for fd in random.sample(fds, len(fds)) if _taken(fd)), None)
        if held is None:
            time.sleep(LOOK_SECONDS)
    try:
        yield
    finally:
        if held is not None:
            fcntl.flock(held, fcntl.LOCK_UN)


def _taken(fd: int) -> bool:
    """Whether this place was free and now is ours."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


@contextlib.contextmanager
def in_turn(turns: Turns | None, *, alone: bool = False, again: bool = False) -> Iterator[None]:
    """In turn where there is a lock, at once where there is none."""
    with contextlib.nullcontext() if turns is None else turns.alone() if alone else turns.shared(again=again):
        yield


def gpu_path(index: int, kind: str) -> Path:
    """Where the locks of a GPU lie. kind: 'use' for work on it, 'candidates' for processes that hold a candidate, 'contexts'
    for making one."""
    return FOLDER / f"windtunnel-gpu{index}-{kind}"


def _open(path: str) -> int:
    """Read-only, as a lock needs no more; made by whoever comes first, followed through no link, usable by every user."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # whatever lies there, opening it is no wait
    with contextlib.suppress(FileNotFoundError):
        return os.open(path, flags)
    fd = os.open(path, flags | os.O_CREAT, 0o644)
    with contextlib.suppress(PermissionError):
        os.fchmod(fd, 0o644)  # whatever the umask
    return fd
