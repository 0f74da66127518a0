"""Forks of the warm worker: in a process namespace of their own where there can be one, else in a folder of their own."""

from __future__ import annotations

import os
from dataclasses import replace

from .inner import Room
from .syscalls import NEWPID, libc, unshare


def with_folder(room: Room) -> Room:
    """Return the room with a fresh folder for temporary files, where no private file system covers it.

    A new name each time: even what cannot be removed of an earlier candidate's is out of reach.
    """
    if room.mounts:
        return room
    room = replace(room, scratch=os.path.join(room.scratch, os.urandom(8).hex()))
    os.mkdir(room.scratch, 0o700)
    return room


def fork_alone(room: Room) -> int:
    """Fork, the child in a process namespace of its own where there can be one; 0 in the child."""
    if not room.alone:
        return os.fork()
    own = os.open("self/ns/pid", os.O_RDONLY | os.O_CLOEXEC, dir_fd=room.proc_fd)
    try:
        unshare(NEWPID)
        child = os.fork()
        if child:
            libc("setns", own, NEWPID)  # else the next unshare is refused
        return child
    finally:
        os.close(own)
