"""Ranks of which one has a fault: a module that Python loads first of all (sitecustomize) plants it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

PLANTED = """
import os, sys, threading, time

if os.environ.get("RANK") is not None and "windtunnel.launch.worker" in " ".join(sys.orig_argv):
    import windtunnel.run.heartbeat

    windtunnel.run.heartbeat.LEAST_SECONDS = {least}
    if os.environ["RANK"] == "{rank}":
        import torch
        import windtunnel.train.gpt
        from windtunnel.train.groups import VectorGroup
        from windtunnel.model import GPT

        engine, true = windtunnel.train.gpt.GPTEngine, windtunnel.train.gpt.GPTEngine.step

        def full(*_, **__):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has")

        def step(self, step, *arguments, **keywords):
            if step == {step}:
                {fault}
            return true(self, step, *arguments, **keywords)

        engine.step = step
"""
FAULTS = {
    "sleeps": "time.sleep(10_000)",
    "deadlocks": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "dies": "os.kill(os.getpid(), 9)",
    "forward": "GPT.forward = full",
    "update": "VectorGroup.update = full",
}


def plant(folder: Path, monkeypatch: pytest.MonkeyPatch, fault: str, *, rank: int, step: int, least: float = 40.0) -> None:
    """Let a rank have a fault at a step of the runs that this test starts.

    Args:
        least: seconds in place of `windtunnel.run.heartbeat.LEAST_SECONDS`.
    """
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(PLANTED.format(fault=FAULTS[fault], rank=rank, step=step, least=least))
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
