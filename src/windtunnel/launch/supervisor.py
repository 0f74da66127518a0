"""Supervise a job: it runs in a child process, and what it prints, how it ends and who may stop it is looked after here.

The supervisor computes nothing, so that it is there when the job is killed for its memory. It writes all output into the
run's log, passes it on to whoever still reads it, hands signals on, and records why a job ended that cannot say so itself.
A lost terminal, a closed pipe or a full disk behind standard output costs the view of a training, never the training.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shlex
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

from windtunnel.recipe import UserError
from windtunnel.run import (
    STOPPING,
    SUPERVISOR,
    BackgroundWriter,
    Channel,
    LineDecoder,
    RunFolder,
    RunLog,
    log_only,
    record_end,
    stop_early,
)

from .processes import send_below, stop_with_parent

DRAIN_SECONDS = 2.0
"""For what a job's own children still print after its end."""
_INTERRUPTED = b"\nsaving a checkpoint, then ending; Ctrl-C once more ends at once, without saving\n"
_OUT, _ERR = 1, 2
STOPPED = 3
"""Exit code of a job that was told to stop, and saved."""


def supervise(*, detach: bool = False, as_json: bool = False) -> None:
    """Return in a child process, in which the caller goes on; this process supervises it and exits with its code.

    Call it before anything has started threads.

    Args:
        detach: the supervisor leaves the terminal as soon as a run is trained, and the command ends.
        as_json: tell what there is to tell as JSON.

    Raises:
        SystemExit: in the supervisor, with the job's exit code.
    """
    # Two forks: the command that waits, the supervisor, and the job below it.
    released = _detached() if detach else None
    pipes = [os.pipe() for _ in range(3)]
    # What stands in the buffers would be printed twice, by either process.
    sys.stdout.flush()
    sys.stderr.flush()
    # The job draws its view on the terminal itself; what goes through the pipe is the log's.
    terminal = os.dup(_OUT) if os.isatty(_OUT) and not as_json and not detach else None
    child = os.fork()
    if child == 0:
        _become_job([write for _, write in pipes], [read for read, _ in pipes], terminal, released)
        return
    for _, write in pipes:
        os.close(write)
    if terminal is not None:
        os.close(terminal)
    code = _Supervisor(child, [read for read, _ in pipes], as_json=as_json, released=released).run()
    if detach:
        os._exit(code)  # the command's own end is the front's
    sys.exit(code)


def _become_job(write: list[int], read: list[int], terminal: int | None, released: int | None) -> None:
    """Make this process the job: a session of its own, output into the supervisor's pipes."""
    os.setsid()  # Ctrl-C and a lost terminal reach the supervisor alone
    stop_with_parent()
    for descriptor in [*read, *([released] if released is not None else [])]:
        os.close(descriptor)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (write[0], _OUT), (write[1], _ERR)):
        os.dup2(source, target)
        os.close(source)
    # New ones: the old may have been made for a file, in which one can seek.
    sys.stdout, sys.stderr = (
        os.fdopen(number, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False) for number in (_OUT, _ERR)
    )
    os.environ[SUPERVISOR] = Channel(write[2], terminal).environment()
    for number in STOPPING:
        signal.signal(number, stop_early)
    # The supervisor decides what a lost terminal means.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    threading.excepthook = _thread_failed


def _thread_failed(failed: threading.ExceptHookArgs) -> None:
    """Tell of an exception that ended a thread in one line; the traceback goes into the run's log."""
    log_only(None, "".join(traceback.format_exception(failed.exc_value)) if failed.exc_value else "")
    name = failed.thread.name if failed.thread else "?"
    print(f"warn: thread {name} ended: {failed.exc_type.__name__}: {failed.exc_value}", file=sys.stderr)


def _detached() -> int:
    """Fork: the command waits until the job trains a run, then ends; the child leaves its session and supervises the job.

    Returns:
        in the child, the descriptor on which to release the command.
    """
    waiting, released = os.pipe()
    supervisor = os.fork()
    if supervisor == 0:
        os.close(waiting)
        os.setsid()
        return released
    os.close(released)
    for number in STOPPING:
        signal.signal(number, lambda number, _: os.kill(supervisor, number))
    told = os.read(waiting, 1)
    if told:
        _exit_now(0)
    _, status = os.waitpid(supervisor, 0)
    _exit_now(max(1, os.waitstatus_to_exitcode(status)) if status else 0)


def _exit_now(code: int) -> NoReturn:
    sys.stdout.flush()
    os._exit(code)


class _Supervisor:
    """The supervising process of one job."""

    def __init__(self, child: int, pipes: list[int], *, as_json: bool, released: int | None) -> None:
        self._child, self._json, self._released = child, as_json, released
        self._selector = selectors.DefaultSelector()
        out = BackgroundWriter(_OUT, sys.stdout.encoding)
        # Where both are one file one writer keeps the order of lines.
        err = out if _same_file(_OUT, _ERR) else BackgroundWriter(_ERR, sys.stderr.encoding)
        handlers: tuple[Callable[[bytes], None], ...] = (
            self._printer(out), self._printer(err), self._message,
        )  # fmt: skip
        for descriptor, handler in zip(pipes, handlers, strict=True):
            self._selector.register(descriptor, selectors.EVENT_READ, handler)
        self._out, self._err = out, err
        self._control = LineDecoder()
        self._log: RunLog | None = None
        self._early: list[str] = []
        self._run: Path | None = None
        self._cause: str | None = None
        self._lighter = ""
        self._asked = 0
        self._code: int | None = None
        self._link: Path | None = None
        self._kills = memory_kills()

    def run(self) -> int:
        """Look after the job until its end; return the exit code."""
        for number in STOPPING:
            signal.signal(number, self._hand_on)
        signal.signal(signal.SIGHUP, self._hang_up)
        signal.signal(signal.SIGTSTP, self._suspend)
        status = self._pump()
        code = self._code = self._ended(status)
        if self._link is not None and self._link.is_symlink():
            self._link.unlink()
        if self._log is not None:
            self._log.close()
        for stream in (self._out, self._err):
            stream.close()
        for number in STOPPING:  # Python gives up its own handlers before it has ended, and the code would be the signal's
            signal.signal(number, signal.SIG_IGN)
        return code

    def _pump(self) -> int:
        """Read what the job prints until it has ended; return its status."""
        status, limit = None, 0.0
        while self._selector.get_map() and (status is None or time.monotonic() < limit):
            # Not longer: between two reads it is looked whether the run's folder has moved.
            for key, _ in self._selector.select(0.2):
                data = os.read(key.fd, 65_536)
                key.data(data)
                if not data:
                    self._selector.unregister(key.fd)
            self._keep_place()
            if status is None:
                ended, found = os.waitpid(self._child, os.WNOHANG)
                if ended:
                    status, limit = found, time.monotonic() + DRAIN_SECONDS
        return os.waitpid(self._child, 0)[1] if status is None else status

    def _printer(self, stream: BackgroundWriter) -> Callable[[bytes], None]:
        decoder = LineDecoder()

        def take(data: bytes) -> None:
            text, lines = decoder.feed(data, last=not data)
            stream.write(text)
            for line in lines:
                self._keep(line)

        return take

    def _keep(self, line: str) -> None:
        if self._log is None:
            self._early.append(line)
        else:
            self._log.write(line)

    def _message(self, data: bytes) -> None:
        for line in self._control.feed(data, last=not data)[1]:
            with contextlib.suppress(ValueError):
                message = json.loads(line)
                if "run" in message:
                    self._follow(Path(message["run"]))
                if "begun" in message and self._run is not None and self._released is not None:
                    self._release(self._run)
                if "lighter" in message:
                    self._lighter = str(message["lighter"])
                if "cause" in message:
                    self._cause = str(message["cause"])
                if "log" in message:
                    self._keep(str(message["log"]))

    def _follow(self, run: Path) -> None:
        """Log into the folder of this run from now on."""
        self._run, self._cause, self._lighter = run, None, ""
        with contextlib.suppress(OSError):
            log = RunLog(run)
            if self._log is not None:
                self._log.close()
            self._log = log
            # What came before there was a run belongs to its log too.
            for line in self._early:
                log.write(line)
            self._early.clear()

    def _keep_place(self) -> None:
        """Make a link where the run's folder was moved while it trains, so that all still to be written follows it."""
        run, log = self._run, self._log
        if run is None or log is None or self._cause or not log.moved(run):
            return
        there = log.place()
        with contextlib.suppress(OSError):
            if there is not None and not run.exists():
                run.symlink_to(there)
                self._say(f"warn: the run's folder was moved to {there}; {run} is a link to it until training ends")
                self._link = run
                return
        self._cause = f"its folder {run} was {'deleted' if there is None else f'replaced: it is {there} now'}"
        self._hand_on(signal.SIGTERM, None)

    def _say(self, text: str) -> None:
        self._keep(text)
        self._err.write((json.dumps({"message": text}) if self._json else text) + "\n")

    def _release(self, run: Path) -> None:
        """Tell where the run is and how to come back to it, then leave the terminal."""
        assert self._released is not None
        if self._json:
            self._out.write(json.dumps({"run": str(run), "process": os.getpid()}) + "\n")
        else:
            self._out.write(
                f"run {run} trains on without this terminal, in process {os.getpid()}\n"
                f"  look:  windtunnel watch {run}\n  lines: windtunnel logs {run} -f\n  end:   windtunnel stop {run}\n"
            )
        for stream in (self._out, self._err):
            stream.close(DRAIN_SECONDS)
            stream.stop()
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, _OUT, _ERR):
            os.dup2(nothing, number)
        with contextlib.suppress(OSError):
            os.write(self._released, b".")
        os.close(self._released)
        self._released = None

    def _hand_on(self, number: int, frame: FrameType | None) -> None:
        self._asked += 1
        if self._code is not None:  # only output is waited for, which nobody takes
            os._exit(self._code)
        if number == signal.SIGINT and self._asked == 1 and os.isatty(_ERR):
            with contextlib.suppress(OSError):
                os.write(_ERR, _INTERRUPTED)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._child, number)

    def _hang_up(self, number: int, frame: FrameType | None) -> None:
        """Train on: what is printed goes into the log alone."""
        for stream in (self._out, self._err):
            stream.stop()

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        """Stand still with the job (Ctrl-Z) until the shell continues this process."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child, signal.SIGSTOP)
            send_below(self._child, signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
            send_below(self._child, signal.SIGCONT)
            os.killpg(self._child, signal.SIGCONT)

    def _ended(self, status: int) -> int:
        """Record the end of a job that could not; return the command's exit code."""
        code = os.waitstatus_to_exitcode(status)
        # It has told by itself: a job that ends with a code has written why.
        if code == 0 or (code > 0 and self._run is None):
            return code
        cause = self._cause or (f"the process ended with exit code {code}" if code >= 0 else self._killed(-code))
        recorded = self._run is not None and record_end(self._run, cause, lines=self._log.tail if self._log else self._early)
        if recorded and self._run is not None:
            self._page(self._run)
        if code < 0 and not recorded and self._run is not None and _was_stopped(self._run):
            return STOPPED  # it had saved and said so, and was on its way out when it was told again
        if code < 0:
            self._tell(cause, self._again(-code))
        return code if code >= 0 else 1

    def _killed(self, number: int) -> str:
        cause = f"the process was ended by {signal.Signals(number).name}"
        if number == signal.SIGKILL and self._was_short():
            return f"{cause}: the machine or its control group was out of memory"
        return f"{cause} (out of memory, or somebody's kill)" if number == signal.SIGKILL else cause

    def _was_short(self) -> bool:
        return memory_kills() > self._kills

    def _again(self, number: int) -> str:
        """Return how to go on after this signal: with less memory where the kernel may have sent it for want of some."""
        if self._run is None:
            return ""
        if number == signal.SIGKILL and self._lighter and self._was_short():
            return self._lighter
        again = f"go on with: windtunnel train --resume --run {shlex.quote(str(self._run))}"
        return f"{again}; where memory ran out, {self._lighter}" if number == signal.SIGKILL and self._lighter else again

    def _tell(self, cause: str, again: str) -> None:
        if self._json:
            text = json.dumps({"error": cause, "fix": again, "exit_code": 1})
        else:
            text = f"error: {cause}" + (f"\n  fix: {again}" if again else "")
        self._err.write(text + "\n")

    def _page(self, run: Path) -> None:
        from windtunnel.watch import write_run_page

        with contextlib.suppress(UserError):
            write_run_page(run)


def _was_stopped(run: Path) -> bool:
    """Return whether a run has recorded that it was told to stop, after it saved."""
    with contextlib.suppress(UserError):
        return RunFolder.open(run).manifest.get("status") == "stopped"
    return False


def _same_file(one: int, other: int) -> bool:
    a, b = os.fstat(one), os.fstat(other)
    return (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)


def memory_kills(groups: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many processes of this control group, and of those above it, the kernel has killed for their memory.

    Args:
        groups: which groups this process is in, a line each: of version 2, or of version 1 one for each controller.
        mount: where control groups are mounted.
    """
    kills = 0
    with contextlib.suppress(OSError, ValueError):
        for line in groups.read_text(encoding="ascii").splitlines():
            _, controllers, group = line.split(":", 2)
            if controllers not in ("", "memory"):
                continue
            top, name = (mount / "memory", "memory.oom_control") if controllers else (mount, "memory.events")
            here = top / group.strip("/")
            # A limit may be set on any group above, such as a container's.
            for folder in (here, *here.parents):
                counts = folder / name
                if counts.is_file():
                    found = dict(pair.split() for pair in counts.read_text(encoding="ascii").splitlines())
                    kills += int(found.get("oom_kill", 0))
    return kills
