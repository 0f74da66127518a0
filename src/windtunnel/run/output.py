"""What a run prints: its rotated log, streams that cannot hold up or end a training, and the channel to its supervisor."""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import queue
import shutil
import threading
import time
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

LOG = "output.log"
NEXT_LOG = f".{LOG}.next"
LOGS = "logs"
"""In the run's folder: a file for each engine and each process that judges, NAME.log."""
LOG_BYTES = 10_000_000
LOGS_KEPT = 4
TAIL_LINES = 40
SUPERVISOR = "WINDTUNNEL_SUPERVISOR"
"""Environment: the channel's file descriptor and the terminal's, each as 'number/inode'; '' where there is no terminal."""
_QUEUE_CHUNKS = 4096
_DRAIN_SECONDS = 2.0
# Linux writes up to PIPE_BUF (4,096) bytes into a pipe in one piece.
_MESSAGE_BYTES = 3000  # with its JSON below PIPE_BUF, so that messages of several processes do not mix


class RunLog:
    """RUN/output.log: all lines of all processes with their time, rotated to output.log.1 and so on.

    The folder is held open: a run that is moved while it trains keeps its log. A full disk costs lines, not the run.

    Args:
        folder: the run's.
        most_bytes: size at which the file is rotated; 1 % of the disk where that is less. kept: how many older ones stay.
    """

    def __init__(self, folder: Path, most_bytes: int = LOG_BYTES, kept: int = LOGS_KEPT) -> None:
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        self._most, self._kept = min(most_bytes, shutil.disk_usage(self._folder).total // 100), kept
        self._file = self._open()
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._cut = False  # whether the disk was full within the last line

    @property
    def tail(self) -> list[str]:
        """The last lines, oldest first, without their times."""
        return list(self._tail)

    def write(self, line: str) -> None:
        """Append a line. Of a line that was drawn over with carriage returns the last state is kept."""
        line = line.rstrip("\r\n").rpartition("\r")[2]
        self._tail.append(line)
        data = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}  {line}\n".encode("utf-8", "replace")
        with contextlib.suppress(OSError):
            # Asked each time instead of counted: `log_only` may append to the same file.
            if os.fstat(self._file).st_size + len(data) > self._most:
                self._rotate()
            self._cut = os.write(self._file, b"\n" * self._cut + data) < len(data) + self._cut

    def moved(self, path: Path) -> bool:
        """Whether the folder is no longer at `path`."""
        try:
            there, here = os.stat(path), os.fstat(self._folder)
        except OSError:
            return True
        return (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino)

    def place(self) -> Path | None:
        """Return where the folder is now; None when it was deleted, or where that cannot be told."""
        with contextlib.suppress(OSError):
            found = Path(os.readlink(f"/proc/self/fd/{self._folder}"))
            return found if not self.moved(found) else None
        return None

    def close(self) -> None:
        """Let the file and the folder go."""
        os.close(self._file)
        os.close(self._folder)

    def _open(self, name: str = LOG) -> int:
        return os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644, dir_fd=self._folder)

    def _rotate(self) -> None:
        """Begin another file. It is made first: where that fails nothing is renamed, and no closed descriptor is written to."""
        file = self._open(NEXT_LOG)
        names = [LOG, *(f"{LOG}.{number}" for number in range(1, self._kept + 1))]
        # From the oldest on, so that each name is free when the next takes it.
        for newer, older in (*zip(names[-2::-1], names[:0:-1], strict=True), (NEXT_LOG, LOG)):
            with contextlib.suppress(FileNotFoundError):
                os.rename(newer, older, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        os.close(self._file)
        self._file = file


def log_files(folder: Path) -> list[Path]:
    """Return the log files of a run, oldest first."""
    numbered = sorted(folder.glob(f"{LOG}.*"), key=lambda path: int(path.suffix[1:]) if path.suffix[1:].isdecimal() else 0)
    return [path for path in [*numbered[::-1], folder / LOG] if path.is_file()]


def part_logs(folder: Path) -> list[Path]:
    """Return what engines and judges of a run printed, a file each, by name."""
    return sorted(path for path in (folder / LOGS).glob("*.log") if path.is_file())


def print_to(log: Path) -> None:
    """Have all that this process and those that it starts print go to the end of a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for descriptor in (1, 2):
        os.dup2(file, descriptor)
    os.close(file)


class BackgroundWriter:
    """A text stream that never blocks and never fails: a thread writes, and what nobody takes is left out.

    A terminal that was closed or is held with Ctrl-S, a pipe whose reader has gone and a full disk cost output only.

    Args:
        descriptor: where to write; None: nowhere.
        encoding: of what is written; characters that it lacks are replaced.
    """

    def __init__(self, descriptor: int | None, encoding: str | None = None) -> None:
        self._descriptor = descriptor
        self.encoding = encoding or "utf-8"
        self.failed = descriptor is None
        self._queue: queue.Queue[bytes | None] = queue.Queue(_QUEUE_CHUNKS)
        self._thread = threading.Thread(target=self._work, name="output", daemon=True)
        self._thread.start()

    def write(self, text: str) -> int:
        """Hand over text; returns its length."""
        with contextlib.suppress(queue.Full):
            if not self.failed:
                self._queue.put_nowait(text.encode(self.encoding, "replace"))
        return len(text)

    def flush(self) -> None:
        """Do nothing: the thread writes at once."""

    def isatty(self) -> bool:
        """Whether this is a terminal that still takes output."""
        return not self.failed and self._descriptor is not None and os.isatty(self._descriptor)

    def fileno(self) -> int:
        """Return the descriptor, of which a terminal's size is asked."""
        if self._descriptor is None:
            raise OSError("closed")
        return self._descriptor

    def stop(self) -> None:
        """Write nothing more."""
        self.failed = True

    def drain(self) -> None:
        """Wait until all is written, or for two seconds; more can be written afterwards."""
        limit = time.monotonic() + _DRAIN_SECONDS
        while not self._queue.empty() and not self.failed and time.monotonic() < limit:
            time.sleep(0.005)

    def close(self, seconds: float | None = None) -> None:
        """Wait until all is written, or for so many seconds."""
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=seconds)
            self._thread.join(seconds)

    def _work(self) -> None:
        while (data := self._queue.get()) is not None:
            while data and not self.failed:
                try:
                    assert self._descriptor is not None
                    data = data[os.write(self._descriptor, data) :]
                except OSError:
                    self.failed = True


class SafeStream:
    """A text stream around another; what that does not take (closed, full, no reader) is dropped from then on."""

    def __init__(self, stream: IO[str] | None) -> None:
        self._stream = stream
        self.encoding = getattr(stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        """Write, or drop; returns the text's length."""
        # There and back: characters that the terminal's encoding lacks become '?', where print would raise.
        self._try(lambda stream: stream.write(text.encode(self.encoding, "replace").decode(self.encoding)))
        return len(text)

    def flush(self) -> None:
        """Flush, or drop."""
        self._try(lambda stream: stream.flush())

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return self._stream is not None and not self._stream.closed and self._stream.isatty()

    def fileno(self) -> int:
        """Return the stream's descriptor."""
        if self._stream is None:
            raise OSError("closed")
        return self._stream.fileno()

    def _try(self, do: Any) -> None:
        try:
            if self._stream is not None:
                do(self._stream)
        except (OSError, ValueError):
            self._stream = None


class Channel:
    """How the processes of a job speak to the process that supervises them. Telling never fails.

    Attributes:
        terminal: descriptor of the user's terminal, to draw on; None: there is none.
    """

    def __init__(self, control: int, terminal: int | None) -> None:
        self._control, self.terminal = control, terminal

    @classmethod
    def inherited(cls) -> Channel | None:
        """Return the channel named by the environment, or None where nobody supervises this process."""
        control, _, terminal = os.environ.get(SUPERVISOR, "").partition(",")
        number = _checked(control)
        return None if number is None else cls(number, _checked(terminal))

    @classmethod
    def tell_begun(cls) -> None:
        """Tell whoever supervises this process that its run is trained now: a detached command leaves it alone then."""
        if (channel := cls.inherited()) is not None:
            channel.tell(begun=True)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What processes that are started must inherit (`pass_fds`)."""
        return (self._control,) if self.terminal is None else (self._control, self.terminal)

    def environment(self) -> str:
        """Return the value of the variable that names this channel."""
        named = [f"{number}/{os.fstat(number).st_ino}" for number in self.descriptors]
        return ",".join([*named, ""][:2])

    def tell(self, **message: Any) -> None:
        """Send a message.

        Args:
            message: run=folder of what is trained now, begun=True once nothing is left that would refuse to,
                lighter=how it needs less memory, cause=why it failed.
        """
        data = json.dumps(message, default=str).encode() + b"\n"
        with contextlib.suppress(OSError):
            os.write(self._control, data)

    def log(self, text: str) -> None:
        """Put text into the run's log and nowhere else."""
        for line in text.splitlines():
            self.tell(log=line[:_MESSAGE_BYTES])


def log_only(folder: Path | None, text: str) -> None:
    """Put text into a run's log without showing it: through the supervisor, or directly where there is none."""
    channel = Channel.inherited()
    if channel is not None:
        channel.log(text)
    elif folder is not None:
        with contextlib.suppress(OSError):
            log = RunLog(folder)
            for line in text.splitlines():
                log.write(line)
            log.close()


class LineDecoder:
    """Lines out of chunks of bytes."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def feed(self, data: bytes, *, last: bool = False) -> tuple[str, list[str]]:
        """Return the chunk as text, and the lines that it completes."""
        # Incremental: a chunk may end within a character.
        text = self._decoder.decode(data, last)
        *lines, self._rest = (self._rest + text).split("\n")
        if last and self._rest:
            lines, self._rest = [*lines, self._rest], ""
        return text, lines


def _checked(named: str) -> int | None:
    """Return the descriptor 'number/inode' if it is still that file; others are not ours."""
    # The variable outlives the descriptor in processes that did not inherit it, where the number may mean any file.
    number, _, inode = named.partition("/")
    with contextlib.suppress(OSError, ValueError):
        if os.fstat(int(number)).st_ino == int(inode):
            return int(number)
    return None
