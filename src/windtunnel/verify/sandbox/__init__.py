"""Runs code that nobody trusts: a fresh child of a warm worker for each candidate, locked in as far as the kernel allows."""

from .channel import Early, note
from .layers import Layers
from .paths import files_of_gpu, gpu_numbers
from .types import FILES_FROM, Limits, MiB, Outcome, Runner, SandboxJob
from .worker import Sandbox

__all__ = [
    "FILES_FROM",
    "Early",
    "Layers",
    "Limits",
    "MiB",
    "Outcome",
    "Runner",
    "Sandbox",
    "SandboxJob",
    "files_of_gpu",
    "gpu_numbers",
    "note",
]
