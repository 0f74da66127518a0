"""The warm worker's watch over one child: fork, time, memory, disk, and the certainty that nothing of it is left.

Children are forks in a process namespace of their own where there can be one, else in a folder of their own.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from dataclasses import replace
from typing import Any

from .channel import read_phase, ready
from .child import READY
from .inner import Room, read_proc
from .removing import remove
from .syscalls import NEWPID, libc, unshare
from .types import Limits

# Of a child that locks itself in: on a busy machine namespaces and mounts take their time.
SETUP_SECONDS = 30.0
# Often enough that a child which takes memory fast is seen before the kernel runs out of it.
TICK_SECONDS = 0.02
TICKS_BETWEEN_DISK = 5
# Reading its threads costs more than a tick.
IDLE_LOOK_SECONDS = 0.25
JUDGE_GONE = "judge gone"


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


def supervise(child: int, pipe: int, control: socket.socket, limits: Limits, room: Room, reply: int) -> dict[str, Any]:
    """Wait for a child, or kill it with all that it started. What the judge is told: how it ended and what it used.

    pipe: on which the child says that its layers stand; from then on its time counts. reply: its reply's file, for
    the phase it is in. If the judge goes away the child is killed and the worker ends.
    """
    watch = os.pidfd_open(child)
    seen = outside(watch, room)
    # A fork shares the worker's pages: what it has at its start is not what the candidate took.
    base, held = resident(seen, room), resident(seen, room, ("VmRSS",))
    word = said(pipe)
    # Not before: a child that waits for the machine to lock it in has not begun.
    started = time.monotonic()
    ended, peak = "setup", 0
    if word == READY:
        ended, peak = follow(watch, seen, control, limits, room, reply, base)
    wall = time.monotonic() - started
    # In any case, also of one that ended by itself: it may have left processes and files.
    status, cpu, most = end(child, watch, room)
    if ended == JUDGE_GONE:
        os._exit(0)
    return told(ended, word, status, wall, cpu, max(peak, most - held, 0))


def told(ended: str, word: bytes, status: int, wall: float, cpu: float, peak: int) -> dict[str, Any]:
    """Return what the judge is told. word: what the child said of its layers."""
    text = word[1:].decode(errors="replace")
    return {"ended": ended, "word": text, "status": status, "wall": wall, "cpu": cpu, "peak": peak}


def follow(
    watch: int,
    seen: int,
    control: socket.socket,
    limits: Limits,
    room: Room,
    reply: int,
    base: int,
    done: int | None = None,
) -> tuple[str, int]:
    """Watch until the child ends ('') or has to be ended; returns why, and the most memory seen beyond base, in bytes.

    done: a socket that can be read when a child that lasts has done its job.
    """
    poll = select.poll()
    for fd in (watch, control.fileno(), *(() if done is None else (done,))):
        poll.register(fd, select.POLLIN)
    peak, number = 0, 0
    clocks, idle = _Clocks(limits, reply), _Idle(limits, seen, room)
    while (left := clocks.left()) > 0:
        events = {fd for fd, _ in poll.poll(max(1, min(left, TICK_SECONDS) * 1000))}
        # Its end comes first: what is read of a child that is gone is nothing.
        if watch in events or done in events:
            return "", peak
        if control.fileno() in events:
            return JUDGE_GONE, peak
        if idle.too_long():
            return "idle", peak
        number += 1
        # Limits on addresses bound each process by itself, and where a GPU is used there are none: here all of it is added up.
        peak = max(peak, _all_resident(seen, room, limits) - base)
        if peak > limits.memory_bytes:
            return "memory", peak
        # Walking a folder that a candidate has filled takes long.
        if number % TICKS_BETWEEN_DISK == 0:
            if not room.mounts and _disk(room.scratch) > limits.file_bytes:
                return "disk", peak
            if room.devices and _unmapped(seen, room) > limits.memory_bytes + limits.result_bytes:
                return "memory", peak
    return "timeout", peak


class _Clocks:
    """The wall clock, and one for each phase that has its own; only one of them runs at a time.

    What follows a colon in a phase's name belongs to the same one.
    """

    def __init__(self, limits: Limits, reply: int) -> None:
        self.own, self.reply = dict(limits.phases), reply
        self.most, self.spent = limits.wall_seconds, 0.0
        self.by_phase = dict.fromkeys(self.own, 0.0)
        self.looked = time.monotonic()

    def left(self) -> float:
        """Return the seconds until the clock that runs now has run out; none when any has."""
        now = time.monotonic()
        passed, self.looked = now - self.looked, now
        # The child's own word, which is trusted for jobs that name phases: those run no candidate's code.
        phase = read_phase(self.reply).partition(":")[0] if self.own else ""
        if phase in self.own:
            self.by_phase[phase] += passed
            return self.own[phase] - self.by_phase[phase]
        self.spent += passed
        return self.most - self.spent


class _Idle:
    """Whether a child has used no CPU time for too long, nor wanted any: one that the machine has no time for is not idle."""

    def __init__(self, limits: Limits, seen: int, room: Room) -> None:
        self.most, self.seen, self.room = limits.idle_seconds, seen, room
        self.used, self.since = -1.0, 0.0
        self.next = time.monotonic()

    def too_long(self) -> bool:
        now = time.monotonic()
        if not self.most or now < self.next:
            return False
        self.next = now + IDLE_LOOK_SECONDS
        used = cpu_of(self.seen, self.room)
        # On a busy machine a thread may be ready to run for long, and not run.
        if used > self.used or _wants_cpu(self.seen, self.room):
            self.used, self.since = used, now
        return now - self.since >= self.most


def cpu_of(pid: int, room: Room) -> float:
    """Return the seconds of CPU time of a process so far, without its children; 0 where that cannot be read."""
    words = _read(room, f"{pid}/stat").rpartition(")")[2].split()
    with contextlib.suppress(ValueError, IndexError):
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _wants_cpu(pid: int, room: Room) -> bool:
    """Return whether one of a process's threads runs or waits for a CPU."""
    try:
        tasks = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=room.proc_fd)
    except OSError:
        return False
    try:
        return any(_read(room, f"{pid}/task/{name}/stat").rpartition(")")[2].split()[:1] == ["R"] for name in os.listdir(tasks))
    finally:
        os.close(tasks)


def said(pipe: int) -> bytes:
    """Return what the child says about its layers; empty when it died before."""
    return os.read(pipe, 512) if ready(pipe, SETUP_SECONDS) else b""


def end(child: int, watch: int, room: Room) -> tuple[int, float, int]:
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


def outside(watch: int, room: Room) -> int:
    """Return the child's id as /proc counts it, which is another than ours inside a process namespace."""
    for line in _read(room, f"self/fdinfo/{watch}").splitlines():
        if line.startswith("Pid:"):
            return int(line.split()[1])
    return 0


def resident(pid: int, room: Room, fields: tuple[str, ...] = ("RssAnon", "RssShmem")) -> int:
    """Return the bytes of memory that a process alone has or shares with its own; files such as libraries do not count."""
    lines = (line.split() for line in _read(room, f"{pid}/status").splitlines())
    return sum(int(words[1]) * 1024 for words in lines if words and words[0].rstrip(":") in fields)


def _all_resident(child: int, room: Room, limits: Limits) -> int:
    total = resident(child, room)
    if limits.processes:
        waiting = _children(child, room)
        while waiting:
            pid = waiting.pop()
            total += resident(pid, room)
            waiting += _children(pid, room)
    return total


def _unmapped(pid: int, room: Room) -> int:
    """Return the bytes in memory files that a process has open, mapped or not.

    Those who use a GPU may have some, as its driver may.
    """
    total = 0
    with contextlib.suppress(OSError):
        folder = os.open(f"{pid}/fd", os.O_RDONLY | os.O_DIRECTORY, dir_fd=room.proc_fd)
        try:
            for name in os.listdir(folder):
                with contextlib.suppress(OSError):
                    if os.readlink(name, dir_fd=folder).startswith("/memfd:"):
                        total += os.stat(name, dir_fd=folder).st_blocks * 512
        finally:
            os.close(folder)
    return total


def _disk(folder: str) -> float:
    """Return the bytes on disk below a folder; infinite when something lies too deep to be counted."""
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
    """Return a file of /proc; nothing of a process that has ended meanwhile."""
    with contextlib.suppress(OSError):
        return read_proc(room.proc_fd, name)
    return ""
