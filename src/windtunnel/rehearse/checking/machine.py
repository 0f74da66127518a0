"""This machine around the interpreter: memory, limits of the process, the clock."""

from __future__ import annotations

import os
import resource
import shutil
import time
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

from .context import Context
from .types import Check, Evidence, Findings, Say

GIB = 2**30
LEAST_RAM_GIB, ENOUGH_RAM_GIB = 1.0, 2.0  # a scale model with torch and its server
SHARED_GIB, SHARED_GIB_A_GPU = 0.06, 0.1
LEAST_FILES, ENOUGH_FILES = 256, 1024
LEAST_PROCESSES = 256
# Certificates, rsync and make misbehave when the clock is years off, and so do budgets by the hour.
EARLIEST = 1_735_689_600  # 2025-01-01
YEARS = 10 * 365 * 86400
MOST_SKEW_SECONDS = 120.0


def _memory(context: Context, say: Say) -> Evidence:
    import psutil

    found, here = Findings(), context.here
    free = min(psutil.virtual_memory().available / GIB, here.ram_gib)
    if free < LEAST_RAM_GIB:
        found.problem(
            f"{free:.2f} GiB of memory free, {LEAST_RAM_GIB:.0f} are needed", "end other programs, or take a larger machine"
        )
    elif free < ENOUGH_RAM_GIB:
        found.warn(f"only {free:.2f} GiB of memory free: end other programs if a check is killed")
    shared = shared_memory_gib()
    needed = SHARED_GIB_A_GPU * here.gpus if here.gpus > 1 else SHARED_GIB
    if shared is not None and shared < needed:
        what = f"/dev/shm has {shared * 1024:.0f} MiB"
        if here.gpus > 1:
            found.problem(
                f"{what}; NCCL among {here.gpus} GPUs needs {needed * 1024:.0f}", "docker run --shm-size=8g, or --ipc=host"
            )
        else:
            found.warn(f"{what}: on a machine with several GPUs NCCL would fail (docker run --shm-size=8g)")
    text = f"{free:,.1f} of {here.ram_gib:,.1f} GiB free; /dev/shm " + ("none" if shared is None else f"{shared:,.1f} GiB")
    return found.evidence(text, {"free_gib": free, "ram_gib": here.ram_gib, "shared_gib": shared})


def shared_memory_gib(folder: Path = Path("/dev/shm")) -> float | None:
    """Size of the shared memory's file system; None where there is none."""
    return shutil.disk_usage(folder).total / GIB if folder.is_dir() else None


def _limits(context: Context, say: Say) -> Evidence:
    found = Findings()
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if _below(files, LEAST_FILES):
        found.problem(f"{files} open files allowed, at least {LEAST_FILES} are needed", "ulimit -n 4096")
    elif _below(files, ENOUGH_FILES):
        found.warn(f"{files} open files allowed: several ranks or many text files need more (ulimit -n 4096)")
    if _below(processes := resource.getrlimit(resource.RLIMIT_NPROC)[0], LEAST_PROCESSES):
        found.problem(f"{processes} processes and threads allowed, at least {LEAST_PROCESSES} are needed", "ulimit -u unlimited")
    if _below(size := resource.getrlimit(resource.RLIMIT_FSIZE)[0], GIB):
        fix = "ulimit -f unlimited"
        found.problem(f"files may grow to {size / 2**20:,.0f} MiB: checkpoints would be cut off", fix, shows="first checkpoint")
    elif size != resource.RLIM_INFINITY:
        found.warn(f"files may grow to {size / GIB:,.1f} GiB: a larger checkpoint would be cut off (ulimit -f unlimited)")
    if (space := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
        found.problem(
            f"the address space is limited to {space / GIB:,.1f} GiB: CUDA reserves terabytes of it", "ulimit -v unlimited"
        )
    if (seconds := resource.getrlimit(resource.RLIMIT_CPU)[0]) != resource.RLIM_INFINITY:
        fix = "ulimit -t unlimited"
        found.problem(f"processes are killed after {seconds:,} s of CPU time", fix, shows="first interruption")
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if context.here.gpu and context.here.gpus > 1 and locked != resource.RLIM_INFINITY and Path("/sys/class/infiniband").is_dir():
        found.warn(f"only {locked / 2**20:,.0f} MiB may be locked: InfiniBand needs more (ulimit -l unlimited)")
    shown = "any number of" if files == resource.RLIM_INFINITY else f"{files:,}"
    return found.evidence(f"{shown} open files; no limit that ends a run", {"open_files": files})


def _below(limit: int, least: int) -> bool:
    return limit != resource.RLIM_INFINITY and limit < least


def _clock(context: Context, say: Say) -> Evidence:
    found, now = Findings(), time.time()
    date = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d %H:%M UTC")
    fix = "set the clock: timedatectl set-ntp true"
    made = max(EARLIEST, _package_date())
    if now < made - 86400:
        found.problem(f"the clock says {date}; this package was installed later than that", fix)
    elif now > made + YEARS:
        found.problem(f"the clock says {date}, years after this package was made", fix)
    wall, steady = time.time(), time.monotonic()
    time.sleep(0.1)
    passed, counted = time.time() - wall, time.monotonic() - steady
    if abs(passed - counted) > 0.05:
        found.problem(f"within {counted:.2f} s the clock moved by {passed:.2f} s: budgets by the hour would be wrong", fix)
    probe = context.folder / "clock"
    probe.write_bytes(b"")
    skew = probe.stat().st_mtime - time.time()
    probe.unlink()
    if abs(skew) > MOST_SKEW_SECONDS:
        found.warn(f"files get times {abs(skew):,.0f} s {'ahead of' if skew > 0 else 'behind'} this machine's clock: {fix}")
    zone = os.environ.get("TZ", time.tzname[0])
    return found.evidence(f"{date} (zone {zone}), steady", {"time": now, "file_skew_seconds": round(skew, 1)})


def _package_date() -> float:
    """When the package's files were written here."""
    try:
        return Path(str(resources.files("windtunnel") / "__init__.py")).stat().st_mtime
    except OSError:
        return 0.0


CHECKS = (
    Check(
        "memory", "there is memory for a scale model, and shared memory for ranks", "end other programs", _memory,
        shows="first steps", needs=("machine",),
    ),
    Check("limits", "the shell's limits do not end a run or cut its files", "ulimit -a shows them", _limits, needs=("machine",)),
    Check("clock", "the clock is right and steady: budgets by the hour depend on it", "timedatectl set-ntp true", _clock),
)  # fmt: skip
