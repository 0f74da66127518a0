"""The warm worker's watch over one child: start, time, memory, disk, and the certainty that nothing of it is left."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from typing import Any

from .child import READY
from .inner import Room
from .removing import remove
from .types import Limits

SETUP_SECONDS = 30.0
TICK_SECONDS = 0.02
TICKS_BETWEEN_DISK = 5
JUDGE_GONE = "judge gone"


def supervise(child: int, ready: int, control: socket.socket, limits: Limits, room: Room) -> dict[str, Any]:
    """Wait for a child, or kill it with all that it started. What the judge is told: how it ended and what it used.

    ready: the pipe on which the child says that its layers stand; from then on its time counts. If the judge goes away
    the child is killed and the worker ends.
    """
    watch = os.pidfd_open(child)
    seen = _outside(watch, room)
    base, held = _resident(seen, room), _resident(seen, room, ("VmRSS",))
    word = _word(ready)
    started = time.monotonic()
    ended, peak = _follow(watch, seen, control, limits, room, base) if word == READY else ("setup", 0)
    wall = time.monotonic() - started
    status, cpu, most = _end(child, watch, room)
    if ended == JUDGE_GONE:
        os._exit(0)
    return {
        "ended": ended,
        "word": word[1:].decode(errors="replace"),
        "status": status,
        "wall": wall,
        "cpu": cpu,
        "peak": max(peak, most - held, 0),
    }


def _follow(watch: int, seen: int, control: socket.socket, limits: Limits, room: Room, base: int) -> tuple[str, int]:
    """Until the child ends ('') or has to be ended: why, and the most memory seen beyond base, in bytes."""
    poll = select.poll()
    poll.register(watch, select.POLLIN)
    poll.register(control.fileno(), select.POLLIN)
    deadline, peak, number = time.monotonic() + limits.wall_seconds, 0, 0
    while (left := deadline - time.monotonic()) > 0:
        events = {fd for fd, _ in poll.poll(max(1, min(left, TICK_SECONDS) * 1000))}
        if watch in events:
            return "", peak
        if control.fileno() in events:
            return JUDGE_GONE, peak
        number += 1
        peak = max(peak, _all_resident(seen, room, limits) - base)
        if peak > limits.memory_bytes:
            return "memory", peak
        if not room.mounts and number % TICKS_BETWEEN_DISK == 0 and _disk(room.scratch) > limits.file_bytes:
            return "disk", peak
    return "timeout", peak


def _word(ready: int) -> bytes:
    """What the child says about its layers; empty when it died before."""
    poll = select.poll()
    poll.register(ready, select.POLLIN)
    return os.read(ready, 512) if poll.poll(SETUP_SECONDS * 1000) else b""


def _end(child: int, watch: int, room: Room) -> tuple[int, float, int]:
    """Kill whatever still runs; wait status, CPU seconds, peak bytes of the child."""
    with contextlib.suppress(OSError):
        signal.pidfd_send_signal(watch, signal.SIGKILL)
    if not room.alone:
        with contextlib.suppress(OSError):
            os.killpg(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    os.close(watch)
    while not room.alone and _kill_strays(room):
        pass
    if not room.mounts:
        remove(room.scratch)
    return status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def _kill_strays(room: Room) -> bool:
    """Without a process namespace: what the child left behind has become ours; True while there was something."""
    for pid in _children(os.getpid(), room):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        return False
    return True


def _children(pid: int, room: Room) -> list[int]:
    text = _read(room, f"{pid}/task/{pid}/children")
    return [int(word) for word in text.split()]


def _outside(watch: int, room: Room) -> int:
    """The child's id as /proc counts it, which is another than ours inside a process namespace."""
    for line in _read(room, f"self/fdinfo/{watch}").splitlines():
        if line.startswith("Pid:"):
            return int(line.split()[1])
    return 0


def _resident(pid: int, room: Room, fields: tuple[str, ...] = ("RssAnon", "RssShmem")) -> int:
    """Bytes of memory that a process alone has or shares with its own; files such as libraries, which all share, do not count."""
    lines = (line.split() for line in _read(room, f"{pid}/status").splitlines())
    return sum(int(words[1]) * 1024 for words in lines if words and words[0].rstrip(":") in fields)


def _all_resident(child: int, room: Room, limits: Limits) -> int:
    total = _resident(child, room)
    if limits.processes:
        waiting = _children(child, room)
        while waiting:
            pid = waiting.pop()
            total += _resident(pid, room)
            waiting += _children(pid, room)
    return total


def _disk(folder: str) -> float:
    """Bytes on disk below a folder; infinite when something lies too deep to be counted."""
    total, waiting = 0, [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except FileNotFoundError:
            continue  # removed meanwhile
        except OSError:
            return float("inf")
    return total


def _read(room: Room, name: str) -> str:
    try:
        fd = os.open(name, os.O_RDONLY, dir_fd=room.proc_fd)
    except OSError:
        return ""
    try:
        return os.read(fd, 8192).decode()
    except OSError:
        return ""
    finally:
        os.close(fd)
