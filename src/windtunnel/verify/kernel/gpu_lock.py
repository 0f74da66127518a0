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

from windtunnel.recipe import UserError

# Contexts made at once. The driver makes one at a time: more processes that want one get it no sooner, and burn CPU on its locks.
PLACES = 4
LOOK_SECONDS, MOST_LOOK_SECONDS = 0.002, 0.01
OPENINGS = 3
FOLDER = Path("/tmp")  # not the temporary folder of one session: all who use the GPU must meet here


class Late(Exception):
    """A turn did not come in time. path: the file that others hold. seconds: how long it was waited for."""

    def __init__(self, path: str, seconds: float) -> None:
        super().__init__(f"{path} was not free within {seconds:g} s")
        self.path, self.seconds = path, seconds


class GpuLock:
    """A lock of one kind of use: shared by many, or held alone. An object serves one thread of one process.

    fds: of two files, a gate and a room. Who wants to be alone holds the gate together with others who want that, and takes the
    room for himself; who comes to share passes the gate only when nobody holds it. Who has begun to share and comes back
    (`again`) passes beside the gate. So those who want to be alone wait until the room is empty, for nobody who is new, and then
    mostly have their turns one after the other. Who has begun and is outside just then is not waited for: they may be alone
    before he comes back, and he may come in between two of them. They cannot keep the others out for ever: each has to come in
    through the gate before he comes back.

    seconds: how long a turn is waited for at most, then Late is raised. None: for as long as it takes, where something else ends
    the process that waits.
    """

    def __init__(self, fds: Sequence[int], seconds: float | None = None) -> None:
        self.gate, self.room = fds
        self.seconds = seconds
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
        until = self._until()
        self._lock(self.gate, fcntl.LOCK_SH, until)
        try:
            self._lock(self.room, fcntl.LOCK_EX, until)
            try:
                yield
            finally:
                fcntl.flock(self.room, fcntl.LOCK_UN)
        finally:
            fcntl.flock(self.gate, fcntl.LOCK_UN)

    def _enter(self, *, again: bool) -> None:
        until = self._until()
        if not again:
            self._lock(self.gate, fcntl.LOCK_EX, until)
        try:
            self._lock(self.room, fcntl.LOCK_SH, until)
        finally:
            if not again:
                fcntl.flock(self.gate, fcntl.LOCK_UN)
        self._inside = True

    def _leave(self) -> None:
        fcntl.flock(self.room, fcntl.LOCK_UN)
        self._inside = False

    def _until(self) -> float | None:
        return None if self.seconds is None else time.monotonic() + self.seconds

    def _lock(self, fd: int, kind: int, until: float | None) -> None:
        """With an end to the wait it has to look again and again: there is no flock with a time limit."""
        if until is None:
            fcntl.flock(fd, kind)
            return
        pause = LOOK_SECONDS
        while not _taken(fd, kind):
            left = until - time.monotonic()
            if left <= 0:
                raise Late(os.readlink(f"/proc/self/fd/{fd}"), self.seconds or 0.0)
            time.sleep(min(pause, left))
            pause = min(2 * pause, MOST_LOOK_SECONDS)


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


def gpu_lock_of(fds: Sequence[int], seconds: float | None = None) -> GpuLock | None:
    """The lock of these files, None of none. seconds: as GpuLock has it."""
    return GpuLock(fds, seconds) if fds else None


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


def _taken(fd: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Whether this file was free and now is ours."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
        return True
    return False


@contextlib.contextmanager
def holding(turns: GpuLock | None, *, alone: bool = False, again: bool = False) -> Iterator[None]:
    """In turn where there is a lock, at once where there is none."""
    with contextlib.nullcontext() if turns is None else turns.alone() if alone else turns.shared(again=again):
        yield


def gpu_path(index: int, kind: str) -> Path:
    """Where the locks of a GPU lie. kind: 'use' for work on it, 'candidates' for processes that hold a candidate, 'contexts'
    for making one."""
    return FOLDER / f"windtunnel-gpu{index}-{kind}"


def _open(path: str) -> int:
    """Read-only, as a lock needs no more; made by whoever comes first, followed through no link, usable by every user.

    Raises UserError where that cannot be.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # whatever lies there, opening it is no wait
    problem = ""
    for _ in range(OPENINGS):
        for more in (0, os.O_CREAT):
            try:
                fd = os.open(path, flags | more, 0o644)
            except OSError as error:
                # Another user may make it between the two. Then one may not open it to make it (fs.protected_regular), and may
                # read it a moment later, when it has its mode.
                problem = error.strerror or str(error)
                continue
            if more:
                with contextlib.suppress(PermissionError):
                    os.fchmod(fd, 0o644)  # whatever the umask
            return fd
        time.sleep(LOOK_SECONDS)
    raise UserError(
        f"the lock file {path}, where all who use a GPU meet, can neither be read nor made: {problem}",
        f"make {path} readable to all (chmod 644, by its owner), or remove it while nobody judges; "
        f"{os.path.dirname(path)} must be a folder that every user may write to",
    )
