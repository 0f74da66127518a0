"""A GPU's memory goes to who asked first, once a worker is free, and what was waited for is known."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

from windtunnel.verify.kernel.admission import GpuMemory, Waits
from windtunnel.verify.pool import Sandboxes
from windtunnel.verify.sandbox import Sandbox, SandboxJob

TRIAL = "windtunnel.verify.sandbox.selfcheck:main"


def test_who_needs_much_is_not_passed_by_those_who_come_later() -> None:
    memory, order = GpuMemory(10), []
    threads = []

    def take(name: str, size: int) -> None:
        with memory.holding(size):
            order.append(name)

    with memory.holding(6):
        for name, size in (("large", 9), ("small", 1), ("huge", 99)):
            threads.append(threading.Thread(target=take, args=(name, size)))
            threads[-1].start()
            while len(memory._queue) < len(threads):
                time.sleep(0.001)
        assert order == []
    for thread in threads:
        thread.join(10)
    assert order == ["large", "small", "huge"]
    with memory.holding(10):
        pass


def test_memory_is_asked_for_once_a_worker_is_free_and_waits_are_apart() -> None:
    memory = GpuMemory(10)
    asked, seen = [], []

    @contextmanager
    def slow():
        seen.append(memory._free)
        time.sleep(0.2)
        yield

    with Sandboxes(1, lambda: Sandbox()) as pool:
        pool.start()
        message = {"parent": 1, "secret": "/nothing"}
        first = threading.Thread(target=lambda: asked.append(pool.run(SandboxJob(TRIAL, message, within=slow))))
        first.start()
        while not seen:
            time.sleep(0.001)
        waits = Waits(memory)
        outcome = pool.run(waits.admitted(SandboxJob(TRIAL, message), 8))
        first.join(20)
    assert outcome.finished
    assert seen == [10]
    assert memory._free == 10
    assert waits.seconds["worker"] > 0.15
    assert waits.seconds["memory"] < 0.1
