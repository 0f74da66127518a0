"""Sandboxes for kernels whose workers are forks of one process: importing torch and Triton, which takes seconds, is done once."""

from __future__ import annotations

import atexit
import functools
from collections.abc import Callable
from dataclasses import replace

import pytest
from waiting import HANG

from windtunnel.verify.kernel import compiler_sandbox, gpu, gpu_sandbox, kernel_sandbox, reference_sandbox
from windtunnel.verify.kernel.workers import PRELOAD
from windtunnel.verify.sandbox import Limits, Sandbox


@functools.cache
def _first(make: Callable[[], Sandbox]) -> Sandbox:
    """Return the sandbox of its kind whose process lasts until this one ends."""
    made = make()
    atexit.register(made.close)
    return made


def kernel_box() -> Sandbox:
    """Return a sandbox like `kernel_sandbox()`, with a worker of its own."""
    return _first(kernel_sandbox).twin()


def eager_box() -> Sandbox:
    """Return a sandbox for kernels in which references are not compiled: that takes a C++ compiler half a minute."""
    return _first(_eager).twin()


def _eager() -> Sandbox:
    return Sandbox(preload=PRELOAD, environment={"TRITON_INTERPRET": "1", "TORCHDYNAMO_DISABLE": "1"})


def compiler_box() -> Sandbox:
    """Return a sandbox like `compiler_sandbox()`, with a worker of its own."""
    return _first(compiler_sandbox).twin()


def wait_long(patch: pytest.MonkeyPatch) -> None:
    """Let the stages of a GPU take as long as they like on the interpreter, on a machine that others use too."""
    for name in ("LIMITS", "BASELINE_LIMITS"):
        limits: Limits = getattr(gpu, name)
        phases = tuple((phase, max(seconds, HANG)) for phase, seconds in limits.phases)
        patch.setattr(gpu, name, replace(limits, wall_seconds=HANG, cpu_seconds=HANG, phases=phases))


def gpu_box() -> Sandbox:
    """Return a sandbox like `gpu_sandbox()`, with a worker of its own."""
    return _first(gpu_sandbox).twin()


def reference_box() -> Sandbox:
    """Return a sandbox like `reference_sandbox()`, with a worker of its own."""
    return _first(reference_sandbox).twin()
