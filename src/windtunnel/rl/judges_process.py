"""Judges in a process of their own: the threads that judge would hold Python's lock where answers are drawn and learned from.

Reading plans and verdicts of a round of kernels takes seconds of Python, in as many threads as there are cores. In the learner's
process each step of the generator would wait its turn among them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from windtunnel.recipe import GRPO, UserError
from windtunnel.run import print_to
from windtunnel.train import child_context

from .judges import RemoteJudges
from .rewards import MOST_WORKERS, Rewards

AT_ONCE = 2 * MOST_WORKERS
"""Answers that are waited for at once in the process; others wait in its pool."""
POLL_SECONDS = 1.0
SILENT_SECONDS = 1800.0
"""Without a word while answers are outstanding, after which the process is ended: longer than any judge's own limits."""
CLOSE_SECONDS = 5.0
PRELOAD = f"{__package__}.rewards"


@dataclass
class _Request:
    """What the process is asked. attempts: how many processes were lost over it."""

    method: str
    arguments: tuple[Any, ...]
    answer: Future[Any] = field(default_factory=Future)
    attempts: int = 0


class ProcessRewards(RemoteJudges):
    """`Rewards` in another process. One that is lost is started again, and asked again what it owed.

    Args:
        stage, log, gpu, processes: as of `Rewards`.

    Raises:
        UserError: as of `Rewards`; or the process ended before its judges were ready.
    """

    def __init__(self, stage: GRPO, log: Path, *, gpu: int = 0, processes: int = 1) -> None:
        super().__init__(stage)
        self._given = (stage, log, gpu, processes)
        self._requests: dict[int, _Request] = {}
        self._numbers = itertools.count()
        self._lock = threading.RLock()
        self._closed, self._gone, self._heard = False, "", time.monotonic()
        self._port, self._process = _start(self._given)
        self._listener = threading.Thread(target=self._listen, name="judges-listener", daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        """Return the number of the process."""
        return int(self._process.pid)

    def request(self, method: str, *arguments: Any) -> Future[Any]:
        """See `RemoteJudges.request`."""
        request = _Request(method, arguments)
        with self._lock:
            if self._gone:
                request.answer.set_result(self._gone)
            else:
                # Silence counts from the first request on: a process that nobody asks says nothing.
                if not self._requests:
                    self._heard = time.monotonic()
                number = next(self._numbers)
                self._requests[number] = request
                self._send(number, request)
        return request.answer

    def close(self) -> None:
        """End the judges and what they run; nothing is known of what they still owe."""
        with self._lock:
            self._closed = True
        self._port.close()  # it ends by itself when nobody listens
        self._process.join(CLOSE_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
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
        except UserError as error:
            self._gone = f"{why}, and started no more: {error.message}"
            return False
        with self._lock:
            if self._closed:
                port.close()
                return False
            self._port, self._process, self._heard = port, process, time.monotonic()
            # Under the lock, so that what is asked meanwhile goes to the new process and is not asked twice.
            for number, request in list(self._requests.items()):
                request.attempts += 1
                if request.attempts > self.stage.retries:
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


def _start(given: tuple[GRPO, Path, int, int]) -> tuple[Connection, Any]:
    """Start a process and wait until its judges have been tried. Raises UserError in their words."""
    context = child_context(PRELOAD)
    ours, theirs = context.Pipe()
    other = ours if context.get_start_method() == "fork" else None
    process = context.Process(target=_serve, args=(theirs, other, *given), daemon=True)
    process.start()
    theirs.close()
    try:
        # Waited for: a judge that does not work here ends the run before anything is computed.
        refused = ours.recv()
    except EOFError:
        process.join()
        refused = (
            f"the judges' process ended with exit code {process.exitcode} before they were ready",
            f"see its last lines in {given[1].name}, and that judges work here: windtunnel verify selftest",
        )
    if refused is not None:
        ours.close()
        raise UserError(*refused)
    return ours, process


def _serve(port: Connection, other: Connection | None, stage: GRPO, log: Path, gpu: int, processes: int) -> None:
    """Judge until the other side hangs up."""
    log.parent.mkdir(parents=True, exist_ok=True)
    print_to(log)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        # They reach the whole group; the learner decides, and closes or dies. Ignored, they would be in what is started here too.
        signal.signal(number, lambda *_: None)
    if other is not None:
        other.close()  # the fork's copy: while it is open the other side never seems gone
    try:
        rewards = Rewards(stage, log, gpu=gpu, processes=processes)
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
