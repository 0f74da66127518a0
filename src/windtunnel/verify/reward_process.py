"""A user's reward in a process of its own: it may crash, hang, print, fork or eat memory, and the check goes on.

As a verifier it judges answers to one prompt.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from windtunnel.recipe import Plugin, UserError, find_plugin, plugins

from .sandbox.channel import ready
from .sandbox.syscalls import SET_PDEATHSIG, prctl
from .types import Verdict, accept, broken, refuse

# By its path: it imports nothing of this package, whose modules a reward may shadow.
CHILD = Path(__file__).with_name("reward_child.py")
# In the environment of all that it starts, by which what leaves its session is found.
MARK = "WINDTUNNEL_REWARD_CHECK"
IMPORT_SECONDS = 60.0
CALL_SECONDS = 10.0
# After so many calls in a row that did not come back it is not called for so long: what it asks, a server perhaps, is gone.
HUNG_IN_ROW, REST_SECONDS = 5, 60.0
# Of what is resident: enough for a reward that loads a small model.
MEMORY_BYTES = 4 << 30
LOG = "reward.log"
TAIL_BYTES = 4096
# Bytes: a call that prints more is ended; a log that is longer before a call is cut to its end.
MOST_PRINTED, MOST_LOG, KEPT_LOG = 64 << 20, 16 << 20, 1 << 20
# Libraries such as torch map far more than they use, so what is used is watched besides.
ADDRESS_BYTES = 64 << 30
WATCH_SECONDS = 0.05
# A look at what it uses is followed by none for so many times as long as it took.
LOOK_SHARE = 20.0
# What a function must return at least for an answer that is right.
ENOUGH = 0.5

Ended = Literal["", "died", "hung", "memory", "printed", "forked"]


@dataclass(frozen=True)
class Reply:
    """What came of one call.

    Attributes:
        value: what it returned, or None. kind: the type of that. problem: why there is no value.
        ended: why the process is gone. raised: an exception came out. signature: it takes other arguments.
    """

    value: float | None
    seconds: float = 0.0
    kind: str = ""
    problem: str = ""
    ended: Ended = ""
    raised: bool = False
    signature: str | None = None


class RewardFailed(UserError):
    """The reward cannot be loaded at all."""


@dataclass(frozen=True)
class Reward:
    """Where a reward is: in a file of the user's, or in a package that offers it by name.

    Attributes:
        file: its source. function: its name, with the module before it where a package offers it ('verses.rewards:rhymes').
        key: of the recipe, that names it. plugin: what offers it; None: a file of the user's.
    """

    file: Path
    function: str
    key: str
    plugin: Plugin | None = None

    def __str__(self) -> str:
        return str(self.plugin) if self.plugin else f"{self.key} {self.file}"

    def open(
        self, folder: Path, *, call_seconds: float = CALL_SECONDS, log: str = LOG, record: Mapping[str, Any] | None = None
    ) -> RewardProcess:
        """Load it in a process of its own. Raises RewardFailed. See `RewardProcess` for the arguments."""
        if not self.file.is_file():
            what = "is a directory" if self.file.is_dir() else f"does not exist (looked in {Path.cwd()})"
            fix = "give the file's path from the recipe's folder, and ship it with the job"
            raise RewardFailed(f"{self.key}: {self.file} {what}", fix)
        try:
            return RewardProcess(self.file, self.function, folder, call_seconds=call_seconds, log=log, record=record)
        except RewardFailed as error:
            raise RewardFailed(f"{self}: {error.message}", error.fix) from None


def find_reward(given: str, key: str) -> Reward:
    """Find a reward by 'file.py:function', or by the name under which a package offers it; the file need not exist.

    key: of the recipe, that names it.

    Raises:
        UserError: no installed package offers a reward of that name, or its module cannot be found.
    """
    file, colon, function = given.rpartition(":")
    if colon:
        return Reward(Path(file).expanduser(), function, key)
    plugin = find_plugin("rewards", function)
    if plugin is None:
        offered = ", ".join(found.name for found in plugins("rewards")) or "none"
        fix = f"give {key} as file.py:function, or install a package that offers it; offered: {offered}"
        raise UserError(f"no installed package offers a reward named {function!r}", fix)
    source = plugin.source()
    if source is None:
        raise plugin.broken("cannot be loaded: its module is not there")
    return Reward(source, plugin.value, key, plugin)


class RewardProcess:
    """Calls one reward; started again where a call ended it. Leaving the `with` block ends all that it started.

    Args:
        file, function: the plug-in. folder: gets its log. call_seconds: most a call may take.
        memory: bytes that it and its children may use. log: name of the file to whose end goes what it prints.
        record: columns of calls that come without any.

    Raises:
        RewardFailed: it cannot be imported, or has no such function.
    """

    def __init__(
        self, file: Path, function: str, folder: Path, *, call_seconds: float = CALL_SECONDS, memory: int = MEMORY_BYTES,
        log: str = LOG, record: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.file, self.function, self.log, self._record = file, function, folder / log, record or {}
        self.import_seconds, self.starts = 0.0, 0
        self._call_seconds, self._memory = call_seconds, memory
        self._mark = uuid.uuid4().hex
        self._process: subprocess.Popen[bytes] | None = None
        self._look_at = 0.0
        self._number = 0
        self._hung, self._rests_until = 0, 0.0
        self._before = 0  # bytes of the log when it was asked
        self._start()

    def __enter__(self) -> RewardProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def printed(self) -> int:
        """Bytes that it wrote to standard output and error."""
        return self.log.stat().st_size

    def call(
        self, prompt: str, answer: str, truth: str | None, right: Any = None, record: Mapping[str, Any] | None = None
    ) -> Reply:
        """Return one reward. Never raises for what the user's code does.

        right: the right answer as the record has it, where that is no text. record: its other columns.

        Where calls in a row hang, the next ones are not made: a round of answers would wait for each of them.
        """
        if self._hung >= HUNG_IN_ROW and time.monotonic() < self._rests_until:
            why = f"it was not called: {self._hung} calls in a row did not come back within {self._call_seconds:g} s"
            return Reply(None, problem=why)
        if self._process is None:
            self._start()
        self._number += 1
        self._note_log()
        right = truth if right is None else right
        request = {
            "id": self._number, "prompt": prompt, "answer": answer, "truth": truth, "right": right,
            "record": dict(record or self._record),
        }  # fmt: skip
        began = time.monotonic()
        with contextlib.suppress(OSError):  # it died meanwhile: reading says so
            self._send(json.dumps(request).encode() + b"\n", self._call_seconds)
        message, ended = self._receive(self._call_seconds)
        self._hung = self._hung + 1 if ended == "hung" else 0
        self._rests_until = time.monotonic() + REST_SECONDS
        # A child of the reward's that came back here answers too, and its answers would be taken for the next calls'.
        if message is not None and (message.get("forked") or message["id"] != self._number):
            message, ended = None, "forked"
        if message is None:
            return Reply(None, time.monotonic() - began, problem=self._why(ended, self._call_seconds), ended=ended)
        value = float(message["value"]) if "value" in message else None
        return Reply(
            value, message["seconds"], message.get("kind", ""), message.get("problem", ""),
            raised=message.get("raised", False), signature=message.get("signature"),
        )  # fmt: skip

    def close(self) -> int:
        """End it; the number of processes of its own that it had left running."""
        self._kill()
        return self._sweep()

    def pid(self) -> int:
        """Of the process that the reward runs in now."""
        return self._process.pid if self._process else 0

    def _start(self) -> None:
        self.starts += 1
        self._rest = b""
        (child_in, self._to), (self._from, child_out) = os.pipe(), os.pipe()
        command = [
            sys.executable,
            "-P",
            str(CHILD),
            str(self.file),
            self.function,
            str(ADDRESS_BYTES),
            str(child_in),
            str(child_out),
        ]
        with open(self.log, "ab") as log:
            self._note_log()
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(child_in, child_out),
                env={**os.environ, MARK: self._mark}, start_new_session=True,
                preexec_fn=_stop_with_parent,
            )  # fmt: skip
        os.close(child_in)
        os.close(child_out)
        # A reward that reads nothing would hold the writer for ever.
        os.set_blocking(self._to, False)
        message, ended = self._receive(IMPORT_SECONDS)
        if message is None:
            fix = "leave servers, models and downloads to the first call: importing the file should only define functions"
            raise RewardFailed(f"importing it: {self._why(ended, IMPORT_SECONDS)}", fix)
        if not message.get("loaded"):
            self._kill()
            forks = "importing it forks processes that go on as this one"
            fix = message.get("fix") or "fork in the function, and end the child there (os._exit)"
            raise RewardFailed(message.get("problem") or forks, fix)
        self.import_seconds = message["seconds"]

    def _send(self, data: bytes, seconds: float) -> None:
        until = time.monotonic() + seconds
        while data and time.monotonic() < until:
            if ready(self._to, 0.05, select.POLLOUT):
                data = data[os.write(self._to, data) :]

    def _receive(self, seconds: float) -> tuple[dict[str, Any] | None, Ended]:
        """Return the next reply, or why there is none; the process is ended then."""
        until = time.monotonic() + seconds
        while b"\n" not in self._rest:
            now = time.monotonic()
            if now > until:
                return self._gone("hung")
            if now > self._look_at:
                used = self._used()
                # Going through all of a machine's processes may take longer than many calls do.
                self._look_at = time.monotonic() + max(WATCH_SECONDS, LOOK_SHARE * (time.monotonic() - now))
                if used > self._memory:
                    return self._gone("memory")
                if self.printed - self._before > MOST_PRINTED:
                    return self._gone("printed")
            if ready(self._from, WATCH_SECONDS):
                block = os.read(self._from, 1 << 16)
                if not block:
                    return self._gone("died")
                self._rest += block
        line, self._rest = self._rest.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line)
        return message, ""

    def _gone(self, why: Ended) -> tuple[None, Ended]:
        if why == "died" and self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
        self._code = self._process.poll() if self._process else None
        self._peak = self._used()
        self._kill()
        return None, why

    def _why(self, ended: Ended, seconds: float) -> str:
        if ended == "hung":
            much = f" ({self._peak / 2**30:.1f} GiB in use by then)" if self._peak > self._memory / 16 else ""
            return f"it did not come back within {seconds:g} s{much}"
        if ended == "memory":
            return f"it took more than {self._memory / 2**30:.1f} GiB of memory"
        if ended == "printed":
            return f"it printed more than {MOST_PRINTED >> 20} MiB"
        if ended == "forked":
            return "it forks a process that goes on as the caller"
        if self._code is not None and self._code < 0:
            return f"it ended its process by {signal.Signals(-self._code).name}{self._last_words()}"
        return f"it ended its process with exit code {self._code}{self._last_words()}"

    def _note_log(self) -> None:
        """Cut a long log, to which the process appends, and note where what comes next begins."""
        if self.printed > MOST_LOG:
            with open(self.log, "r+b") as file:
                file.seek(-KEPT_LOG, os.SEEK_END)
                tail = file.read()
                file.truncate(0)
                file.seek(0)
                file.write(tail)
        self._before = self.printed

    def _last_words(self) -> str:
        with open(self.log, "rb") as file:
            file.seek(max(self._before, self.printed - TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").strip().splitlines()
        return f" ({lines[-1][:200]})" if lines else ""

    def _used(self) -> int:
        import psutil

        total = 0
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid())
            for one in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    total += one.memory_info().rss
        return total

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for handle in (self._to, self._from):
            with contextlib.suppress(OSError):
                os.close(handle)

    def _sweep(self) -> int:
        """End processes that left the reward's session; how many there were."""
        import psutil

        # What left the session is in no group that is known here: its environment tells it apart.
        found = 0
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get(MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    process.kill()
                    found += 1
        return found


@dataclass(frozen=True)
class FunctionVerifier:
    """Calls the function with prompt, answer and truth; what it returns is the reward.

    right, record: as of `RewardProcess.call`.
    lock: of the function's process, which takes one call at a time; share it among all that use the process.
    """

    function: RewardProcess
    prompt: str
    truth: str | None
    lock: threading.Lock = field(default_factory=threading.Lock)
    right: Any = None
    record: Mapping[str, Any] = field(default_factory=dict)

    def verify(self, answer: str) -> Verdict:
        """Judge one answer."""
        with self.lock:
            reply = self.function.call(self.prompt, answer, self.truth, self.right, self.record)
        # Neither right nor wrong: a reward that fails must not teach.
        if reply.value is None or not math.isfinite(reply.value):
            return broken("function", reply.problem or f"it returned {reply.value}")
        if reply.value >= ENOUGH:
            return accept("function", f"it returned {reply.value:g}", reward=reply.value)
        return refuse("function", "wrong-result", f"it returned {reply.value:g}", reward=reply.value)


def _stop_with_parent() -> None:
    """Ask the kernel to end this process when its parent dies; Linux only, else nothing."""
    with contextlib.suppress(OSError, AttributeError):
        prctl(SET_PDEATHSIG, signal.SIGTERM)
