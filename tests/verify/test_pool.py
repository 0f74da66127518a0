"""Many candidates at once: nothing leaks, nobody waits for another's sins, and a full queue says so."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from concurrent.futures import wait
from pathlib import Path

import pytest
from waiting import HANG

from windtunnel.verify.code import Call, CodeTask, CodeVerifier
from windtunnel.verify.pool import Full, Pool, Sandboxes
from windtunnel.verify.sandbox import Limits, MiB, Outcome, Sandbox, SandboxJob
from windtunnel.verify.types import Verdict, accept

pytestmark = pytest.mark.end_to_end

CHILD = "windtunnel.verify.code.child"
LIMITS = Limits(wall_seconds=120, cpu_seconds=1, memory_bytes=64 * MiB, result_bytes=MiB, log_bytes=4096, file_bytes=MiB)
CANDIDATES = {
    "accepted": "def f(x): return x * x",
    "wrong-result": "def f(x): return x",
    "crashed": "import ctypes\ndef f(x): ctypes.string_at(0)",
    "timeout": "def f(x):\n while True: pass",
    "exited": "import os\ndef f(x): os._exit(1)",
    "memory": "def f(x): return bytearray(2**30)",
    "too-much-output": "def f(x):\n open('t', 'w').write('x' * 9999)\n while True: print('x' * 9999)",
    "raised": "import os\ndef f(x): os.fork()",
}
ORDER = ["accepted"] * 12 + list(CANDIDATES)


def make() -> Sandbox:
    return Sandbox(preload=(CHILD,))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_hundreds_of_candidates_leak_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    verifier_task = CodeTask([Call("f", [3], 9)], limits=LIMITS)
    earlier = set(_descendants(os.getpid()))  # helpers that Python keeps for other tests of this process
    with Sandboxes(2, make) as sandboxes, Pool(2, 16) as pool:
        assert sandboxes.start().hardened
        verifier = CodeVerifier(verifier_task, sandboxes)
        pool.submit(verifier, CANDIDATES["accepted"], wait=True).result()
        before = descriptors()
        wanted = [ORDER[at % len(ORDER)] for at in range(240)]
        started = [(name, pool.submit(verifier, CANDIDATES[name], wait=True)) for name in wanted]
        for name, verdict in started:
            assert verdict.result().reason == name
        assert sandboxes.restarts == 0
        assert descriptors() <= before + 8  # the second worker, which started meanwhile
        assert list(tmp_path.iterdir()) == []
        ours = set(_descendants(os.getpid())) - earlier
        assert [pid for pid in ours if _state(pid) == "Z"] == []
        assert sandboxes._all[0]._template.pid in ours
        assert len(ours - {sandboxes._all[0]._template.pid}) <= 4  # two workers, each with its stub


def test_a_hanging_candidate_holds_up_only_its_own_worker() -> None:
    slow = CodeVerifier(
        CodeTask([Call("f", [1], 1)], limits=Limits(wall_seconds=3, cpu_seconds=9)), sandboxes := Sandboxes(2, make)
    )
    with sandboxes, Pool(2, 16) as pool:
        pool.submit(slow, CANDIDATES["accepted"]).result()
        hanging = pool.submit(slow, "import time\ndef f(x): time.sleep(60)")
        quick = [pool.submit(slow, CANDIDATES["accepted"]) for _ in range(10)]
        assert all(verdict.result().accepted for verdict in quick)
        assert not hanging.done()
        assert hanging.result().reason == "timeout"


class Slow:
    """A verifier that waits to be let go."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def verify(self, answer: str) -> Verdict:
        self.go.wait(HANG)
        if answer == "broken":
            raise RuntimeError("a fault of ours")
        return accept("test", answer)


def test_a_full_queue_says_so_and_what_waits_is_judged_at_closing() -> None:
    slow = Slow()
    pool = Pool(1, 2)
    first = pool.submit(slow, "1")
    while pool.busy == 0:
        time.sleep(0.001)
    rest = [pool.submit(slow, "2"), pool.submit(slow, "3")]
    assert pool.waiting == 2
    with pytest.raises(Full):
        pool.submit(slow, "4")
    slow.go.set()
    pool.close()
    assert [verdict.result().message for verdict in (first, *rest)] == ["1", "2", "3"]


def test_who_gives_up_while_waiting_frees_a_place_and_is_not_judged() -> None:
    slow = Slow()
    with Pool(1, 2) as pool:
        first = pool.submit(slow, "1")
        while pool.busy == 0:
            time.sleep(0.001)
        second, third = pool.submit(slow, "2"), pool.submit(slow, "3")
        assert second.cancel()
        assert pool.waiting == 1
        fourth = pool.submit(slow, "4")
        with pytest.raises(Full):
            pool.submit(slow, "5")
        assert not first.cancel(), "what is under way ends"
        slow.go.set()
        assert [verdict.result().message for verdict in (first, third, fourth)] == ["1", "3", "4"]


def test_a_pool_that_is_stopped_judges_nothing_more() -> None:
    slow = Slow()
    pool = Pool(1, 2)
    first = pool.submit(slow, "1")
    while pool.busy == 0:
        time.sleep(0.001)
    rest = [pool.submit(slow, "2"), pool.submit(slow, "3")]
    pool.stop()
    assert all(verdict.cancelled() for verdict in rest)
    # Who waits for several is told too; a learner's threads wait so, and a process ends only when they do.
    assert wait(rest, HANG).done == set(rest)
    slow.go.set()
    pool.close()
    assert first.result().message == "1"


def test_workers_that_are_stopped_end_what_they_run_and_run_nothing_more() -> None:
    verifier = CodeVerifier(
        CodeTask([Call("f", [1], 1)] * 3, limits=Limits(wall_seconds=60, cpu_seconds=60)), sandboxes := Sandboxes(2, make)
    )
    earlier = set(_descendants(os.getpid()))
    with sandboxes, Pool(3, 4) as pool:
        assert pool.submit(verifier, CANDIDATES["accepted"]).result().accepted
        hanging = [pool.submit(verifier, CANDIDATES["timeout"]) for _ in range(3)]
        while pool.busy < 3 or not all(sandbox._worker for sandbox in sandboxes._all):
            time.sleep(0.01)
        sandboxes.stop()
        assert all(verdict.result().infrastructure for verdict in hanging)
        assert pool.submit(verifier, CANDIDATES["accepted"]).result().infrastructure
    assert not set(_descendants(os.getpid())) - earlier


def test_a_fault_of_the_verifiers_is_no_reward() -> None:
    slow = Slow()
    slow.go.set()
    with Pool(1, 2) as pool:
        verdict = pool.submit(slow, "broken").result()
        assert verdict.infrastructure
        assert verdict.reward is None
        assert pool.submit(slow, "fine").result().accepted


def test_an_infrastructure_failure_is_tried_again_on_another_worker() -> None:
    with Sandboxes(2, make) as sandboxes:
        job = SandboxJob(f"{CHILD}:call", {"source": "def f(): return 1", "function": "f", "args": [], "kwargs": {"dict": []}})
        assert sandboxes.run(job).finished
        worker = sandboxes._all[-1]._worker
        assert worker is not None
        worker.process.kill()
        outcome: Outcome = sandboxes.run(job)
        assert outcome.finished
        assert sandboxes.restarts == 1


def _descendants(root: int) -> list[int]:
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found: list[int] = []
    layer = [root]
    while layer:
        layer = [pid for pid, parent in parents.items() if parent in layer]
        found += layer
    return found


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
