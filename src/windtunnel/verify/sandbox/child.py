"""A fresh child of the warm worker: it locks itself in, runs the job's entry, writes the reply, and is gone."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .channel import REPLY_FD, REQUEST_FD, Buffers, Early, read_request, write_reply
from .inner import Room, steps
from .syscalls import SET_PDEATHSIG, close_from, prctl
from .types import FILES_FROM, MOST_FILES, Limits

READY_FD, JOBS_FD = 5, 6
FIRST_UNUSED_FD = 6
HIGH_FD = 100  # copies on their way to their places
MOST_TRACEBACK = 8000
JOB_PLACES = (REPLY_FD, REQUEST_FD, *range(FILES_FROM, FILES_FROM + MOST_FILES))
LASTING_CPU_SECONDS = 1e8  # of all jobs together; each has its wall clock
# What the child says before the candidate's first instruction; afterwards the pipe is closed.
READY, NOT_READY = b"R", b"E"


def become(job: Mapping[str, Any], fds: Sequence[int], ready: int, room: Room, layers: Sequence[str], death: int) -> None:
    """Run a job in this process, just forked; never returns.

    fds: request, reply and log files, then the job's own. ready: a pipe on which one byte says that all layers stand. death: the
    worker's process id as seen here, to notice when it died before the child asked to die with it.
    """
    code = 1
    try:
        _arrange(_of_job(fds) | {READY_FD: ready}, room, death)
        _lock_in(room, Limits.of(job["limits"]), layers)
        code = _work(job["entry"])
    finally:
        os._exit(code)  # no exit handlers: nothing of the candidate's runs after the reply


def become_lasting(jobs: int, limits: Limits, ready: int, room: Room, layers: Sequence[str], death: int) -> None:
    """Run jobs in this process, just forked, until the worker closes the socket; never returns.

    jobs: the socket on which they come: the entry's name with the same files; one byte goes back after each.
    """
    code = 1
    try:
        null = os.open("/dev/null", os.O_RDWR)
        _arrange({1: null, 2: null, READY_FD: ready, JOBS_FD: jobs} | dict.fromkeys(JOB_PLACES, null), room, death)
        _lock_in(room, replace(limits, cpu_seconds=LASTING_CPU_SECONDS), layers)
        socket_of_jobs = socket.socket(fileno=JOBS_FD)
        while True:
            entry, fds, _, _ = socket.recv_fds(socket_of_jobs, 512, 3 + MOST_FILES)
            if not entry:
                os._exit(0)
            _place(_of_job(fds), fds)
            _work(entry.decode(), lasting=True)
            _keep_free(JOB_PLACES)
            socket_of_jobs.send(READY)
    finally:
        os._exit(code)


def _of_job(fds: Sequence[int]) -> dict[int, int]:
    """Return at which number each of a job's files belongs."""
    request, reply, log, *files = fds
    return {REQUEST_FD: request, REPLY_FD: reply, 1: log, 2: log} | {FILES_FROM + at: fd for at, fd in enumerate(files)}


def probe(limits: Limits, room: Room) -> dict[str, str]:
    """Return which layers can be built here; layer → '' or why not."""
    answer = {}
    for layer, build in steps(room, limits).items():
        try:
            build()
            answer[layer] = ""
        except OSError as error:
            answer[layer] = str(error)
    return answer


def _lock_in(room: Room, limits: Limits, layers: Sequence[str]) -> None:
    """Build the layers and say so; ends the process where one cannot be built."""
    built = steps(room, limits)
    for layer in layers:
        try:
            built[layer]()
        except OSError as error:
            os.write(READY_FD, NOT_READY + f"{layer}: {error}".encode())
            os._exit(1)
    os.close(room.proc_fd)
    os.write(READY_FD, READY)
    os.close(READY_FD)


def _arrange(places: Mapping[int, int], room: Room, death: int) -> None:
    """Begin a session of its own, and keep open files at their places alone.

    places: number → the file that belongs there. death: the number of the process without which this one has to end.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    prctl(SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() not in (0, death):
        os._exit(1)
    _place(places)
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    kept = {0, 1, 2, room.proc_fd, *places}
    for fd in range(FIRST_UNUSED_FD, max(kept)):
        if fd not in kept:
            with contextlib.suppress(OSError):
                os.close(fd)
    close_from(max(kept) + 1)
    os.chdir(room.scratch)
    if not room.mounts:
        home = room.scratch
        os.environ |= {"HOME": home, "TMPDIR": home, "XDG_CACHE_HOME": home, "TRITON_CACHE_DIR": os.path.join(home, "triton")}


def _keep_free(numbers: Iterable[int]) -> None:
    """Leave nothing but /dev/null at these numbers.

    What a library opens meanwhile must not get one that the next job's files need, nor be closed with them.
    """
    null = os.open("/dev/null", os.O_RDWR)
    for number in numbers:
        os.dup2(null, number)
    os.close(null)


def _place(places: Mapping[int, int], done_with: Sequence[int] = ()) -> None:
    """Open files at their numbers. done_with: files to close on the way.

    Copies above the numbers in use come first, so that none is overwritten before it is moved.
    """
    high = {target: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH_FD) for target, fd in places.items()}
    for fd in done_with:
        os.close(fd)
    for target, fd in high.items():
        os.dup2(fd, target)
        os.close(fd)


def _work(entry: str, *, lasting: bool = False) -> int:
    import gc

    tempfile.tempdir = None
    gc.enable()
    message, buffers = read_request(REQUEST_FD)
    if lasting:
        _keep_free((REQUEST_FD,))
    else:
        os.close(REQUEST_FD)
    kind = "raised"
    reply: Mapping[str, Any]
    out: Buffers | Early
    try:
        reply, out = _find(entry)(message, buffers)
        kind = "reply"
    except BaseException as error:  # a candidate's code raises what it likes, SystemExit too
        reply, out = describe(error), ()
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    try:
        write_reply({"kind": kind, "reply": dict(reply)}, out)
    except OverflowError as error:
        write_reply({"kind": "output", "reply": {"error": str(error)}}, ())
    except (TypeError, ValueError, RecursionError, MemoryError) as error:
        write_reply({"kind": "raised", "reply": describe(error)}, ())
    return 0


def _find(entry: str) -> Callable[..., Any]:
    module, _, name = entry.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


def describe(error: BaseException) -> dict[str, Any]:
    """Return an exception as plain text, bounded: {'error': 'ValueError: ...', 'type': ..., 'traceback': ...}."""
    kind = type(error).__name__
    try:
        text = str(error)[:MOST_TRACEBACK]
    except BaseException:  # of the candidate's class, which may raise anything when it is asked for words
        text = "(its text raised too)"
    try:
        trace = "".join(traceback.format_exception(error, limit=-6))[-MOST_TRACEBACK:]
    except BaseException:  # as above
        trace = ""
    return {"error": f"{kind}: {text}", "type": kind, "traceback": trace}
