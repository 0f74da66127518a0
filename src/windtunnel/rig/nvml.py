"""GPUs of this machine through NVML, without starting CUDA."""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from .catalog import Catalog, load_catalog
from .types import GPU

T = TypeVar("T")
GIB = 2**30
PCIE_GBS = {3: 16.0, 4: 32.0, 5: 64.0, 6: 128.0}


@dataclass(frozen=True)
class FoundGPUs:
    """The GPUs visible to this process that are of the most common kind."""

    gpu: GPU
    count: int
    link_gbs: float
    notes: tuple[str, ...]


@dataclass(frozen=True)
class InstalledGPU:
    """One GPU of this machine, whether or not this process may use it.

    Attributes:
        uuid: as CUDA_VISIBLE_DEVICES may name it.
        number: N of its file /dev/nvidiaN.
        memory_bytes: all of it, the driver's share too.
    """

    uuid: str
    number: int
    memory_bytes: int


def detect_gpus() -> FoundGPUs | None:
    """Return the GPUs this process may use (CUDA_VISIBLE_DEVICES respected); None without driver or GPU."""
    return _asked(_found, None)


def installed_gpus() -> list[InstalledGPU]:
    """Return all GPUs that the driver shows, in its order; none without driver."""
    return _asked(_installed, [])


def are_shared() -> bool:
    """Return whether several processes may compute on a GPU at once, as they may unless the driver is told otherwise."""
    return _asked(_shared, False)


def _asked(question: Callable[[Any], T], without: T) -> T:
    """Return what NVML answers, or `without` where there is none."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no library, no driver, or no permission: a machine without GPUs
        return without
    try:
        return question(pynvml)
    except pynvml.NVMLError:
        return without
    finally:
        pynvml.nvmlShutdown()


def visible(indexes_and_uuids: list[str], setting: str | None) -> list[int]:
    """Which devices CUDA_VISIBLE_DEVICES leaves, by position; as CUDA does, the list ends at an unknown name."""
    if setting is None:
        return list(range(len(indexes_and_uuids)))
    chosen = []
    for word in (w.strip() for w in setting.split(",")):
        if word.isdigit() and int(word) < len(indexes_and_uuids):
            chosen.append(int(word))
            continue
        matches = [i for i, uuid in enumerate(indexes_and_uuids) if word and not word.isdigit() and uuid.startswith(word)]
        if not matches:
            break
        chosen.append(matches[0])
    return chosen


def match_gpu(name: str, memory_gib: float, catalog: Catalog) -> str | None:
    """Catalog name of a GPU by the driver's name for it. Memory tells apart kinds that share a name."""
    names = [n for n, e in catalog.gpus.items() if any(re.search(p, name, re.I) for p in (*e.nvml, rf"\b{re.escape(n)}\b"))]
    # H100 PCIe of 80 and NVL of 94 GB may say no more than H100; a quarter off is another kind.
    near = [n for n in names if abs(catalog.gpus[n].memory_gib - memory_gib) < 0.25 * memory_gib]
    return next(iter(near or names), None)


def _installed(nvml: Any) -> list[InstalledGPU]:
    found = []
    for index in range(nvml.nvmlDeviceGetCount()):
        with contextlib.suppress(nvml.NVMLError):  # of a container that was given some of a machine's: CUDA counts those alone
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            number, memory = nvml.nvmlDeviceGetMinorNumber(handle), nvml.nvmlDeviceGetMemoryInfo(handle).total
            found.append(InstalledGPU(_text(nvml.nvmlDeviceGetUUID(handle)), int(number), int(memory)))
    return found


def _shared(nvml: Any) -> bool:
    handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    return all(nvml.nvmlDeviceGetComputeMode(handle) == nvml.NVML_COMPUTEMODE_DEFAULT for handle in handles)


def _found(nvml: Any) -> FoundGPUs | None:
    # NVML shows all of the machine's GPUs; CUDA, and so training, only those that the variable leaves.
    handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    uuids = [_text(nvml.nvmlDeviceGetUUID(h)) for h in handles]
    handles = [handles[i] for i in visible(uuids, os.environ.get("CUDA_VISIBLE_DEVICES"))]
    if not handles:
        return None
    names = Counter(_text(nvml.nvmlDeviceGetName(h)) for h in handles)
    name, count = names.most_common(1)[0]
    same = [h for h in handles if _text(nvml.nvmlDeviceGetName(h)) == name]
    notes = [f"left out: {n} x {other}, another kind of GPU" for other, n in names.items() if other != name]
    # The least: ranks hold the same, so the smallest decides (MIG, or a display on one).
    memory = min(nvml.nvmlDeviceGetMemoryInfo(h).total for h in same) / GIB
    catalog = load_catalog()
    known = match_gpu(name, memory, catalog)
    if known:
        gpu = catalog.gpu(known)
        # NVML counts the driver's own share, which CUDA does not: a little more than the catalog is the same
        # part, much more is a larger variant, less is a partition.
        variant = memory > 1.08 * gpu.memory_gib
        gpu = replace(gpu, memory_gib=0.98 * memory if variant else min(gpu.memory_gib, memory))
    else:
        gpu = _estimated(nvml, same[0], name, memory)
        notes.append(f"{name} is not in the catalog: its rates are estimates; put measured ones in rigs.yaml")
    link = _link(nvml, same, gpu) if count > 1 else gpu.link_gbs
    return FoundGPUs(gpu, count, link, tuple(notes))


def _link(nvml: Any, handles: list[Any], gpu: GPU) -> float:
    """GB/s between GPUs: the catalog's where NVLink is up, else that of PCI Express."""
    try:
        up = [nvml.nvmlDeviceGetNvLinkState(handles[0], i) for i in range(getattr(nvml, "NVML_NVLINK_MAX_LINKS", 18))]
        # One link that is up is enough: the catalog's rate is that of all, and a broken one shows in the rehearsal.
        if any(up):
            return gpu.link_gbs
    except nvml.NVMLError:
        pass
    try:
        generation = nvml.nvmlDeviceGetMaxPcieLinkGeneration(handles[0])
    except nvml.NVMLError:
        generation = 4
    return min(gpu.link_gbs, PCIE_GBS.get(generation, 32.0))


def _estimated(nvml: Any, handle: Any, name: str, memory_gib: float) -> GPU:
    """Return a GPU outside the catalog, from its cores, clocks and memory bus."""

    def ask(function: str, *arguments: Any, default: float) -> float:
        try:
            return float(getattr(nvml, function)(handle, *arguments))
        except (nvml.NVMLError, AttributeError):
            return default

    cores = ask("nvmlDeviceGetNumGpuCores", default=4096)
    clock_mhz = ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM, default=1500)
    memory_mhz = ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_MEM, default=6000)
    bus_bits = ask("nvmlDeviceGetMemoryBusWidth", default=256)
    try:
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    except nvml.NVMLError:
        major, minor = 8, 0
    fp32 = 2 * cores * clock_mhz / 1e6
    return GPU(
        name=name,
        memory_gib=memory_gib * 0.98,
        # Tensor cores with fp32 accumulation do twice the fp32 rate on the smallest parts that have them.
        bf16_tflops=2 * fp32 if (major, minor) >= (7, 0) else fp32,
        fp8_tflops=4 * fp32 if (major, minor) >= (9, 0) else None,
        fp32_tflops=fp32,
        bandwidth_gbs=2 * memory_mhz * bus_bits / 8 / 1000,
        link_gbs=32.0,
        capability=(int(major), int(minor)),
        source="estimated from cores, clocks and bus width",
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
