"""The system calls that Python does not offer, and their numbers on the two architectures with GPUs."""

from __future__ import annotations

import ctypes
import functools
import os
import platform

# linux/sched.h
NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
# linux/prctl.h
SET_PDEATHSIG, SET_DUMPABLE, CAPBSET_DROP, SET_CHILD_SUBREAPER, SET_NO_NEW_PRIVS, SET_SECCOMP = 1, 4, 24, 36, 38, 22
# sys/mount.h, linux/mount.h
MS_NOSUID, MS_NODEV, MS_REC, MS_PRIVATE, MNT_DETACH = 2, 4, 0x4000, 1 << 18, 2
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV = 1, 2, 4
AT_FDCWD, AT_EMPTY_PATH, AT_RECURSIVE = -100, 0x1000, 0x8000
OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC, MOVE_MOUNT_F_EMPTY_PATH = 1, 0o2000000, 4

MACHINES = {"x86_64": 0, "aarch64": 1}
# (x86_64, aarch64)
_NUMBERS = {"pivot_root": (155, 41), "capset": (126, 91)} | {
    name: (number, number)
    for name, number in (
        ("open_tree", 428), ("move_mount", 429), ("close_range", 436), ("mount_setattr", 442),
        ("landlock_create_ruleset", 444), ("landlock_add_rule", 445), ("landlock_restrict_self", 446),
    )
}  # fmt: skip


def column() -> int:
    """Return which column of a table of numbers is this machine's.

    Raises:
        OSError: another architecture.
    """
    if platform.machine() not in MACHINES:
        raise OSError(f"no table of system calls for {platform.machine()}")
    return MACHINES[platform.machine()]


def syscall(name: str, *arguments: int | bytes | ctypes.Array | ctypes.Structure) -> int:
    """Call the kernel; structures and bytes are passed by address.

    Raises:
        OSError: what the kernel answered.
    """
    return _checked(name, _library().syscall(ctypes.c_long(_NUMBERS[name][column()]), *map(_argument, arguments)))


def libc(name: str, *arguments: int | bytes | ctypes.Structure | None) -> int:
    """Call a function of the C library that answers -1 and sets errno on failure.

    Raises:
        OSError: it did.
    """
    return _checked(name, getattr(_library(), name)(*map(_argument, arguments)))


def unshare(flags: int) -> None:
    """Leave namespaces for new ones."""
    libc("unshare", flags)


def private_mounts() -> None:
    """Leave for a mount namespace from which nothing comes back to the one before."""
    unshare(NEWNS)
    libc("mount", None, b"/", None, MS_REC | MS_PRIVATE, None)


def open_tree(path: str) -> int:
    """Return a copy of what is mounted at a path and below, to be put elsewhere. A copy keeps the flags of its mounts."""
    return syscall("open_tree", AT_FDCWD, os.fsencode(path), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE)


def move_tree(tree: int, path: str) -> None:
    """Mount such a copy at a path that is there."""
    syscall("move_mount", tree, b"", AT_FDCWD, os.fsencode(path), MOVE_MOUNT_F_EMPTY_PATH)
    os.close(tree)


def prctl(option: int, value: int = 0, third: int | ctypes.Structure = 0) -> int:
    """Call the kernel's prctl, the process control, and return what it returns."""
    return libc("prctl", option, value, third, 0, 0)


def close_from(first: int) -> None:
    """Close all file descriptors from this one on."""
    try:
        syscall("close_range", first, 0xFFFFFFFF, 0)
    except OSError:
        os.closerange(first, os.sysconf("SC_OPEN_MAX"))


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _argument(value: int | bytes | ctypes.Array | ctypes.Structure | None) -> object:
    if isinstance(value, int):
        return ctypes.c_long(value)
    if isinstance(value, ctypes.Structure):
        return ctypes.byref(value)
    return value


def _checked(name: str, answer: int) -> int:
    if answer == -1:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
    return answer
