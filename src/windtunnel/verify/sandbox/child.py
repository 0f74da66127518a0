"""A fresh child of the warm worker: it locks itself in, runs the job's entry, writes the reply, and is gone."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .channel import REPLY_FD, REQUEST_FD, read_request, write_reply
from .inner import Room, steps
from .syscalls import SET_PDEATHSIG, close_from, prctl
from .types import Limits

READY_FD = 5
FIRST_UNUSED_FD = 6
MOST_TRACEBACK = 8000
# What the child says before the candidate's first instruction; afterwards the pipe is closed.
READY, NOT_READY = b"R", b"E"


def become(job: Mapping[str, Any], fds: Sequence[int], ready: int, room: Room, layers: Sequence[str], death: int) -> None:
    """Run a job in this process, just forked; never returns.

    fds: request, reply and log files. ready: a pipe on which one byte says that all layers stand. death: the worker's process
    id as seen here, to notice when it died before the child asked to die with it.
    """
    code = 1
    try:
        _arrange(fds, ready, room, death)
        limits = Limits(**job["limits"])
        built = steps(room, limits)
        for layer in layers:
            try:
                built[layer]()
            except OSError as error:
                os.write(READY_FD, NOT_READY + f"{layer}: {error}".encode())
                os._exit(code)
        os.close(room.proc_fd)
        os.write(READY_FD, READY)
        os.close(READY_FD)
        code = _work(job["entry"])
    finally:
        os._exit(code)  # no exit handlers: nothing of the candidate's runs after the reply


def probe(limits: Limits, room: Room) -> dict[str, str]:
    """In a child: which layers can be built here; layer → '' or why not."""
    answer = {}
    for layer, build in steps(room, limits).items():
        try:
            build()
            answer[layer] = ""
        except OSError as error:
            answer[layer] = str(error)
    return answer


def _arrange(fds: Sequence[int], ready: int, room: Room, death: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    prctl(SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() not in (0, death):
        os._exit(1)
    request, reply, log = fds
    # Copies above the numbers in use first, so that none is overwritten before it is moved.
    high = [os.dup2(fd, 20 + at, inheritable=False) for at, fd in enumerate((request, reply, log, ready))]
    for target, source in ((REQUEST_FD, high[0]), (REPLY_FD, high[1]), (1, high[2]), (2, high[2]), (READY_FD, high[3])):
        os.dup2(source, target)
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    kept = os.dup2(room.proc_fd, 30, inheritable=False)
    for fd in range(FIRST_UNUSED_FD, 30):
        with contextlib.suppress(OSError):
            os.close(fd)
    os.dup2(kept, room.proc_fd)
    close_from(max(room.proc_fd + 1, FIRST_UNUSED_FD))
    os.chdir(room.scratch)
    if not room.mounts:
        os.environ |= home(room.scratch)


def home(folder: str) -> dict[str, str]:
    """The variables that say where temporary files belong."""
    return {"HOME": folder, "TMPDIR": folder, "XDG_CACHE_HOME": folder, "TRITON_CACHE_DIR": os.path.join(folder, "triton")}


def _work(entry: str) -> int:
    import gc

    tempfile.tempdir = None
    gc.enable()
    message, buffers = read_request(REQUEST_FD)
    os.close(REQUEST_FD)
    kind = "raised"
    reply: Mapping[str, Any]
    out: Sequence[bytes | bytearray | memoryview]
    try:
        reply, out = _find(entry)(message, buffers)
        kind = "reply"
    except BaseException as error:
        reply, out = describe(error), ()
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    try:
        write_reply({"kind": kind, "reply": dict(reply)}, out)
    except OverflowError as error:
        write_reply({"kind": "output", "reply": {"error": str(error)}}, ())
    except (TypeError, ValueError, RecursionError) as error:
        write_reply({"kind": "raised", "reply": describe(error)}, ())
    return 0


def _find(entry: str) -> Callable[..., Any]:
    module, _, name = entry.partition(":")
    return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]


def describe(error: BaseException) -> dict[str, Any]:
    """An exception as plain text, bounded: {'error': 'ValueError: ...', 'type': ..., 'traceback': ...}."""
    kind = type(error).__name__
    try:
        text = str(error)[:MOST_TRACEBACK]
    except BaseException:
        text = "(its text raised too)"
    try:
        trace = "".join(traceback.format_exception(error, limit=-6))[-MOST_TRACEBACK:]
    except BaseException:
        trace = ""
    return {"error": f"{kind}: {text}", "type": kind, "traceback": trace}
