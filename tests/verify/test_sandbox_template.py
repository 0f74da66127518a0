"""Workers are forks of one process: it imports once, a worker that dies is there again at once, and none outlives the judge."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import HANG

from windtunnel.recipe import UserError
from windtunnel.verify import Sandboxes
from windtunnel.verify.sandbox import Limits, MiB, Outcome, Sandbox, SandboxJob

CHILD = "windtunnel.verify.code.child"
LIMITS = Limits(wall_seconds=120, cpu_seconds=5, memory_bytes=64 * MiB, result_bytes=MiB)
# A module whose import takes a second, and which says in which process it was imported.
SLOW = "import os, time\ntime.sleep(1.0)\nIMPORTED = os.urandom(8).hex()\n"


def run(sandbox: Sandbox | Sandboxes, body: str) -> Outcome:
    return sandbox.run(
        SandboxJob(f"{CHILD}:call", {"source": body, "function": "f", "args": [], "kwargs": {"dict": []}}, (), LIMITS)
    )


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of such a module, where workers find it."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "slow_to_import.py").write_text(SLOW)
    monkeypatch.syspath_prepend(str(folder))
    return "slow_to_import"


def test_all_workers_share_one_import(slow: str) -> None:
    with Sandboxes(3, lambda: Sandbox(preload=(CHILD, slow))) as boxes:
        seen = set()
        for sandbox in boxes._all:
            outcome = run(sandbox, "import sys\ndef f(): return sys.modules['slow_to_import'].IMPORTED")
            assert outcome.finished, outcome
            seen.add(outcome.message["value"])
        assert len(seen) == 1


def test_a_worker_that_died_is_there_again_without_another_import(slow: str) -> None:
    with Sandbox(preload=(CHILD, slow)) as sandbox:
        value = "import sys\ndef f(): return sys.modules['slow_to_import'].IMPORTED"
        before = run(sandbox, value).message["value"]
        assert sandbox._worker is not None
        sandbox._worker.process.kill()
        run(sandbox, value)  # the one that notices
        assert run(sandbox, value).message["value"] == before


def test_when_the_common_process_dies_its_workers_go_on_or_are_replaced() -> None:
    with Sandboxes(2, lambda: Sandbox(preload=(CHILD,))) as boxes:
        assert all(run(sandbox, "def f(): return 1").finished for sandbox in boxes._all)
        pid = boxes._all[0]._template.pid
        assert pid is not None
        os.kill(pid, 9)
        for _ in range(2):
            for sandbox in boxes._all:
                assert sandbox._worker is not None
                sandbox._worker.process.kill()
                run(boxes, "def f(): return 1")
        assert run(boxes, "def f(): return 2").message["value"] == 2
        assert boxes._all[0]._template.pid not in (None, pid)


def test_begin_does_not_wait_and_what_cannot_be_imported_is_told_on_use(slow: str) -> None:
    with Sandbox(preload=(CHILD, slow, "no_such_module_at_all")) as sandbox:
        sandbox.begin()
        assert sandbox._template.pid is not None
        assert not sandbox._template._ready
        with pytest.raises(UserError, match="no_such_module_at_all"):
            sandbox.start()


def test_nothing_outlives_a_judge_that_was_killed() -> None:
    code = f"""
import os, sys
from windtunnel.verify import Sandboxes
from windtunnel.verify.sandbox import Sandbox
boxes = Sandboxes(2, lambda: Sandbox(preload=({CHILD!r},)))
for box in boxes._all:
    box.start()
print(boxes._all[0]._template.pid, *(box._worker.process.pid for box in boxes._all), flush=True)
sys.stdin.read()
"""
    judge = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert judge.stdout is not None
    pids = [int(word) for word in judge.stdout.readline().split()]
    assert len(pids) == 3
    judge.kill()
    judge.communicate()
    deadline = time.monotonic() + HANG
    while any(map(_runs, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [pid for pid in pids if _runs(pid)] == []


def _runs(pid: int) -> bool:
    """Whether it is there and no zombie, which whoever takes in orphans has yet to look at."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
