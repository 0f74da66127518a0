"""Who holds a run: processes that are gone, restarted machines, and children that keep a dead process's lock."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from windtunnel.recipe import load_recipe
from windtunnel.run import ProcessId, RunFolder, holder, is_live, list_runs, record_end

HOLD = """
import os, sys, time
from pathlib import Path
from windtunnel.run import RunFolder
run = RunFolder.open(Path(sys.argv[1]), write=True)
if os.fork() == 0:  # keeps what it inherits, the lock too
    time.sleep(60)
    os._exit(0)
print("held", flush=True)
time.sleep(60)
"""


def test_a_process_is_not_mistaken_for_another() -> None:
    me = ProcessId.of(os.getpid())
    assert me.alive
    assert ProcessId.parse(me.dump()) == me
    assert ProcessId.parse("process 12 on old") is None
    assert not dataclasses.replace(me, started=(me.started or 0) + 1).alive
    assert not dataclasses.replace(me, boot="another boot").alive
    assert dataclasses.replace(me, host="elsewhere").alive is None
    gone = subprocess.Popen([sys.executable, "-c", ""])
    then = ProcessId.of(gone.pid)
    gone.wait()
    assert not then.alive
    assert not then.send(signal.SIGKILL)


def test_a_lock_that_a_dead_process_left_to_its_children_holds_nobody_up(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, load_recipe("charlm"), rig={}).close()
    [run] = tmp_path.iterdir()
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(run)], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        held = holder(run)
        assert held is not None
        assert held.pid == process.pid
        assert list_runs(tmp_path)[0].status == "running"
        process.send_signal(signal.SIGKILL)
        process.wait()
        limit = time.monotonic() + 10
        while held.alive and time.monotonic() < limit:
            time.sleep(0.01)
        assert not is_live(run)
        [listed] = list_runs(tmp_path)
        assert listed.status == "failed"
        assert f"process {process.pid} on " in (listed.reason or "")
        with RunFolder.open(run, write=True):
            now = holder(run)
            assert now is not None
            assert now.pid == os.getpid()
    finally:
        os.killpg(process.pid, signal.SIGKILL)


def test_an_end_is_recorded_once_and_only_where_there_is_none(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, load_recipe("charlm"), rig={}) as run:
        pass
    assert record_end(run.path, "the process was ended by SIGKILL", lines=[str(i) for i in range(100)])
    assert not record_end(run.path, "something else")
    manifest = RunFolder.open(run.path).manifest
    assert (manifest["status"], manifest["reason"], manifest["exit_code"]) == ("failed", "the process was ended by SIGKILL", 1)
    assert manifest["last_lines"][-1] == "99"
