"""A memory cgroup around a worker and its children, where this process may make one.

The kernel then counts every page, those of memory files too, which nobody has mapped. The judge makes and removes the folder;
the worker enters it once, before it isolates itself, and keeps its limit open.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path

from .types import MiB

PREFIX = "windtunnel-"
SLACK = 64 * MiB  # pages that the kernel itself needs for a child, and what an ended one has not given back yet
REMOVE_SECONDS = 2.0
# By version of the interface: the limit, the usage, what bounds memory and swap together (1) or swap alone (2).
FILES = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes"), 2: ("memory.max", "memory.current")}


def make() -> Path:
    """Return a new group below the one that this process is in.

    Raises:
        OSError: the kernel has none here, or this process may not make one; says why.
    """
    own = _parent()
    # A judge that was killed could not remove its own.
    _remove_left_over(own)
    group = own / f"{PREFIX}{os.getpid()}-{os.urandom(6).hex()}"
    group.mkdir()
    return group


def prepare() -> None:
    """Divide this process's group while it is still alone there, before it starts others; nothing where that cannot be done."""
    with contextlib.suppress(OSError):
        _parent()


def _parent() -> Path:
    """Return the group below which others can be bounded. Raises OSError where there is none."""
    version, own = _own()
    return divided(own) if version == 2 else own


def divided(own: Path, controller: str = "memory") -> Path:
    """With version 2: the group below which others can be bounded, which is the one that this process was started in.

    The kernel allows that only where no process is in it. So a process that is alone in it goes into one below it, for good; of
    one that is not alone the others would have to go too, and nobody could be put into their group any more.

    Raises:
        OSError: this process is not alone, or may not.
    """
    if own.name.startswith(PREFIX):
        own = own.parent  # it went before
    switch = own / "cgroup.subtree_control"
    if controller in switch.read_text().split():
        return own
    try:
        switch.write_text(f"+{controller}")
        return own  # the first group of a machine may hold processes
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
    inside = (own / "cgroup.procs").read_text().split()
    if set(inside) - {str(os.getpid())}:
        raise OSError(errno.EBUSY, f"its group of version 2 holds {len(inside)} processes, and can be divided for one alone")
    place = own / f"{PREFIX}{os.getpid()}-judge"
    place.mkdir(exist_ok=True)
    (place / "cgroup.procs").write_text(str(os.getpid()))
    try:
        switch.write_text(f"+{controller}")
    except OSError:
        (own / "cgroup.procs").write_text(str(os.getpid()))
        place.rmdir()
        raise
    return own


def remove(group: Path) -> None:
    """Remove it once the last process in it is gone, which may take a moment after it was killed."""
    deadline = time.monotonic() + REMOVE_SECONDS
    while True:
        try:
            group.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > deadline:
                return
            time.sleep(0.01)


class Bound:
    """The worker's side: it is in the group, and can set the limit although it no longer sees the folder."""

    def __init__(self, group: Path) -> None:
        """Enter the group.

        Raises:
            OSError: it cannot be entered.
        """
        version = 2 if (group / FILES[2][0]).exists() else 1
        limit, usage = FILES[version]
        self._limit = os.open(group / limit, os.O_RDWR | os.O_CLOEXEC)
        (group / "cgroup.procs").write_text(str(os.getpid()))
        self._usage = os.open(group / usage, os.O_RDONLY | os.O_CLOEXEC)
        self._set = 0

    def allow(self, more: int) -> None:
        """Let the group use from now on so many bytes more than now. Silently not where the kernel refuses."""
        most = int(os.pread(self._usage, 64, 0)) + more + SLACK
        if abs(most - self._set) <= SLACK // 4:
            return  # as good as the same
        with contextlib.suppress(OSError):
            os.pwrite(self._limit, str(most).encode(), 0)
            self._set = most


def _own() -> tuple[int, Path]:
    """Return version and folder of the memory group that this process is in."""
    groups = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for version, kind in ((1, "cgroup"), (2, "cgroup2")):
        for words in mounts:
            options = words[-1].split(",")
            if words[words.index("-") + 1] != kind or (version == 1 and "memory" not in options):
                continue
            for _, controllers, path in groups:
                if (version == 1 and "memory" in controllers.split(",")) or (version == 2 and not controllers):
                    own = Path(words[4] + _below(path, words[3]))
                    if version == 1 or "memory" in (own / "cgroup.controllers").read_text().split():
                        return version, own
    raise FileNotFoundError("no memory controller is mounted")


def _below(path: str, root: str) -> str:
    """Return the part of a group's path below the one that is mounted."""
    return path.rstrip("/") if root == "/" else path.removeprefix(root).rstrip("/")


def _remove_left_over(own: Path) -> None:
    """Remove the groups of judges that were killed."""
    for group in own.glob(f"{PREFIX}*"):
        pid = group.name.removeprefix(PREFIX).split("-")[0]
        if pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
            with contextlib.suppress(OSError):
                group.rmdir()
