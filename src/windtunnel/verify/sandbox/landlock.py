"""Landlock: which files a process may touch, whoever it is. An ordinary user may restrict itself."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable

from .syscalls import SET_NO_NEW_PRIVS, prctl, syscall

# linux/landlock.h
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
TRUNCATE, IOCTL_DEV = 1 << 14, 1 << 15
ON_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
READ = EXECUTE | READ_FILE | READ_DIR
# The number of file rights by version of the interface; the last is for all later ones.
RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
NETWORK_FROM, SCOPES_FROM = 4, 6
PATH_BENEATH = 1


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def version() -> int:
    """Return the version of the kernel's interface; 0 without Landlock."""
    try:
        return syscall("landlock_create_ruleset", 0, 0, 1)
    except OSError:
        return 0


def restrict(readable: Iterable[str], writable: Iterable[str]) -> None:
    """From now on this process and its children may read and execute only below readable, and do all below writable.

    Paths that do not exist are skipped. Also refused: TCP (version 4), signals and abstract sockets beyond the process (6).

    Raises:
        OSError: no Landlock here.
    """
    abi = version()
    every = (1 << RIGHTS.get(abi, 16)) - 1
    ruleset = _Ruleset(every, 3 if abi >= NETWORK_FROM else 0, 3 if abi >= SCOPES_FROM else 0)
    size = 24 if abi >= SCOPES_FROM else 16 if abi >= NETWORK_FROM else 8
    fd = syscall("landlock_create_ruleset", ruleset, size, 0)
    try:
        for paths, rights in ((readable, READ), (writable, every)):
            for path in paths:
                _allow(fd, path, rights & every)
        prctl(SET_NO_NEW_PRIVS, 1)
        syscall("landlock_restrict_self", fd, 0)
    finally:
        os.close(fd)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= ON_FILES
        syscall("landlock_add_rule", ruleset, PATH_BENEATH, _Beneath(rights, fd), 0)
    finally:
        os.close(fd)
