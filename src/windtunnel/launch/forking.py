"""Programs of windtunnel forked from a process that has imported what they need: they start in milliseconds, not in seconds.

What is forked is the `main` of a module, as `python -m` runs it: in a session of its own, with its own environment, arguments
and streams, so that it can be killed, stopped and signalled as one that was started by its name.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import NoReturn

from .processes import stop_with_parent

TICK = 0.02
ANSWER_SECONDS = 60.0
"""Most that a fork takes, however busy the machine is."""
RAISED = 1
"""Exit code of a program that ended with an exception, as the interpreter's."""
Streams = tuple[int, int, int]


class Forked:
    """A program that a `Forker` started; see `windtunnel.launch.Process`."""

    def __init__(self, forker: Forker, pid: int) -> None:
        self._forker, self.pid = forker, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        if self.returncode is None:
            self.returncode = self._forker.code(self.pid)
        return self.returncode

    def wait(self) -> int:
        """Wait for its end and return the exit code."""
        while (code := self.poll()) is None:
            time.sleep(TICK)
        return code

    def send_signal(self, sig: int) -> None:
        """Send a signal, if it still runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, sig)


class Forker:
    """Forks programs, in a process of its own that is forked here and ends with this one.

    Make it where nothing has been computed and no thread started yet: both are what a fork cannot take with it.
    """

    def __init__(self) -> None:
        self._port, theirs = Pipe()
        self._lock, self._codes = threading.Lock(), dict[int, int]()
        self._pid = os.fork()
        if self._pid == 0:
            self._port.close()
            stop_with_parent()
            _serve(theirs)
        theirs.close()

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], output: Path) -> Forked:
        """Fork a program.

        Args:
            arguments: what would follow the interpreter: '-m', a module that has `main`, and its arguments.
            environment: all of it.
            output: a file, to which all that it prints is added.

        Raises:
            OSError: the process that forks is gone.
        """
        flag, *words = arguments
        assert flag == "-m"
        with self._lock:
            try:
                self._port.send((words, dict(environment), os.getcwd(), str(output)))
                while (started := self._take(ANSWER_SECONDS)) is None:
                    pass
            except (EOFError, OSError):
                raise OSError("the process that starts programs is gone") from None
            return Forked(self, started)

    def code(self, pid: int) -> int | None:
        """Return the exit code of a program, None while it runs; -SIGKILL where what forked it is gone, which ends it too."""
        with self._lock:
            try:
                while pid not in self._codes and self._port.poll():
                    self._take(0.0)
            except (EOFError, OSError):
                # Programs end with what forked them: the kernel tells them that their parent died.
                self._codes.setdefault(pid, -signal.SIGKILL)
            return self._codes.get(pid)

    def close(self) -> None:
        """End what forks, and with it what it forked; a test may want that, else the end of this process does it."""
        with self._lock:
            self._port.close()
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, 0)

    def _take(self, seconds: float) -> int | None:
        """Take one message in; return the process that it says has begun, None where it tells of an end."""
        if not self._port.poll(seconds):
            raise EOFError
        pid, code = self._port.recv()
        if code is None:
            return int(pid)
        self._codes[pid] = code
        return None


def _serve(port: Connection) -> NoReturn:
    """Fork what is asked for, and tell who began and who ended, until the other side hangs up."""
    children = set[int]()
    try:
        while True:
            # All that have ended since the last look.
            while children:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                children.discard(pid)
                port.send((pid, os.waitstatus_to_exitcode(status)))
            # Without children there is nothing to look after, and the process sleeps.
            if not port.poll(TICK if children else None):
                continue
            words, environment, folder, output = port.recv()
            pid = os.fork()
            if pid == 0:
                port.close()
                nothing, told = os.open(os.devnull, os.O_RDONLY), os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
                stop_with_parent()
                become(words, environment, folder, (nothing, told, told))
            children.add(pid)
            port.send((pid, None))
    except (EOFError, OSError):
        os._exit(0)


def become(words: Sequence[str], environment: Mapping[str, str], folder: str, streams: Streams) -> NoReturn:
    """Be a program from here on: call a module's `main` and end with its code.

    Args:
        words: the module, or a package whose `__main__` has it, and arguments.
        environment: all of it.
        folder: to be in.
        streams: descriptors of what becomes standard input, output and error.
    """
    os.setsid()
    sys.stdin = sys.stdout = sys.stderr = None  # type: ignore[assignment]  # what closes its number does so before it is another's
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    for descriptor in set(streams) - {0, 1, 2}:
        os.close(descriptor)
    # As the interpreter opens them: lines of standard error are there at once.
    sys.stdin, sys.stdout = (open(n, mode, encoding="utf-8", closefd=False) for n, mode in ((0, "r"), (1, "w")))  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path.insert(0, folder)
    sys.argv = list(words)
    _end(_code(words[0]))


def _code(module: str) -> int:
    """Return what a module's `main` ends with."""
    try:
        count_threads()
        loaded = import_module(module)
        # As `python -m` does with a package.
        main: Callable[[], int | None] = (import_module(f"{module}.__main__") if hasattr(loaded, "__path__") else loaded).main
        return main() or 0
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return RAISED
    # Whatever it is: an exception must not come back into the process that forks, in whose copy this runs.
    except BaseException:
        import traceback

        traceback.print_exc()
        return RAISED


def count_threads() -> None:
    """Give torch, which looked when it was imported, the number of threads that the program's own environment says."""
    wanted, torch = os.environ.get("OMP_NUM_THREADS", ""), sys.modules.get("torch")
    if wanted.isdigit() and int(wanted) and torch is not None:
        torch.set_num_threads(int(wanted))


def _end(code: int) -> NoReturn:
    """End as the interpreter does: wait for threads, run what was registered, write what is left."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
    finally:
        os._exit(code)
