"""Judges in processes of their own: the threads that judge would hold Python's lock where answers are drawn and learned from.

Reading plans and verdicts of a round of kernels takes seconds of Python, in as many threads as there are cores. In the learner's
process each step of the generator would wait its turn among them; and where there are many cores, they wait for each other in
one process, so that judges are spread over several.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from windtunnel.data import Prompt
from windtunnel.recipe import GRPO, UserError
from windtunnel.run import print_to
from windtunnel.train import child_context

from .judges import RemoteJudges, prompt_text
from .rewards import MOST_WORKERS, Rewards, workers_of

AT_ONCE = 2 * MOST_WORKERS
"""Answers that are waited for at once in the process; others wait in its pool."""
POLL_SECONDS = 1.0
SILENT_SECONDS = 1800.0
"""Without a word while answers are outstanding, after which the process is ended: longer than any judge's own limits."""
CLOSE_SECONDS = 5.0
WORKERS_A_PROCESS = 16
"""Judges' workers whose threads share a process: with 32, comparing a kernel's outputs took ten times as long."""
MOST_KNOWN = 4096
"""Prompts of which it is remembered which process judges them."""
PRELOAD = f"{__package__}.rewards"


@dataclass
class _Request:
    """What the process is asked. attempts: how many processes were lost over it."""

    method: str
    arguments: tuple[Any, ...]
    answer: Future[Any] = field(default_factory=Future)
    attempts: int = 0


@dataclass(frozen=True)
class _Given:
    """What `Rewards` is made of in a process."""

    stage: GRPO
    log: Path
    gpu: int
    processes: int
    gpu_share: int


class ProcessRewards(RemoteJudges):
    """`Rewards` in other processes. One that is lost is started again, and asked again what it owed.

    All answers to a prompt are judged by the same process, which has prepared its task.

    Args:
        stage, log, gpu: as of `Rewards`.
        processes: learners of this machine that have judges, and share its cores.
        number: of processes; None: one for every `WORKERS_A_PROCESS` cores.

    Raises:
        UserError: as of `Rewards`; or a process ended before its judges were ready.
    """

    def __init__(self, stage: GRPO, log: Path, *, gpu: int = 0, processes: int = 1, number: int | None = None) -> None:
        super().__init__(stage)
        number = number or max(1, workers_of(processes) // WORKERS_A_PROCESS)
        given = _Given(stage, log, gpu, processes * number, number)
        self._each: list[_Process] = []
        self._known: OrderedDict[tuple[int, str], _Process] = OrderedDict()
        self._lock = threading.Lock()
        started = [_start(given) for _ in range(number)]  # side by side: each imports for seconds, and tries its judges
        try:
            for port, process in started:
                _ready(port, process, given)
        except UserError:
            for port, process in started:
                _end(port, process)
            raise
        self._each = [_Process(given, port, process) for port, process in started]

    @property
    def pids(self) -> list[int]:
        """Of the processes."""
        return [one.pid for one in self._each]

    def request(self, method: str, *arguments: Any) -> Future[Any]:
        """See `RemoteJudges.request`."""
        return self._of(arguments[0]).request(method, arguments)

    def close(self) -> None:
        """End the judges and what they run; nothing is known of what they still owe."""
        for one in self._each:
            one.close()

    def _of(self, prompt: Prompt) -> _Process:
        """Return the process that judges a prompt's answers: of a new one that with the least to do."""
        key = prompt.number, prompt_text(prompt)
        with self._lock:
            found = self._known.get(key)
            if found is None:
                found = self._known[key] = min(self._each, key=lambda one: one.owed)
            self._known.move_to_end(key)
            if len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)
        return found


class _Process:
    """A process that judges, and what it was asked. Safe to use from several threads.

    Args:
        given: what its judges are made of, and those of one that takes its place.
        port, process: started and ready.
    """

    def __init__(self, given: _Given, port: Connection, process: Any) -> None:
        self._given, self._port, self._process = given, port, process
        self._requests: dict[int, _Request] = {}
        self._numbers = itertools.count()
        self._lock = threading.RLock()
        self._closed, self._gone, self._heard = False, "", time.monotonic()
        self._listener = threading.Thread(target=self._listen, name="judges-listener", daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        """Of the process."""
        return int(self._process.pid)

    @property
    def owed(self) -> int:
        """How many answers it has not given yet."""
        return len(self._requests)

    def request(self, method: str, arguments: tuple[Any, ...]) -> Future[Any]:
        """Return what will be found, or in a text why nothing was."""
        request = _Request(method, arguments)
        with self._lock:
            if self._gone:
                request.answer.set_result(self._gone)
            else:
                if not self._requests:
                    self._heard = time.monotonic()
                number = next(self._numbers)
                self._requests[number] = request
                self._send(number, request)
        return request.answer

    def close(self) -> None:
        """End it and what it runs; nothing is known of what it still owes."""
        with self._lock:
            self._closed = True
        _end(self._port, self._process)
        if threading.current_thread() is not self._listener:
            self._listener.join()

    def _send(self, number: int, request: _Request) -> None:
        with contextlib.suppress(OSError):  # a process that is gone is the listener's to find
            self._port.send((number, request.method, request.arguments))

    def _listen(self) -> None:
        """Pass on what the process says; start another when it is lost."""
        while True:
            with contextlib.suppress(EOFError, OSError):
                self._pass_on()
            if self._closed or not self._again():
                break
        self._give_up(self._gone or "the judges were closed")

    def _pass_on(self) -> None:
        while True:
            while not self._port.poll(POLL_SECONDS):
                if self._requests and time.monotonic() - self._heard > SILENT_SECONDS:
                    self._process.kill()
            number, answer = self._port.recv()
            self._heard = time.monotonic()
            with self._lock:
                request = self._requests.pop(number, None)
            if request is not None:
                request.answer.set_result(answer)

    def _again(self) -> bool:
        """Start another process and ask it what the lost one owed, but for what was asked too often; return whether it runs."""
        self._process.join(CLOSE_SECONDS)
        why = f"the judges' process ended with exit code {self._process.exitcode}"
        try:
            port, process = _start(self._given)
            _ready(port, process, self._given)
        except UserError as error:
            self._gone = f"{why}, and started no more: {error.message}"
            return False
        with self._lock:
            if self._closed:
                port.close()
                return False
            self._port, self._process, self._heard = port, process, time.monotonic()
            for number, request in list(self._requests.items()):
                request.attempts += 1
                if request.attempts > self._given.stage.retries:
                    del self._requests[number]
                    request.answer.set_result(f"after {request.attempts} attempts: {why}")
                else:
                    self._send(number, request)
        return True

    def _give_up(self, why: str) -> None:
        with self._lock:
            self._gone = why
            for request in self._requests.values():
                request.answer.set_result(why)
            self._requests.clear()


def _start(given: _Given) -> tuple[Connection, Any]:
    """Start a process, which tries its judges; see `_ready`."""
    context = child_context(PRELOAD)
    ours, theirs = context.Pipe()
    other = ours if context.get_start_method() == "fork" else None
    process = context.Process(target=_serve, args=(theirs, other, given), daemon=True)
    process.start()
    theirs.close()
    return ours, process


def _ready(port: Connection, process: Any, given: _Given) -> None:
    """Wait until a process's judges have been tried. Raises UserError in their words, and ends it then."""
    try:
        refused = port.recv()
    except EOFError:
        process.join()
        refused = (
            f"the judges' process ended with exit code {process.exitcode} before they were ready",
            f"see its last lines in {given.log.name}, and that judges work here: windtunnel verify selftest",
        )
    if refused is not None:
        _end(port, process)
        raise UserError(*refused)


def _end(port: Connection, process: Any) -> None:
    """End a process, by force where it does not see that nobody listens any more."""
    port.close()
    process.join(CLOSE_SECONDS)
    if process.is_alive():
        process.kill()
        process.join()


def _serve(port: Connection, other: Connection | None, given: _Given) -> None:
    """Judge until the other side hangs up."""
    given.log.parent.mkdir(parents=True, exist_ok=True)
    print_to(given.log)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        # They reach the whole group; the learner decides, and closes or dies. Ignored, they would be in what is started here too.
        signal.signal(number, lambda *_: None)
    if other is not None:
        other.close()  # the fork's copy: while it is open the other side never seems gone
    try:
        rewards = Rewards(given.stage, given.log, gpu=given.gpu, processes=given.processes, gpu_share=given.gpu_share)
    except UserError as error:
        port.send((error.message, error.fix))
        os._exit(0)
    port.send(None)
    sending, threads = threading.Lock(), ThreadPoolExecutor(AT_ONCE, "asked")

    def answer(number: int, method: str, arguments: tuple[Any, ...]) -> None:
        try:
            found = rewards.handle(method, *arguments)
        except Exception as error:
            found = f"the judges failed: {type(error).__name__}: {error}"
        with contextlib.suppress(OSError), sending:
            port.send((number, found))

    with contextlib.suppress(EOFError, OSError):
        while True:
            threads.submit(answer, *port.recv())
    rewards.close()
    os._exit(0)  # whatever its threads wait for: nobody wants it any more
