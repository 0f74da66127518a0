"""The machine at hand: GPUs through NVML, CPU, memory and disk within this process's limits. No torch."""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import shutil
import time
from pathlib import Path

from windtunnel.files import write_json
from windtunnel.recipe import UserError

from .catalog import load_catalog
from .nvml import detect_gpus
from .storage import cache_folder, nearest
from .types import DOWNLOAD_GBS, DOWNLOAD_NOTE, Rig

GIB = 2**30
_CGROUP = Path("/sys/fs/cgroup")

PROVIDER = "WINDTUNNEL_PROVIDER"
"""Environment: whom this machine is rented from, as the ledger adds up."""


def detect_rig(folder: str | Path = ".", *, gpus: bool = True, measure_cpu: bool = True) -> Rig:
    """Return the rig this process runs on.

    Args:
        folder: runs will be written here: its free disk is reported.
        gpus: False leaves GPUs out, for training on the CPU.
        measure_cpu: where no GPU is used, tell its speed, which is measured once a machine (see cpu_gflops).

    A price is never guessed: dollars_per_hour is None unless the user says it (see price_here).
    """
    found = detect_gpus() if gpus else None
    dollars, note = price_here()
    gflops = cpu_gflops() if measure_cpu and found is None else None
    line = load_catalog().here.download_gbs
    return Rig(
        name="here" if gpus else "cpu",
        gpu=found.gpu if found else None,
        gpus_per_node=found.count if found else 0,
        nodes=1,
        cpu_cores=cpu_cores(),
        ram_gib=ram_bytes() / GIB,
        disk_free_gib=shutil.disk_usage(nearest(Path(folder))).free / GIB,
        link_gbs=found.link_gbs if found else 0.0,
        network_gbs=0.0,
        dollars_per_hour=dollars,
        price_note=note,
        cpu_gflops=gflops,
        notes=found.notes if found else (),
        download_gbs=line or DOWNLOAD_GBS,
        download_note=f"{line:g} GB/s from the user's rigs.yaml" if line else DOWNLOAD_NOTE,
        provider=os.environ.get(PROVIDER, "").strip() or None,
    )


def price_here() -> tuple[float | None, str]:
    """Dollars per hour of this machine and where that came from: $WINDTUNNEL_PRICE, else the user's file.

    Raises:
        UserError: $WINDTUNNEL_PRICE is not a number of dollars.
    """
    value = os.environ.get("WINDTUNNEL_PRICE", "").strip()
    if value:
        try:
            dollars = float(value.removeprefix("$"))
        except ValueError:
            dollars = -1.0
        if not 0 <= dollars < 1e6:
            raise UserError(f"$WINDTUNNEL_PRICE is {value!r}; expected dollars per hour", "for example WINDTUNNEL_PRICE=1.20")
        return dollars, f"${dollars:,.2f}/h from $WINDTUNNEL_PRICE"
    own = load_catalog().here.dollars_per_hour
    if own is not None:
        return own, f"${own:,.2f}/h from the user's rigs.yaml"
    return None, "no price known: set WINDTUNNEL_PRICE (dollars per hour)"


def cpu_cores(cgroup: Path = _CGROUP) -> int:
    """Cores this process may use: its affinity, and its cgroup's quota rounded up."""
    # sched_getaffinity is Linux's; elsewhere every core is ours.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_cpu_quota(cgroup)
    return max(1, min(cores, math.ceil(quota)) if quota else cores)


def cgroup_cpu_quota(cgroup: Path = _CGROUP) -> float | None:
    """Cores the cgroup grants (v2 cpu.max, v1 cfs quota); None where unlimited."""
    quotas = []
    for folder in _cgroup_folders(cgroup):
        words = _read(folder / "cpu.max").split()
        if len(words) == 2 and words[0] != "max":
            quotas.append(int(words[0]) / int(words[1]))
    quota, period = _read(cgroup / "cpu/cpu.cfs_quota_us"), _read(cgroup / "cpu/cpu.cfs_period_us")
    # -1 stands for no limit in version 1.
    if quota and period and int(quota) > 0:
        quotas.append(int(quota) / int(period))
    return min(quotas) if quotas else None


def ram_bytes(cgroup: Path = _CGROUP) -> int:
    """Memory this process may use: the machine's or its cgroup's limit, whichever is less."""
    import psutil

    limits = [psutil.virtual_memory().total]
    texts = [_read(folder / "memory.max") for folder in _cgroup_folders(cgroup)]
    texts.append(_read(cgroup / "memory/memory.limit_in_bytes"))
    limits += [int(t) for t in texts if t.isdigit()]
    return min(limits)


def cpu_gflops() -> float:
    """Return this machine's fp32 GFLOP/s, measured once and kept in the user's cache.

    Plans follow from it (the depth that a CPU is given, hours): measured anew for each, they would follow from the load
    of the moment. Another processor, number of cores or numpy is measured again; delete the file to measure again.
    """
    from importlib.metadata import version

    # All that the speed follows from; a cache that is shared between machines holds a line for each.
    machine = f"{_processor()}, {cpu_cores()} cores, {platform.node()}, numpy {version('numpy')}"
    file = cache_folder() / "cpu-speed.json"
    known: dict[str, float] = {}
    with contextlib.suppress(OSError, ValueError, AttributeError):
        known = {str(name): float(speed) for name, speed in json.loads(file.read_text(encoding="utf-8")).items()}
    if known.get(machine, 0.0) > 0:
        return known[machine]
    known[machine] = measure_cpu_gflops()
    with contextlib.suppress(OSError):  # without a cache every plan measures
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, known, durable=False)
    return known[machine]


def _processor() -> str:
    """Return the processor's name as the system tells it."""
    lines = _read(Path("/proc/cpuinfo")).splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def measure_cpu_gflops(seconds: float = 0.2) -> float:
    """Measure fp32 GFLOP/s of matrix multiplication with all this process's threads: the best of many short tries."""
    import numpy as np

    # Large enough that all threads work, small enough that many tries fit into a fifth of a second.
    size = 384
    a = np.random.default_rng(0).standard_normal((size, size), dtype=np.float32)
    a @ a  # the first one starts the threads
    times: list[float] = []
    # The best of many: other work on the machine slows most of them, but hardly ever all.
    while sum(times) < seconds or (len(times) < 20 and sum(times) < 10 * seconds):
        start = time.perf_counter()
        a @ a
        times.append(time.perf_counter() - start)
    best = min(times)
    return 2 * size**3 / best / 1e9


def _cgroup_folders(root: Path) -> list[Path]:
    """Return the root and the folders down to this process's own cgroup (v2): every one may limit."""
    own = next((line[3:] for line in _read(Path("/proc/self/cgroup")).splitlines() if line.startswith("0::")), "/")
    # A limit may stand at any level: of the slice, the pod, or the container.
    folders = [root]
    for part in Path(own).parts[1:]:
        if part != "..":
            folders.append(folders[-1] / part)
    return folders


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
