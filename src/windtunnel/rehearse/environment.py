"""Whether this machine can run the package at all: interpreter, torch, disk, memory, clock, limits."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import sys
import time
from pathlib import Path

from .checks import CheckFailed, Evidence, Say
from .state import Rehearsal

PYTHONS = ((3, 11), (3, 14))
TORCHES = ((2, 11), (2, 14))
DISK_GIB = 1.0
SHARED_GIB = 0.06
OPEN_FILES = 256
# Certificates, rsync and make misbehave when the clock is years off, and so do budgets by the hour.
EARLIEST = 1_735_689_600  # 2025-01-01


def environment(rehearsal: Rehearsal, say: Say) -> Evidence:
    """Evidence of a machine that fits, or CheckFailed with everything that does not."""
    problems: list[str] = []
    warnings: list[str] = []
    if not PYTHONS[0] <= sys.version_info[:2] < PYTHONS[1]:
        problems.append(f"Python {platform.python_version()}, 3.11 to 3.13 are supported")
    say("importing torch")
    torch_text = _torch(rehearsal, problems, warnings)
    say("disk, memory, clock")
    free = shutil.disk_usage(rehearsal.folder).free / 2**30
    if free < DISK_GIB:
        problems.append(f"{free:.2f} GiB free at {rehearsal.folder}, the rehearsal needs {DISK_GIB:.0f}")
    shared = _shared_memory()
    if shared is not None and shared < SHARED_GIB:
        warnings.append(f"/dev/shm has {shared * 1024:.0f} MiB: several GPUs need more (docker run --shm-size=8g)")
    if time.time() < EARLIEST:
        problems.append(f"the clock says {time.strftime('%Y-%m-%d')}")
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files < OPEN_FILES:
        problems.append(f"{files} open files allowed, at least {OPEN_FILES} are needed (ulimit -n 4096)")
    here = rehearsal.here
    rehearsal.environment = [
        ("machine", here.describe()),
        ("Python", f"{platform.python_version()} on {platform.platform()}"),
        ("torch", torch_text),
        ("free disk", f"{free:,.1f} GiB at {rehearsal.folder.resolve()}"),
        ("shared memory", "none" if shared is None else f"{shared:,.1f} GiB"),
        ("clock", time.strftime("%Y-%m-%d %H:%M:%S %Z")),
    ]
    if problems:
        raise CheckFailed("; ".join(problems))
    text = f"Python {platform.python_version()}, torch {torch_text}; {here.describe()}; {free:,.0f} GiB of disk free"
    return Evidence(text, {"disk_free_gib": free, "open_files": files}, warning="; ".join(warnings) or None)


def _torch(rehearsal: Rehearsal, problems: list[str], warnings: list[str]) -> str:
    try:
        import torch
    except Exception as error:
        problems.append(f"torch cannot be imported: {error}")
        return "missing"
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if not TORCHES[0] <= version < TORCHES[1]:
        problems.append(f"torch {torch.__version__}, 2.11 to 2.13 are supported")
    if not rehearsal.here.gpu:
        return f"{torch.__version__}, {torch.get_num_threads()} threads"
    if not torch.cuda.is_available():
        problems.append(f"there is a {rehearsal.here.gpu.name}, but torch {torch.__version__} cannot use it")
    elif not (shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")):
        problems.append("no C compiler, which torch.compile needs (apt install gcc)")
    if torch.cuda.is_available() and torch.cuda.device_count() != rehearsal.here.gpus:
        warnings.append(f"torch sees {torch.cuda.device_count()} of {rehearsal.here.gpus} GPUs")
    return f"{torch.__version__}, CUDA {torch.version.cuda}"


def _shared_memory() -> float | None:
    folder = Path("/dev/shm")
    return shutil.disk_usage(folder).total / 2**30 if folder.is_dir() else None
