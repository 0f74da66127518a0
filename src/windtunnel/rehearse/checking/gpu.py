"""The GPUs of this machine: driver, build, memory, a product that is right, and a compiler."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path
from typing import Any

from .context import Context
from .types import RUNGS, Check, Evidence, Findings, Say

LEAST_FREE_SHARE = 0.95


def _gpu(context: Context, say: Say) -> Evidence:
    import torch

    here = context.here
    if here.gpu is None:
        stray = "there is a device file /dev/nvidia0, but no driver answers" if Path("/dev/nvidia0").exists() else "no GPU here"
        return Evidence(stray, absent=f"the same command on a machine with a GPU, such as {context.rig.name}'s")
    found = Findings()
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
    """Whether a product of whole numbers that bf16 holds exactly is exact."""
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


CHECKS = (
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
)
