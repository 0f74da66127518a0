"""A process that has imported everything and forks others: a command or a rank then starts in milliseconds, not in seconds.

What is forked is a program of windtunnel (`windtunnel.launch.forking` says how), with a folder and streams of its own. What must
not be imported yet, as in tests of how quickly a command starts, is started by hand.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from waiting import HANG

from windtunnel.launch.forking import become

PRELOADED = (
    "windtunnel.launch.worker", "windtunnel.train.session", "windtunnel.train.hf", "torch.distributed.fsdp",
    "windtunnel.cli.verbs", "windtunnel.cli.plan", "windtunnel.cli.train", "windtunnel.cli.check", "windtunnel.cli.evaluate",
    "windtunnel.cli.export", "windtunnel.cli.prepare", "windtunnel.plan", "rich.console", "rich.table",
)  # fmt: skip


def windtunnel(
    *arguments: str, cwd: Path | None = None, env: dict[str, str] | None = None, input: str = "", timeout: float = HANG
) -> subprocess.CompletedProcess[str]:
    """Run `windtunnel` with these arguments as `subprocess.run` would; what it prints is text in UTF-8."""
    with tempfile.TemporaryDirectory(prefix="windtunnel-") as held:
        place = Path(held)
        (place / "in").write_text(input, encoding="utf-8")
        pid = _zygote().start(
            "windtunnel", list(arguments), dict(os.environ if env is None else env), cwd or Path.cwd(),
            (place / "in", place / "out", place / "err"),
        )  # fmt: skip
        code = _zygote().wait(pid, timeout)
        out, err = ((place / name).read_text(encoding="utf-8") for name in ("out", "err"))
    return subprocess.CompletedProcess(["windtunnel", *arguments], code, out, err)


class Ranks:
    """The ranks of a run, started at once; used as one `subprocess.Popen` whose code is the first that is not 0."""

    def __init__(self, folder: Path, ranks: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
        self._held = tempfile.TemporaryDirectory(prefix="ranks-", ignore_cleanup_errors=True)
        self._place = Path(self._held.name)
        self.pids = [self._start(folder, own | {"RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(ranks)]

    def _start(self, folder: Path, own: dict[str, str]) -> int:
        nothing, printed = Path(os.devnull), self._place / f"{own['RANK']}.out"
        arguments, streams = [str(folder), "--json"], (nothing, printed, printed)
        return _zygote().start("windtunnel.launch.worker", arguments, {**os.environ, **own}, Path.cwd(), streams)

    @property
    def returncode(self) -> int | None:
        """The first code that is not 0 once all have ended; None before."""
        codes = [_zygote().code(pid) for pid in self.pids]
        return None if None in codes else next((code for code in codes if code), 0)

    def poll(self) -> int | None:
        """The same."""
        return self.returncode

    def kill(self) -> None:
        """SIGKILL all of them, and wait until they are gone."""
        for pid in self.pids:
            if _zygote().code(pid) is None:
                os.kill(pid, signal.SIGKILL)
        self.communicate()

    def communicate(self, timeout: float = 300.0) -> tuple[str, None]:
        """Wait for the end of all; what they printed."""
        limit = time.monotonic() + timeout
        while self.returncode is None:
            assert time.monotonic() < limit, "the ranks did not end"
            time.sleep(0.01)
        return "".join(path.read_text() for path in sorted(self._place.iterdir())), None


class _Client:
    """This side of the zygote."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        atexit.register(self._process.kill)
        self._codes: dict[int, int] = {}
        self._started: list[int] = []
        self._told = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()

    def start(
        self, module: str, arguments: list[str], environment: dict[str, str], cwd: Path, streams: tuple[Path, Path, Path]
    ) -> int:
        """Fork a process that calls the module's main; its pid."""
        assert self._process.stdin is not None
        asked = {
            "module": module, "arguments": arguments, "environment": environment, "cwd": str(cwd),
            "streams": [str(path) for path in streams],
        }  # fmt: skip
        with self._told:
            before = len(self._started)
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
            assert self._told.wait_for(lambda: len(self._started) > before, 300.0), "the zygote does not answer"
            return self._started[-1]

    def code(self, pid: int) -> int | None:
        """The exit code of a process, None while it runs."""
        return self._codes.get(pid)

    def wait(self, pid: int, timeout: float) -> int:
        """Return the exit code of a process once it has ended; one that does not end in time is killed, and said."""
        with self._told:
            if not self._told.wait_for(lambda: pid in self._codes, timeout):
                os.kill(pid, signal.SIGKILL)
                raise AssertionError(f"it did not end within {timeout:g} s")
            return self._codes[pid]

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._told:
                told = json.loads(line)
                if "started" in told:
                    self._started.append(told["started"])
                else:
                    self._codes[told["ended"]] = told["code"]
                self._told.notify_all()


@functools.cache
def _zygote() -> _Client:
    return _Client()


def _serve() -> None:
    """Be the zygote: fork what is asked for on standard input, tell who began and who ended."""
    for name in PRELOADED:
        importlib.import_module(name)
    children: set[int] = set()
    waiting = b""
    while True:
        while children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            children.discard(pid)
            _tell({"ended": pid, "code": os.waitstatus_to_exitcode(status)})
        if not select.select([0], [], [], 0.01)[0]:
            continue
        data = os.read(0, 1 << 20)
        if not data:
            return
        *lines, waiting = (waiting + data).split(b"\n")
        for line in lines:
            asked = json.loads(line)
            pid = os.fork()
            if pid == 0:
                _be(asked)
            children.add(pid)
            _tell({"started": pid})


def _tell(what: dict[str, int]) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


def _be(asked: dict[str, Any]) -> None:
    """Be what is asked for."""
    flags = (os.O_RDONLY, *[os.O_WRONLY | os.O_CREAT] * 2)
    given, out, err = (os.open(path, flag, 0o600) for path, flag in zip(asked["streams"], flags, strict=True))
    become([asked["module"], *asked["arguments"]], asked["environment"], asked["cwd"], (given, out, err))


if __name__ == "__main__":
    _serve()
