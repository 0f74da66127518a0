"""What a fresh child does to itself before it touches a candidate, in this order; afterwards it cannot be undone."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
from collections.abc import Callable
from dataclasses import dataclass

from . import landlock, seccomp
from .paths import WRITTEN_FOR_DEVICES
from .syscalls import (
    CAPBSET_DROP,
    MS_NODEV,
    MS_NOSUID,
    NEWIPC,
    SET_NO_NEW_PRIVS,
    libc,
    move_tree,
    open_tree,
    prctl,
    private_mounts,
    syscall,
    unshare,
)
from .types import Limits, MiB

PAGE = resource.getpagesize()
SLACK = 1024 * MiB  # address space for thread stacks and allocator arenas that are reserved and never touched
LAST_CAPABILITY = 63
OOM_FIRST = b"1000"
NULL = "/dev/null"  # whoever starts a program with its output thrown away writes here


@dataclass(frozen=True)
class Room:
    """Where a child lives: what it may read, where it may write, and what the worker has already entered.

    mounts: a file system of its own. alone: a process namespace of its own. root: it is still root outside of its namespaces.
    same_user_processes: how many processes the kernel counts for its user before it starts one; None when that is not known.
    """

    readable: tuple[str, ...]
    scratch: str
    devices: tuple[str, ...]
    mounts: bool
    alone: bool
    root: bool
    same_user_processes: int | None
    proc_fd: int


def steps(room: Room, limits: Limits) -> dict[str, Callable[[], None]]:
    """Return layer → what builds it."""
    built: dict[str, Callable[[], None]] = {}
    if room.mounts:
        built["private tmpfs"] = lambda: _tmpfs(room.scratch, limits)
        built["IPC namespace of its own"] = lambda: unshare(NEWIPC)
        if room.devices and room.alone:
            built["/proc of its own"] = _proc
    built["resource limits"] = lambda: _limits(room, limits)
    built["no capabilities"] = _drop_capabilities
    if landlock.version():
        own = (*room.devices, *WRITTEN_FOR_DEVICES) if room.devices else ()
        built["Landlock"] = lambda: landlock.restrict(room.readable, (room.scratch, NULL, *own))
    built["seccomp"] = lambda: seccomp.restrict(
        processes=limits.processes > 0,
        devices=bool(room.devices),
        alone=room.alone,
        mounts=room.mounts,
        pid=os.getpid(),
    )
    return built


def _tmpfs(path: str, limits: Limits) -> None:
    """Mount an empty file system at path, on which only this child writes.

    The worker's root has nothing at path but readable trees, such as an environment installed below /tmp. The new file system
    covers them, so they are mounted again at their places. They stay read-only: a copy of a mount keeps its flags.
    """
    private_mounts()
    covered = {entry.path: (entry.is_dir(), open_tree(entry.path)) for entry in os.scandir(path)}
    options = f"size={limits.file_bytes},nr_inodes=8192,mode=700"
    libc("mount", b"scratch", path.encode(), b"tmpfs", MS_NOSUID | MS_NODEV, options.encode())
    for place, (is_folder, tree) in covered.items():
        os.mkdir(place) if is_folder else os.close(os.open(place, os.O_CREAT | os.O_EXCL))
        move_tree(tree, place)
    os.chdir(path)


def _proc() -> None:
    libc("mount", b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV, None)


def _limits(room: Room, limits: Limits) -> None:
    """Limit memory beyond what the worker holds, CPU seconds, file size, open files, processes, no core dumps."""
    with contextlib.suppress(OSError):
        fd = os.open("self/oom_score_adj", os.O_WRONLY, dir_fd=room.proc_fd)
        os.write(fd, OOM_FIRST)  # if memory runs out, the candidate goes, not the training beside it
        os.close(fd)
    held = [int(n) * PAGE for n in read_proc(room.proc_fd, "self/statm").split()]
    cpu = int(limits.cpu_seconds + 0.999)
    _limit(resource.RLIMIT_CPU, cpu)
    _limit(resource.RLIMIT_FSIZE, max(limits.file_bytes, limits.result_bytes + 4096, limits.log_bytes))
    _limit(resource.RLIMIT_NOFILE, limits.open_files)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_MEMLOCK, 0 if not room.devices else limits.memory_bytes)
    if not room.devices:  # a GPU's driver reserves terabytes of addresses; there the worker watches what is resident
        _limit(resource.RLIMIT_DATA, held[5] + limits.memory_bytes)
        _limit(resource.RLIMIT_AS, held[0] + limits.memory_bytes + SLACK)
    if limits.processes and room.root:
        raise PermissionError("the number of root's processes has no limit, so none may be started")
    present = room.same_user_processes
    if present is None and limits.processes:
        present = _same_user(room.proc_fd)
    if present is not None:
        _limit(resource.RLIMIT_NPROC, present + limits.threads + limits.processes)


def _same_user(proc_fd: int) -> int:
    """Return how many threads the processes of this user have."""
    count = 0
    for name in os.listdir(proc_fd):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if os.stat(name, dir_fd=proc_fd).st_uid == os.getuid():
                    count += int(read_proc(proc_fd, f"{name}/stat").rpartition(")")[2].split()[17])
    return count


def _limit(which: int, value: int) -> None:
    _, hard = resource.getrlimit(which)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(which, (value, value))


def _drop_capabilities() -> None:
    for number in range(LAST_CAPABILITY + 1):
        with contextlib.suppress(OSError):  # beyond the kernel's last one, or not held
            prctl(CAPBSET_DROP, number)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    syscall("capset", header, (ctypes.c_uint32 * 6)())
    prctl(SET_NO_NEW_PRIVS, 1)


def read_proc(proc_fd: int, name: str) -> str:
    """Return a file of /proc, by its name below."""
    fd = os.open(name, os.O_RDONLY, dir_fd=proc_fd)
    try:
        return os.read(fd, 8192).decode()
    finally:
        os.close(fd)
