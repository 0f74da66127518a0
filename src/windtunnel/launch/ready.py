"""Ranks that are started before there is a run for them: they import and start CUDA while data are prepared and planned."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from windtunnel.recipe import GRPO, HuggingFaceModel, Recipe
from windtunnel.run import Channel

from .processes import ALLOCATOR, share_threads, stop_with_parent

COUNT = "WINDTUNNEL_READY_RANKS"
"""Environment: so many ranks are made ready, without it as many as there are GPUs to train on; 0: nothing is compiled ahead."""


class ReadyRanks:
    """Processes that wait for the work of a rank each, and end with this one. To make them nothing slow is imported.

    Args:
        count: how many; each starts CUDA on the GPU of its number, where there is one.
        modules: what each imports.
    """

    def __init__(self, count: int, modules: Sequence[str] = ()) -> None:
        command = [sys.executable, "-m", "windtunnel.launch.ready_rank"]
        self._waiting = [
            start_rank([*command, str(number), *modules], {**share_threads(count), **ALLOCATOR, **os.environ}, subprocess.PIPE)
            for number in range(count)
        ]

    @classmethod
    def of(cls, recipe: Recipe, gpus: int | None) -> ReadyRanks:
        """Make as many as the first stage of a recipe is trained with here: none on a CPU, or for reinforcement learning.

        Args:
            recipe: what will be trained.
            gpus: at most so many; None: all.
        """
        if isinstance(recipe.training[0], GRPO):
            return cls(0)
        modules = ["windtunnel.train.hf"] if isinstance(recipe.model, HuggingFaceModel) else []
        if COUNT in os.environ:
            return cls(int(os.environ[COUNT]), modules)
        from windtunnel.rig import detect_rig

        here = detect_rig(measure_cpu=False).gpus
        return cls(here if gpus is None else min(gpus, here), modules)

    def __enter__(self) -> ReadyRanks:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __bool__(self) -> bool:
        return any(process.poll() is None for process in self._waiting)

    def take(self, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
        """Give the next one that waits its work, and return it; where none waits, a process that is started now.

        Args:
            command: what starts the rank: the interpreter, '-m', a module and its arguments.
            environment: all of it.
        """
        while self._waiting:
            process = self._waiting.pop(0)
            if _told(process, {"arguments": list(command[2:]), "environment": dict(environment)}):
                return process
            end_process(process)
        return start_rank(command, environment)

    def close(self) -> None:
        """End those that still wait."""
        while self._waiting:
            end_process(self._waiting.pop())


def start_rank(
    command: Sequence[str], environment: Mapping[str, str], stdin: int = subprocess.DEVNULL, output: int = subprocess.PIPE
) -> subprocess.Popen[str]:
    """Start a process of a job, which ends with this one."""
    channel = Channel.inherited()
    return subprocess.Popen(
        command, env=environment, stdin=stdin, stdout=output, stderr=output, text=True, errors="replace", bufsize=1,
        # A session of its own: Ctrl-C must reach rank 0 alone, which saves and tells the others.
        start_new_session=True, preexec_fn=stop_with_parent, pass_fds=channel.descriptors if channel else (),
    )  # fmt: skip


def _told(process: subprocess.Popen[str], work: dict[str, Any]) -> bool:
    """Tell a process that waits what to do; return whether it was there to be told."""
    assert process.stdin is not None
    try:
        with process.stdin as port:
            port.write(json.dumps(work) + "\n")
    except OSError:
        return False
    # A pipe takes a line also when whoever should read it has just ended.
    return process.poll() is None


def end_process(process: subprocess.Popen[str]) -> None:
    """End a process that `start_rank` started, with all that it started itself."""
    with contextlib.suppress(ProcessLookupError):
        # The whole session: compilers that a rank has started are in it.
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
