"""What goes into the sandbox and what comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from .channel import Kept

MiB = 1 << 20
# Above the numbers that a child's own files have, below those of copies on their way there (HIGH_FD).
FILES_FROM = 40
MOST_FILES = 8

Status = Literal["finished", "raised", "exited", "killed", "timeout", "memory", "output", "infrastructure"]


@dataclass(frozen=True)
class Limits:
    """What one candidate may use.

    memory_bytes counts beyond what the warm worker already holds. processes: 0 forbids fork and exec altogether; n > 0 is for
    compilers and bounds processes and threads together. file_bytes: all its temporary files together. result_bytes,
    log_bytes: what comes back, and what it prints. phases: seconds that a phase may take by itself, which are then not part of
    wall_seconds: (('waiting', 300),) for a child that waits for its turn, in the phase 'waiting' or 'waiting: for what'.
    idle_seconds: how long it may use no CPU time at all, 0 for as long as it likes; what its own children use does not count.
    So where wall_seconds leaves room for a busy machine, one that sleeps is still ended soon.
    """

    wall_seconds: float = 10.0
    cpu_seconds: float = 10.0
    memory_bytes: int = 1024 * MiB
    processes: int = 0
    threads: int = 16
    file_bytes: int = 64 * MiB
    result_bytes: int = 64 * MiB
    # A candidate that prints in a loop must not fill the judge's memory.
    log_bytes: int = 64 << 10
    open_files: int = 256
    phases: tuple[tuple[str, float], ...] = ()
    idle_seconds: float = 0.0

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Limits:
        """Make limits from what JSON makes of them."""
        return cls(**{**values, "phases": tuple((str(name), float(seconds)) for name, seconds in values["phases"])})


@dataclass(frozen=True)
class SandboxJob:
    """One piece of work for a fresh child.

    entry: 'package.module:function', our own code that runs in the child and there loads the candidate:
    function(message, buffers) -> (message, buffers). message: JSON values. buffers: raw bytes (inputs, tensors). files: open
    file descriptors, at most 8, that the child finds at FILES_FROM and after; their owner closes them. keep: the outcome's
    buffers stay in the file that the child wrote (Outcome.kept). within: entered once a worker is free, for as long as the job
    runs: what it waits for there nobody else waits for in vain.
    """

    entry: str
    message: Mapping[str, Any]
    buffers: Sequence[bytes | bytearray | memoryview] = ()
    limits: Limits = field(default_factory=Limits)
    files: Sequence[int] = ()
    keep: bool = False
    within: Callable[[], AbstractContextManager[None]] = nullcontext


@dataclass(frozen=True)
class Outcome:
    """What became of a job. Nothing in it that came from the child may be trusted: message, buffers, log, phase.

    status: 'finished' a reply came; 'raised' the entry raised (message has 'error' and 'traceback'); 'exited' it ended without
    a reply; 'killed' by a signal (crash); 'timeout' wall or CPU time; 'memory'; 'output' the reply or the prints were too long;
    'infrastructure' the worker itself failed: judge nothing. log_full: it printed as much as it may, or wanted to print more.
    """

    status: Status
    detail: str
    message: dict[str, Any] = field(default_factory=dict)
    buffers: tuple[bytes, ...] = ()
    log: str = ""
    log_full: bool = False
    phase: str = ""
    exit_code: int | None = None
    signal: int | None = None
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    kept: Kept | None = None

    @property
    def finished(self) -> bool:
        """A reply came."""
        return self.status == "finished"


class Runner(Protocol):
    """Something that runs jobs: one Sandbox or a pool of them."""

    def run(self, job: SandboxJob) -> Outcome:
        """Run a job in a fresh child and wait for it. Raises nothing because of the candidate."""
