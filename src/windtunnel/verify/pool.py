"""Many candidates at once: several warm workers behind one door, and a bounded queue of answers to judge."""

from __future__ import annotations

import queue
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from windtunnel.recipe import UserError

from .sandbox import Layers, Outcome, Sandbox, SandboxJob
from .types import Verdict, Verifier, broken

# Once more than once: what fails twice on different workers fails because of the job.
ATTEMPTS = 2


class Full(Exception):
    """The queue holds as many answers as it may."""


class Sandboxes:
    """A Runner of several warm workers: a job takes a free one or waits for it.

    Each starts when it is first needed, all as forks of one process that has imported what jobs need. An infrastructure failure
    is tried once more, on a worker that is free then.

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

    def run(self, job: SandboxJob) -> Outcome:
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

    def stop(self) -> None:
        """End all workers at once, whatever they run: of the jobs under way nothing is known. `close` clears up."""
        for sandbox in self._all:
            sandbox.stop()

    def close(self) -> None:
        """End all workers."""
        for sandbox in self._all:
            sandbox.close()

    def __enter__(self) -> Sandboxes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _once(self, job: SandboxJob) -> Outcome:
        sandbox = self._free.get()
        try:
            return sandbox.run(job)
        finally:
            self._free.put(sandbox)


@dataclass(frozen=True)
class _Order:
    verifier: Verifier
    answer: str


class Pool:
    """Threads that judge answers from a bounded queue.

    What breaks while one answer is judged costs only that answer. Who cancels a future that has not begun gives its place in the
    queue back.

    Args:
        threads: how many answers are judged at once; as many as there are workers keeps all of them busy.
        waiting: how many answers may wait; beyond that submit raises Full.
    """

    def __init__(self, threads: int, waiting: int) -> None:
        self.capacity = waiting
        self._orders: OrderedDict[Future[Verdict], _Order] = OrderedDict()
        self._closed = False
        self._busy = 0
        lock = threading.RLock()  # again by the same thread: whoever cancels a future comes back here
        self._some, self._room = threading.Condition(lock), threading.Condition(lock)
        self._threads = [threading.Thread(target=self._work, name=f"verify-{n}", daemon=True) for n in range(threads)]
        for thread in self._threads:
            thread.start()

    def submit(self, verifier: Verifier, answer: str, *, wait: bool = False) -> Future[Verdict]:
        """Queue an answer; the future gives its verdict and never raises because of the answer.

        wait: for a place in the queue, in place of raising.

        Raises:
            Full: the queue is full.
        """
        verdict: Future[Verdict] = Future()
        with self._room:
            # Bounded, so that a trainer which writes faster than kernels are judged is held up, and no memory fills.
            while len(self._orders) >= self.capacity and not self._closed:
                if not wait:
                    raise Full(f"{self.capacity} answers wait already")
                self._room.wait()
            assert not self._closed, "this pool was closed"
            self._orders[verdict] = _Order(verifier, answer)
            self._some.notify()
        verdict.add_done_callback(self._forget)
        return verdict

    @property
    def waiting(self) -> int:
        """How many answers wait."""
        return len(self._orders)

    @property
    def busy(self) -> int:
        """How many answers are being judged."""
        return self._busy

    def stop(self) -> None:
        """Take no more, and cancel what waits. What is under way goes on; `close` waits for it."""
        with self._some:
            self._closed = True
            for verdict in list(self._orders):
                verdict.cancel()
            self._wake()

    def close(self) -> None:
        """Judge what waits, then end the threads."""
        with self._some:
            self._closed = True
            self._wake()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self) -> None:
        while (taken := self._next()) is not None:
            future, order = taken
            try:
                verdict = order.verifier.verify(order.answer)
            except UserError as error:
                # The task's fault, found while it was first used: no answer to it is right or wrong.
                verdict = broken("task", f"the task cannot be used: {error.message}. To mend it: {error.fix}")
            except Exception as error:
                # Not the answer's fault as far as anybody knows: it must not become a reward of 0.
                verdict = broken("verify", f"the verifier itself failed: {type(error).__name__}: {error}")
            finally:
                with self._some:
                    self._busy -= 1
            future.set_result(verdict)

    def _next(self) -> tuple[Future[Verdict], _Order] | None:
        """Return what has waited longest, from now on under way; None once the pool is closed and nothing waits."""
        with self._some:
            while True:
                while not self._orders and not self._closed:
                    self._some.wait()
                if not self._orders:
                    return None
                future, order = self._orders.popitem(last=False)
                self._room.notify()
                if future.set_running_or_notify_cancel():
                    self._busy += 1
                    return future, order

    def _forget(self, verdict: Future[Verdict]) -> None:
        """Count a future that is done as waiting no more; one that was cancelled may still stand in the queue."""
        with self._room:
            if self._orders.pop(verdict, None) is None:
                return
            self._room.notify()
        # `concurrent.futures.wait` goes on waiting for what is cancelled until whoever would have done it says that it saw it.
        verdict.set_running_or_notify_cancel()

    def _wake(self) -> None:
        self._some.notify_all()
        self._room.notify_all()
