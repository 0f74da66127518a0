"""The judge's handle on the process that warm workers are forks of, and on a fork."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from json import dumps

from windtunnel.recipe import UserError

from .channel import ready
from .paths import import_path, is_readable

START_SECONDS = 300.0
FORK_SECONDS = 60.0
MOST_ANSWER = 1 << 16
MOST_POLL_SECONDS = 3600.0  # poll counts milliseconds in 31 bits
QUIET = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
# A user's name, since libraries ask for one and the password file is out of reach.
HOME = {"USER": "candidate", "HOME": "/tmp", "TMPDIR": "/tmp", "TRITON_CACHE_DIR": "/tmp/triton", "XDG_CACHE_HOME": "/tmp"}
PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "LANG", "CC", "TRITON_LIBCUDA_PATH")


class Forked:
    """A worker's process. It is no child of the judge's, and so nothing that could be waited for by its number."""

    def __init__(self, pid: int, watch: int) -> None:
        self.pid, self._watch = pid, watch
        self._lock = threading.Lock()

    def kill(self) -> None:
        """End it, if it still runs. From any thread, also once it was closed."""
        with self._lock, contextlib.suppress(ProcessLookupError):
            if self._watch >= 0:
                signal.pidfd_send_signal(self._watch, signal.SIGKILL)

    def wait(self) -> None:
        """Wait until it has ended."""
        while not ready(self._watch, MOST_POLL_SECONDS):
            pass

    def close(self) -> None:
        """End it and forget it."""
        self.kill()
        self.wait()
        with self._lock:  # its number may soon stand for another file
            os.close(self._watch)
            self._watch = -1


class Template:
    """A process that has imported what jobs need. It starts when first needed, or with `begin`, and again when it has ended.

    Safe to use from several threads. preload, environment: as of a Sandbox.
    """

    def __init__(self, preload: Sequence[str], environment: Mapping[str, str]) -> None:
        self.preload, self.environment = tuple(preload), dict(environment)
        self.users = 0
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = self._stopped = False

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        return None if self._process is None else self._process.pid

    def begin(self) -> None:
        """Start it if it does not run, and do not wait."""
        with self._lock:
            self._begin()

    def fork(self, control: socket.socket, prints: int) -> Forked:
        """Fork a new worker, which is given this socket and prints into this file.

        Raises:
            UserError: it cannot be started; says what it printed.
        """
        with self._lock:
            try:
                return self._fork(control, prints)
            except BaseException as error:  # raised again, but for what a worker that ends makes of the socket
                text = self._printed()
                self._end()  # whatever it has said by now would be taken for the answer to the next order
                if not isinstance(error, OSError | EOFError | ValueError):
                    raise
                raise UserError(f"the sandbox's worker did not start: {text or error}") from None

    def stop(self) -> None:
        """End it for good, from any thread and without waiting for one that starts it. `release` clears up."""
        self._stopped = True
        process = self._process
        if process is not None:
            process.kill()

    def release(self) -> None:
        """Count one user less; the last one ends it."""
        with self._lock:
            self.users -= 1
            if self.users <= 0:
                self._end()

    def _fork(self, control: socket.socket, prints: int) -> Forked:
        if self._process is not None and self._process.poll() is not None:
            self._end()
        self._begin()
        if not self._ready:
            answer, _ = receive(self._orders, START_SECONDS, self._printed)
            self._ready = answer == b"ready"
        socket.send_fds(self._orders, [b"fork"], [control.fileno(), prints])
        answer, fds = receive(self._orders, FORK_SECONDS, self._printed)
        if len(fds) != 1:
            raise OSError(answer.decode(errors="replace"))
        return Forked(int(answer), fds[0])

    def _begin(self) -> None:
        if self._process is not None:
            return
        kept = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        if not is_readable(kept.get("CC", "cc")):
            kept.pop("CC", None)  # Triton then looks for one on the path
        self._orders, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._prints = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        code = f"import sys; sys.path[:] = {import_path()!r}; "
        code += f"from windtunnel.verify.sandbox.template import main; main({there.fileno()})"
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", code],
                env=QUIET | kept | HOME | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=self._prints,
                stderr=self._prints,
                pass_fds=[there.fileno()],
                start_new_session=True,
                cwd="/",
            )
        finally:
            there.close()
        if self._stopped:  # looked at only now: whoever stops it before does not see the process
            self._end()
            raise UserError("the sandbox was stopped")
        self._orders.send(dumps({"preload": self.preload}).encode())

    def _end(self) -> None:
        if self._process is None:
            return
        self._orders.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        self._prints.close()
        self._process, self._ready = None, False

    def _printed(self) -> str:
        return "" if self._process is None else last_words(self._prints.fileno())


def last_words(fd: int) -> str:
    """Return the end of what a process printed into a file."""
    size = os.fstat(fd).st_size
    start = max(0, size - 2000)
    return os.pread(fd, size - start, start).decode(errors="replace").strip()


def receive(source: socket.socket, seconds: float, printed: Callable[[], str]) -> tuple[bytes, list[int]]:
    """Return what a process answers on a socket, and the file that comes with it.

    printed: what the process printed, for the words where it has ended.

    Raises:
        OSError: no answer came in time.
        EOFError: it ended.
    """
    deadline = time.monotonic() + seconds
    while not ready(source.fileno(), min(max(0.0, deadline - time.monotonic()), MOST_POLL_SECONDS)):
        if time.monotonic() >= deadline:
            raise OSError(f"no answer within {seconds:.0f} s")
    data, fds, _, _ = socket.recv_fds(source, MOST_ANSWER, 1)
    if not data:
        raise EOFError(f"it ended: {printed()}")
    return data, fds
