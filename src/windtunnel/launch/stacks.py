"""The stacks of a job's ranks: asked for by a signal, read, and judged: who computes, who compiles, who waits for another."""

from __future__ import annotations

import contextlib
import faulthandler
import linecache
import os
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

STACK_SIGNAL = signal.SIGUSR2
"""On which a rank writes the stacks of its threads, without the help of what it is doing."""
ANSWER_SECONDS = 2.0
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.M)
_CURRENT, _THREAD = "Current thread", "\nThread "
_SHARED = re.compile(r"\b(wait|synchronize|tolist|item|all_reduce|all_gather\w*|reduce_scatter\w*|broadcast\w*|barrier)\(")
_COMPILERS = ("torch/_inductor/", "torch/_dynamo/", "triton/compiler/", "triton/runtime/jit.py")


def answer_with_stacks(folder: Path, rank: int) -> None:
    """Let this process write its stacks into a file of `folder` whenever `STACK_SIGNAL` comes."""
    faulthandler.register(STACK_SIGNAL, file=open(_file(folder, rank), "w"), all_threads=True)  # noqa: SIM115 - open until the end


@dataclass(frozen=True)
class Stack:
    """The stacks of a rank's threads, as faulthandler writes them."""

    text: str

    @property
    def frames(self) -> list[tuple[str, int, str]]:
        """Return file, line and function of the thread that trains, innermost first.

        That is the one that answered. Of a process that was stopped any thread may, one without Python too: then it is the first
        that the process had, which stands last.
        """
        answered, last = self.text.partition(_CURRENT)[2].partition(_THREAD)[0], self.text.rpartition(_THREAD)[2]
        found = _FRAME.findall(answered) or _FRAME.findall(last)
        return [(file, int(line), name) for file, line, name in found]

    @property
    def waits(self) -> bool:
        """Return whether it waits for another rank, or for a device that does."""
        if not self.frames:
            return False
        file, line, _ = self.frames[0]
        # A collective is called by way of a few frames of PyTorch's own; what is deeper is some other work.
        inside = any("torch/distributed/" in name for name, _, _ in self.frames[:3])
        return inside or _SHARED.search(linecache.getline(file, line)) is not None

    @property
    def compiles(self) -> bool:
        """Return whether it waits for a compiler, which may take long."""
        return any(part in file for file, _, _ in self.frames for part in _COMPILERS)

    @property
    def where(self) -> str:
        """Return the innermost frame in words; empty where there is none."""
        if not self.frames:
            return ""
        file, line, name = self.frames[0]
        # PyTorch's frame says what hangs, the package's own why it was called.
        ours = next((f for f in self.frames[1:] if "/windtunnel/" in f[0]), None)
        called = f", called from {ours[0]}:{ours[1]} ({ours[2]})" if ours and "/windtunnel/" not in file else ""
        return f"{file}:{line} ({name}){called}"


def ask(folder: Path, processes: Mapping[int, int], stopped: int | None = None) -> dict[int, Stack]:
    """Return the stacks of the ranks that answer.

    Args:
        folder: where they write.
        processes: of each rank the process id.
        stopped: a rank that is stopped and to be continued: it answers first, with what it was stopped in.
    """
    # Each rank adds to one file: what stands behind the length before the signal is the answer to this one.
    before = {}
    for rank, process in processes.items():
        with contextlib.suppress(OSError):
            before[rank] = _file(folder, rank).stat().st_size
            os.kill(process, STACK_SIGNAL)
            # A process that is stopped answers a signal only when it goes on.
            if rank == stopped:
                os.kill(process, signal.SIGCONT)
    limit = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < limit and not all(_whole(_since(folder, rank, size)) for rank, size in before.items()):
        time.sleep(0.05)
    found = {rank: _since(folder, rank, size) for rank, size in before.items()}
    return {rank: Stack(text) for rank, text in found.items() if text}


def _since(folder: Path, rank: int, size: int) -> str:
    return _file(folder, rank).read_bytes()[size:].decode(errors="replace")


def _whole(text: str) -> bool:
    return _CURRENT in text and text.endswith("\n")


def _file(folder: Path, rank: int) -> Path:
    return folder / f"{rank}.stack"
