"""What a candidate may read, which files of /dev a GPU needs, and where its worker imports from."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

SYSTEM = ("/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin", "/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
# What a GPU's driver and its libraries look up; a process namespace gives children a /proc that shows them alone.
FOR_DEVICES = (
    "/sys/devices", "/sys/bus", "/sys/class", "/sys/module", "/proc/driver", "/proc/devices", "/proc/cpuinfo", "/proc/meminfo",
)  # fmt: skip
# CUDA names its threads through /proc/self/task/.../comm and does not start where it may not (error 304; driver 580).
WRITTEN_FOR_DEVICES = ("/proc/self",)
COMMON = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")  # to all GPUs of a machine


def readable_paths(devices: Iterable[str]) -> tuple[str, ...]:
    """Return what a candidate may read: the system's libraries, this Python with its packages, this package, a few devices.

    Not all of the worker's path: the folder from which it imports this package may hold tasks and their answers.
    """
    import windtunnel

    python = [sys.prefix, sys.base_prefix, *filter(holds_packages, sys.path), *windtunnel.__path__]
    more = (*devices, *FOR_DEVICES) if devices else ()
    wanted = {p for p in (*SYSTEM, *python, *DEVICES, *more) if p.startswith("/") and p != "/" and os.path.exists(p)}
    wanted |= {os.path.realpath(p) for p in wanted if not is_system_link(p)}
    return tuple(p for p in sorted(wanted) if not any(p.startswith(other + "/") for other in wanted))


def is_readable(program: str) -> bool:
    """Return whether a candidate may run this program, such as the compiler that CC names."""
    path = shutil.which(program)
    places = readable_paths(())
    return path is not None and all(p.startswith(tuple(f"{place}/" for place in places)) for p in (path, os.path.realpath(path)))


def import_path() -> list[str]:
    """Return the judge's path as a worker should have it: Python, its packages and the folder that this package is imported from.

    The folder that the judge happens to run in is not on it.
    """
    import windtunnel

    home = [os.path.dirname(folder) for folder in windtunnel.__path__]
    own = [p for p in sys.path if p and (holds_packages(p) or p.startswith((sys.prefix + "/", sys.base_prefix + "/")))]
    return [*own, *(p for p in home if p not in own)]


def holds_packages(path: str) -> bool:
    """Return whether a folder of the path is one that packages are installed into."""
    return os.path.basename(path.rstrip("/")) in ("site-packages", "dist-packages")


def is_system_link(path: str) -> bool:
    """Return whether this is one of the root's links into /usr, which are made again instead of mounted."""
    return path in SYSTEM and os.path.islink(path) and path.count("/") == 1


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
