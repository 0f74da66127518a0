"""Which files of /dev a child needs to use a GPU."""

from __future__ import annotations

import os
import stat
from pathlib import Path

COMMON = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")


def gpu_devices(index: int | None = None) -> tuple[str, ...]:
    """Return the character devices of NVIDIA's driver: those of all GPUs, or of the GPU with this number in /dev alone."""
    names = [name for name in os.listdir("/dev") if name.startswith("nvidia") and name.removeprefix("nvidia").isdigit()]
    chosen = [name for name in names if index is None or name == f"nvidia{index}"]
    paths = [Path("/dev", name) for name in (*sorted(chosen), *COMMON)]
    return tuple(str(path) for path in paths if chosen and path.exists() and stat.S_ISCHR(path.stat().st_mode))
