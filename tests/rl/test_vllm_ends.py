"""What vLLM has started ends with the process that started it, however that one ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from waiting import HANG

WORKER = """
import os, time
from windtunnel.rl.vllm_worker import WeightReceipts
WeightReceipts.windtunnel_plain = False
WeightReceipts()
print(os.getpid(), flush=True)
time.sleep(1000)
"""
STARTER = f"""
import os, subprocess, sys, time
os.environ["WINDTUNNEL_VLLM_PROCESS"] = str(os.getpid())
core = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', sys.argv[1]]); time.sleep(1000)"
subprocess.Popen([sys.executable, "-c", core, {WORKER!r}])
if len(sys.argv) > 1:
    os._exit(0)
time.sleep(1000)
"""


@pytest.mark.parametrize("early", [False, True], ids=["at work", "before the worker began"])
def test_a_worker_ends_with_all_of_its_group_when_its_starter_is_killed(early: bool) -> None:
    command = [sys.executable, "-c", STARTER, *(["early"] if early else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as starter:
        assert starter.stdout is not None
        try:
            if not early:
                assert starter.stdout.readline().strip().isdecimal()
                assert len(_group(starter.pid)) == 3
                os.kill(starter.pid, signal.SIGKILL)
            starter.wait(HANG)
            until = time.monotonic() + HANG
            while _group(starter.pid) and time.monotonic() < until:
                time.sleep(0.1)
            assert not _group(starter.pid)
        finally:
            for process in _group(starter.pid):
                process.kill()


def _group(number: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == number and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found
