"""Whose turn it is on a GPU: many at a time for what is not timed, one alone for what is. Across all processes of a machine.

Made of file locks, which the kernel gives back when their holder dies, however it dies. A child waits for its turns itself; the
parent sees from the phase that it waits, and counts that by itself.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from windtunnel.recipe import UserError
from windtunnel.verify.sandbox import note

WAITING, FULL, TIMING = "waiting", "full", "timing"  # phases of a child
LOOK_SECONDS = 0.002
OPENINGS = 3
FOLDER = Path("/tmp")  # not the temporary folder of one session: all who use the GPU must meet here


class GpuLock:
    """A lock of one kind of use: shared by many, or held alone. An object serves one thread of one process.

    fds: of two files, a gate and a room. Who wants to be alone holds the gate together with others who want that, and takes the
    room for himself; who comes to share passes the gate only when nobody holds it. So those who want to be alone wait until the
    room is empty, for nobody who is new, and then mostly have their turns one after the other.
    """

    def __init__(self, fds: Sequence[int]) -> None:
        self.gate, self.room = fds

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Share the GPU: while this lasts nobody is alone; waits until that is so."""
        import fcntl  # Windows has none; there this module is imported all the same, before the sandbox says that it cannot be

        fcntl.flock(self.gate, fcntl.LOCK_EX)
        try:
            fcntl.flock(self.room, fcntl.LOCK_SH)
        finally:
            fcntl.flock(self.gate, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self.room, fcntl.LOCK_UN)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Have the GPU alone while this lasts; waits until nobody else is in.

        Not from within `shared`: it would wait for itself.
        """
        import fcntl

        fcntl.flock(self.gate, fcntl.LOCK_SH)
        try:
            fcntl.flock(self.room, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self.room, fcntl.LOCK_UN)
        finally:
            fcntl.flock(self.gate, fcntl.LOCK_UN)


@contextlib.contextmanager
def opened(path: Path | None) -> Iterator[tuple[int, ...]]:
    """Yield the two files of a lock, opened anew, which makes another holder of it. None: no files, for where nothing is shared.

    Closing them gives the lock back, once every process that was handed them has closed them too or died.
    """
    with contextlib.ExitStack() as stack:
        fds = []
        for kind in ("gate", "room") if path is not None else ():
            fd = _open(f"{path}.{kind}")
            stack.callback(os.close, fd)
            fds.append(fd)
        yield tuple(fds)


def gpu_lock_of(fds: Sequence[int]) -> GpuLock | None:
    """Return the lock of these files, None of none."""
    return GpuLock(fds) if fds else None


class Turns:
    """A child's turns. lock: None where nothing is shared. waited: seconds, of all of them."""

    def __init__(self, lock: GpuLock | None) -> None:
        self.lock, self.waited = lock, 0.0

    @contextlib.contextmanager
    def waiting_for(self, *, alone: bool = False, then: str) -> Iterator[None]:
        """Take a turn, then note the phase."""
        if self.lock is None:
            note(then)
            yield
            return
        note(WAITING)
        began = time.monotonic()
        with self.lock.alone() if alone else self.lock.shared():
            self.waited += time.monotonic() - began
            note(then)
            yield


def gpu_path(number: int) -> Path:
    """Return where the lock of a GPU lies. number: of its file /dev/nvidiaN, which all processes know it by."""
    return FOLDER / f"windtunnel-gpu{number}-use"


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
