"""Which files of /dev a child needs to use a GPU."""

from __future__ import annotations

import os
import stat
from pathlib import Path

COMMON = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")


def files_of_gpu(number: int) -> tuple[str, ...]:
    """Return the files that the GPU of this number in /dev needs, and no other's; whether or not they are there."""
    return (f"/dev/nvidia{number}", *COMMON)


def gpu_numbers() -> tuple[int, ...]:
    """Return N of every device /dev/nvidiaN, sorted."""
    if not Path("/dev").is_dir():  # Windows
        return ()
    ends = (name.removeprefix("nvidia") for name in os.listdir("/dev") if name.startswith("nvidia"))
    numbers = sorted(int(end) for end in ends if end.isdigit())
    return tuple(number for number in numbers if stat.S_ISCHR(Path(f"/dev/nvidia{number}").stat().st_mode))
