"""Who trains a run: a process named so that it cannot be mistaken for another, and the lock that it holds.

A process id alone is given to another process after a while and after a restart of the machine. With the
machine's name, the id of its boot and the moment at which the process started it is unique.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from windtunnel.recipe import UserError

LOCK = "lock"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_COMPILERS = "WINDTUNNEL_COMPILERS"  # names those that compile what the first step needs
COMPILING_SECONDS = 60.0
"""Most that such a process takes, and most that is waited for it."""
_TICK = 0.02
_STATE, _STARTED = 0, 19  # fields of /proc/PID/stat after the command's name, see proc(5)


@dataclass(frozen=True)
class ProcessId:
    """A process on some machine.

    Attributes:
        pid: its number. started: clock ticks between the machine's start and the process's; None: unknown.
        boot: the machine's boot id; '' where there is none. host: the machine's name.
    """

    pid: int
    started: int | None
    boot: str
    host: str

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """Return the identity of a process of this machine."""
        return cls(pid, _started(pid), _boot_id(), socket.gethostname())

    @classmethod
    def parse(cls, text: str) -> ProcessId | None:
        """Read what `dump` wrote; None for anything else."""
        with contextlib.suppress(ValueError, TypeError):
            return cls(**json.loads(text))
        return None

    def dump(self) -> str:
        """Return the identity as one line of JSON."""
        return json.dumps(asdict(self))

    @property
    def here(self) -> bool:
        """Whether the process is, or was, one of this machine."""
        return self.host == socket.gethostname()

    @property
    def alive(self) -> bool | None:
        """Whether the process still runs; None when it is one of another machine."""
        if not self.here:
            return None
        if self.boot != _boot_id():
            return False
        # None: written where /proc was missing, and then the number has to do.
        return _started(self.pid) is not None and self.started in (None, _started(self.pid))

    @property
    def booted_now(self) -> bool:
        """Whether the machine has not been restarted since the process ran."""
        return self.here and self.boot == _boot_id()

    def send(self, number: int) -> bool:
        """Send a signal to this very process; returns False where it is gone."""
        if not self.alive:
            return False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, number)
            return True
        return False

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class RunLock:
    """The lock of a run folder: held by the process that trains, until `release` or its death.

    Raises:
        UserError: another process holds it, or the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._file = _take(folder)

    def release(self) -> None:
        """Let others have the folder."""
        self._file.close()


def holder(folder: Path) -> ProcessId | None:
    """Return the process that holds a run, or None when nobody does.

    A process of another machine is believed to hold it for as long as the file system keeps its lock.
    """
    try:
        with open(folder / LOCK, encoding="utf-8") as file:
            # Read before the lock is tried: whoever takes it writes its own name.
            found = ProcessId.parse(file.read())
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        # A dead process's children may have inherited the lock: they do not train.
        return None if found is not None and found.alive is False else found or ProcessId(0, None, "", "an unknown machine")
    except OSError:
        return None
    return None


def last_holder(folder: Path) -> ProcessId | None:
    """Return the process that holds a run or was the last to hold it."""
    with contextlib.suppress(OSError):
        return ProcessId.parse((folder / LOCK).read_text(encoding="utf-8"))
    return None


def is_live(folder: Path) -> bool:
    """Whether a process holds the run."""
    return holder(folder) is not None


def process_state(pid: int) -> str:
    """Return the letter of proc(5) for a process's state, such as 'T' for stopped; '' where it is gone or unknown."""
    fields = _stat(pid)
    return fields[_STATE] if fields else ""


def _take(folder: Path) -> IO[str]:
    path = folder / LOCK
    try:
        file = open(path, "a+", encoding="utf-8")  # noqa: SIM115 - held for the run's life
        for attempt in range(5):  # `holder` takes the lock for an instant
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                by = holder(folder)
                if attempt == 4 and by is not None:
                    file.close()
                    raise UserError(
                        f"run folder {folder} is in use by {by}", f"stop it with `windtunnel stop {folder}`, or start a new run"
                    ) from None
                if attempt == 4:  # only children of a dead process have it: they keep the old file
                    file.close()
                    path.unlink(missing_ok=True)
                    file = open(path, "a+", encoding="utf-8")  # noqa: SIM115
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                time.sleep(0.02)
        file.truncate(0)
        file.write(ProcessId.of(os.getpid()).dump())
        file.flush()
    except OSError as error:
        fix = "copy it to where it can be written, then --run COPY"
        raise UserError(f"run folder {folder} cannot be locked: {error.strerror or error}", fix) from None
    return file


def name_compilers(pids: Iterable[int]) -> None:
    """Name processes that compile to those that are started from now on, and to this one."""
    os.environ[_COMPILERS] = json.dumps([ProcessId.of(pid).dump() for pid in pids])


def _compiling() -> bool:
    """Return whether a process that compiles still runs."""
    named = (ProcessId.parse(text) for text in json.loads(os.environ.get(_COMPILERS, "[]")))
    return any(one is not None and one.alive for one in named)


def wait_for_compilers(stopped: Callable[[], object], seconds: float = COMPILING_SECONDS) -> None:
    """Wait until all processes that compile have ended, or for so long, or until `stopped`.

    Whoever compiled the same beside them would have it later.
    """
    limit = time.monotonic() + seconds
    while _compiling() and time.monotonic() < limit and not stopped():
        time.sleep(_TICK)


def _boot_id() -> str:
    with contextlib.suppress(OSError):
        return _BOOT_ID.read_text(encoding="ascii").strip()
    return ""


def _started(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None where it is gone, and 0 where /proc is missing."""
    if not Path("/proc/self/stat").exists():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            pass
        return 0
    fields = _stat(pid)
    return int(fields[_STARTED]) if fields and fields[_STATE] not in "ZX" else None  # a zombie has ended


def _stat(pid: int) -> list[Any]:
    with contextlib.suppress(OSError, ValueError):
        # Behind the last ')': a command's name may have blanks and brackets of its own.
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return []
