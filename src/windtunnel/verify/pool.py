"""Many candidates at once: several warm workers behind one door, and a bounded queue of answers to judge."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from windtunnel.recipe import UserError

from .sandbox import Job, Layers, Outcome, Sandbox
from .types import Verdict, Verifier, broken

ATTEMPTS = 2


class Full(Exception):
    """The queue holds as many answers as it may."""


class Sandboxes:
    """A Runner of several warm workers: a job takes a free one or waits for it. Each starts when it is first needed, all as forks
    of one process that has imported what jobs need.

    An infrastructure failure is tried once more, on a worker that is free then.

    Args:
        workers: how many.
        make: makes one sandbox; the others are its twins.
    """

    def __init__(self, workers: int, make: Callable[[], Sandbox]) -> None:
        assert workers > 0
        first = make()
        self._all = [first, *(first.twin() for _ in range(workers - 1))]
        # The one used last is taken first: it is warm, and the others need not be started for light loads.
        self._free: queue.LifoQueue[Sandbox] = queue.LifoQueue()
        for sandbox in self._all:
            self._free.put(sandbox)

    def begin(self) -> None:
        """Start what takes long, the imports, and do not wait for it."""
        self._all[0].begin()

    def start(self) -> Layers:
        """Start one worker and say which layers stand: the others are made alike."""
        return self._all[-1].start()

    def run(self, job: Job) -> Outcome:
        """Run a job on a free worker."""
        outcome = self._once(job)
        for _ in range(ATTEMPTS - 1):
            if outcome.status != "infrastructure":
                break
            outcome = self._once(job)
        return outcome

    @property
    def restarts(self) -> int:
        """How many workers were replaced because they were sick."""
        return sum(sandbox.restarts for sandbox in self._all)

    def close(self) -> None:
        """End all workers."""
        for sandbox in self._all:
            sandbox.close()

    def __enter__(self) -> Sandboxes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _once(self, job: Job) -> Outcome:
        sandbox = self._free.get()
        try:
            return sandbox.run(job)
        finally:
            self._free.put(sandbox)


@dataclass(frozen=True)
class _Order:
    verifier: Verifier
    answer: str
    verdict: Future[Verdict]


class Pool:
    """Threads that judge answers from a bounded queue. What breaks while one answer is judged costs only that answer.

    Args:
        threads: how many answers are judged at once; as many as there are workers keeps all of them busy.
        waiting: how many answers may wait; beyond that submit raises Full.
    """

    def __init__(self, threads: int, waiting: int) -> None:
        self.capacity = waiting
        self._orders: queue.Queue[_Order | None] = queue.Queue(waiting)
        self._closed = False
        self._busy = 0
        self._count = threading.Lock()
        self._threads = [threading.Thread(target=self._work, name=f"verify-{n}", daemon=True) for n in range(threads)]
        for thread in self._threads:
            thread.start()

    def submit(self, verifier: Verifier, answer: str, *, wait: bool = False) -> Future[Verdict]:
        """Queue an answer; the future gives its verdict and never raises because of the answer.

        Args:
            wait: for a place in the queue, in place of raising.

        Raises:
            Full: the queue is full.
        """
        assert not self._closed, "this pool was closed"
        order = _Order(verifier, answer, Future())
        try:
            self._orders.put(order, block=wait)
        except queue.Full:
            raise Full(f"{self.capacity} answers wait already") from None
        return order.verdict

    @property
    def waiting(self) -> int:
        """How many answers wait."""
        return self._orders.qsize()

    @property
    def busy(self) -> int:
        """How many answers are being judged."""
        return self._busy

    def close(self) -> None:
        """Judge what waits, then end the threads."""
        self._closed = True
        for _ in self._threads:
            self._orders.put(None)
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            if not order.verdict.set_running_or_notify_cancel():
                continue
            self._add(1)
            try:
                verdict = order.verifier.verify(order.answer)
            except UserError as error:
                # The task's fault, found while it was first used: no answer to it is right or wrong.
                verdict = broken("task", f"the task cannot be used: {error.message}. To mend it: {error.fix}")
            except Exception as error:
                # Not the answer's fault as far as anybody knows: it must not become a reward of 0.
                verdict = broken("verify", f"the verifier itself failed: {type(error).__name__}: {error}")
            finally:
                self._add(-1)
            order.verdict.set_result(verdict)

    def _add(self, number: int) -> None:
        with self._count:
            self._busy += number
