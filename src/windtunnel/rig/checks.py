"""Check what was asked for and this machine: recipe, rigs, GPUs, memory, limits of the process, the clock."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import sysconfig
import time
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

from windtunnel.check import RUNGS, Check, Context, Evidence, Findings, Say
from windtunnel.recipe import recipe_notes
from windtunnel.rig import Rig

# What was asked for: the recipe loads, the rigs exist.


def _recipe(context: Context, say: Say) -> Evidence:
    recipe = context.recipe
    model = recipe.gpt.depth if context.is_gpt else None
    what = f"a GPT of depth {model}" if context.is_gpt else f"Hugging Face model {getattr(recipe.model, 'config', '')}"
    if recipe.trm is not None:
        what = f"{what} {recipe.trm.describe()}"
    data = recipe.data.corpus.kind
    changed = f", {len(context.overrides)} keys overridden" if context.overrides else ""
    if context.loaded.staged:
        changed = f", stages {' then '.join(stage.name for stage in context.loaded.training)}{changed}"
    notes = recipe_notes(context.loaded)
    if notes:
        changed = f"{changed}; {'; '.join(notes)}"
    return Evidence(f"{recipe.name}: {what} on {data} data{changed}", {"name": recipe.name, "corpus": data})


def _rig(context: Context, say: Say) -> Evidence:
    rigs = context.rigs
    text = "; ".join(f"{rig.name}: {rig.describe()}{_price(rig)}" for rig in rigs)
    unpriced = [rig.name for rig in rigs if rig.dollars_per_hour is None and rig.rung != "cpu"]
    warnings = [f"no price is known for {name}: what a failure costs cannot be said (write {name}@$2.50)" for name in unpriced]
    return Evidence(text, {"rigs": [rig.name for rig in rigs]}, warnings)


def _price(rig: Rig) -> str:
    return "" if rig.dollars_per_hour is None else f", ${rig.dollars_per_hour:,.2f} an hour"


def _machine(context: Context, say: Say) -> Evidence:
    here = context.here
    facts = {"gpus": here.gpus, "cpu_cores": here.cpu_cores, "ram_gib": here.ram_gib, "rung": here.rung}
    return Evidence(f"{here.describe()}{_price(here)}", facts, here.notes)


# GPUs: driver, CUDA build, memory, a product that is exact, a compiler.

# The context of CUDA itself and a desktop take a few percent.
LEAST_FREE_SHARE = 0.95
_PCI = Path("/sys/bus/pci/devices")
_NVIDIA, _COMPUTES = "0x10de", "0x0302"
"""A vendor, and the beginning of its devices' class: 3D controllers without a screen, as in servers."""


def _gpu(context: Context, say: Say) -> Evidence:
    import torch

    here = context.here
    found = Findings()
    if here.gpu is None:
        undriven = _undriven()
        if undriven is not None:
            found.problem(f"there is {undriven}, but no driver answers", "use an image with NVIDIA's driver; try: nvidia-smi")
            return found.evidence("", {"gpus": 0})
        return Evidence("no GPU here", absent=f"the same command on a machine with a GPU, such as {context.rig.name}'s")
    build, driver = torch.version.cuda, _driver()
    if build is None:
        what = f"there is a {here.gpu.name}, but torch {torch.__version__} is built for the CPU only"
        found.problem(what, "install torch for CUDA: pip install torch --index-url https://download.pytorch.org/whl/cu128")
    elif driver and _major(driver["cuda"]) < _major(build):
        what = f"torch is built for CUDA {build}; driver {driver['version']} knows CUDA up to {driver['cuda']}"
        found.problem(what, "update the driver, or install a torch built for an older CUDA")
    elif not torch.cuda.is_available():
        found.problem(f"torch {torch.__version__} cannot use the {here.gpu.name}", "look at nvidia-smi and CUDA_VISIBLE_DEVICES")
    else:
        _devices(found, torch, context, say)
    _compiler(found)
    facts = {"build": build, "driver": driver, "gpus": here.gpus}
    text = (
        f"{here.gpus} x {here.gpu.name}, CUDA {build}, driver {driver['version'] if driver else 'unknown'}; bf16 products right"
    )
    return found.evidence(text, facts)


def _devices(found: Findings, torch: Any, context: Context, say: Say) -> None:
    count, expected = torch.cuda.device_count(), context.here.gpus
    if count != expected:
        found.problem(f"torch sees {count} of {expected} GPUs", "look at CUDA_VISIBLE_DEVICES and nvidia-smi")
    compiled = torch.cuda.get_arch_list()
    for index in range(count):
        say(f"GPU {index}")
        major, minor = torch.cuda.get_device_capability(index)
        # Code for sm_90 runs on 9.x, and compute_ (PTX) is compiled by the driver for what is newer.
        if not any(name.startswith((f"sm_{major}", f"compute_{major}")) for name in compiled):
            found.problem(
                f"GPU {index} is sm_{major}{minor}, torch is compiled for {', '.join(compiled)}", "install another torch"
            )
            continue
        free, total = torch.cuda.mem_get_info(index)
        if free < LEAST_FREE_SHARE * total:
            what = f"GPU {index}: {(total - free) / 2**30:.1f} of {total / 2**30:.1f} GiB are taken already"
            found.problem(what, "nvidia-smi shows by what; end it", shows="first steps")
        if not _right(torch, index):
            found.problem(f"GPU {index} multiplies wrongly", "return this machine: the GPU is broken")


def _right(torch: Any, index: int) -> bool:
    """Return whether a product of whole numbers that bf16 holds exactly is exact."""
    # Whole numbers up to 4: 512 products of two add up to less than 2^24, and so exactly in fp32 whatever the order.
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-4, 5, (512, 512), generator=generator).float() for _ in range(2))
    device = torch.device("cuda", index)
    product = (a.to(device, torch.bfloat16) @ b.to(device, torch.bfloat16)).float().cpu()
    return bool(torch.equal(product, (a @ b).bfloat16().float()))


def _compiler(found: Findings) -> None:
    if not (shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")):
        found.problem("no C compiler, which torch.compile needs", "apt install gcc")
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.is_file():
        found.problem(f"no {header}, which torch.compile needs", "apt install python3-dev")


def _undriven(devices: Path = _PCI, file: Path = Path("/dev/nvidia0")) -> str | None:
    """Return what of NVIDIA's is in this machine for computing, where no driver shows a GPU; None: nothing."""
    for device in sorted(devices.glob("*")):
        with contextlib.suppress(OSError):
            vendor, kind = ((device / name).read_text(encoding="ascii").strip() for name in ("vendor", "class"))
            if vendor == _NVIDIA and kind.startswith(_COMPUTES):
                return f"an NVIDIA GPU at PCI {device.name}"
    return f"a device file {file}" if file.exists() else None


def _driver() -> dict[str, str] | None:
    """Version of the driver and the newest CUDA that it knows."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        version, cuda = pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlSystemGetCudaDriverVersion()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:  # no driver, or none that answers
        return None
    return {"version": version if isinstance(version, str) else version.decode(), "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}"}


def _major(version: str) -> int:
    return int(version.partition(".")[0])


def _wants_gpu(context: Context) -> bool:
    return context.here.gpu is not None or RUNGS.index(context.rung) >= RUNGS.index("gpu")


# The process's surroundings: memory, limits, the clock.

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
    # A container sees the whole machine's memory, of which it may have less.
    free = min(psutil.virtual_memory().available / GIB, here.ram_gib)
    if free < LEAST_RAM_GIB:
        found.problem(
            f"{free:.2f} GiB of memory free, {LEAST_RAM_GIB:.0f} are needed", "end other programs, or take a larger machine"
        )
    elif free < ENOUGH_RAM_GIB:
        found.warn(f"only {free:.2f} GiB of memory free: end other programs if a check is killed")
    shared = shared_memory_gib()
    # Docker gives 64 MiB by default, with which NCCL's rings among several GPUs do not start.
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


def shared_memory_gib() -> float | None:
    """Size of the shared memory's file system; None where there is none."""
    folder = Path("/dev/shm")
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
    # A clock that a virtual machine or ntpd moves jumps against the monotonic one.
    time.sleep(0.1)
    passed, counted = time.time() - wall, time.monotonic() - steady
    if abs(passed - counted) > 0.05:
        found.problem(f"within {counted:.2f} s the clock moved by {passed:.2f} s: budgets by the hour would be wrong", fix)
    probe = context.folder / "clock"
    probe.write_bytes(b"")
    # On a network disk the server's clock sets a file's time.
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
    Check("recipe", "the recipe loads: every key is known, every value possible", "correct the key that is named", _recipe),
    Check("rig", "the rigs that were named exist", "name a rig as `windtunnel plan --help` shows", _rig),
    Check("machine", "this machine can be looked at", "correct the variable or file that is named", _machine),
    Check(
        "gpu",
        "driver, CUDA build and compiler fit together, and the GPUs compute right",
        "look at nvidia-smi",
        _gpu,
        rung="gpu",
        needs=("rig", "machine", "torch"),
        applies=_wants_gpu,
        limit=180.0,
    ),
    Check(
        "memory", "there is memory for a scale model, and shared memory for ranks", "end other programs", _memory,
        shows="first steps", needs=("machine",),
    ),
    Check("limits", "the shell's limits do not end a run or cut its files", "ulimit -a shows them", _limits, needs=("machine",)),
    Check("clock", "the clock is right and steady: budgets by the hour depend on it", "timedatectl set-ntp true", _clock),
)  # fmt: skip
