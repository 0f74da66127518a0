"""Which of a machine's GPUs candidates are judged on: the one that this process itself would use."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from windtunnel.verify.sandbox import files_of_gpu, gpu_numbers

if TYPE_CHECKING:
    from windtunnel.rig import InstalledGPU

VISIBLE = "CUDA_VISIBLE_DEVICES"
HIDDEN = ("", "-1", "none", "NoDevFiles")


@dataclass(frozen=True)
class SeenGPU:
    """A GPU that this process may use.

    Attributes:
        number: N of its file /dev/nvidiaN, which is the same for all processes of a machine.
        variable: what CUDA_VISIBLE_DEVICES has to say in a process that is given this one's file alone; None: what it says here.
        memory_bytes: all of it, 0 where the driver did not say.
    """

    number: int
    variable: str | None = None
    memory_bytes: int = 0

    @property
    def devices(self) -> tuple[str, ...]:
        """Files of /dev that a process needs to use it."""
        return files_of_gpu(self.number)

    @property
    def environment(self) -> dict[str, str]:
        """Variables of such a process."""
        return {} if self.variable is None else {VISIBLE: self.variable}


def seen_gpu(index: int = 0) -> SeenGPU | None:
    """Return the GPU that CUDA in this process calls by that number, as CUDA_VISIBLE_DEVICES has it; None where there is none."""
    files = gpu_numbers()
    if not files:
        return None
    from windtunnel.rig import installed_gpus  # half a second of imports, which every worker of a sandbox would pay

    return chosen(index, os.environ, installed_gpus(), files)


def chosen(index: int, environment: Mapping[str, str], gpus: Sequence[InstalledGPU], files: Sequence[int]) -> SeenGPU | None:
    """Return the GPU of a number among those that a process may use, None where it may use fewer.

    GPUs are counted as the driver lists them. CUDA's own order is that where all are of one kind, or CUDA_DEVICE_ORDER is
    PCI_BUS_ID.

    Args:
        index: its number, as CUDA counts: from 0, among the visible ones alone.
        environment: variables of that process.
        gpus: what the driver lists; none where it did not answer.
        files: N of the files /dev/nvidiaN that are there.
    """
    setting = environment.get(VISIBLE)
    words = None if setting is None else [word.strip() for word in setting.split(",")]
    if words is not None and words[0] in HIDDEN:
        return None
    if words is not None and words[0].startswith("MIG-"):  # a part of a GPU; which one's is for CUDA to find
        return SeenGPU(files[0]) if index == 0 else None
    if not gpus:
        return _by_files(index, words, files)
    from windtunnel.rig import visible

    seen = visible([gpu.uuid for gpu in gpus], setting)
    if index >= len(seen):
        return None
    gpu = gpus[seen[index]]
    # In some containers the driver's numbers are not those of the files, which then stand in the same order.
    number = gpu.number if gpu.number in files else files[min(seen[index], len(files) - 1)]
    return SeenGPU(number, None if setting is None and index == 0 else gpu.uuid, gpu.memory_bytes)


def _by_files(index: int, words: Sequence[str] | None, files: Sequence[int]) -> SeenGPU | None:
    """Return the same without the driver's list: a number is that of a file, counted from the first, and a UUID any."""
    if words is not None and not words[0].isdigit():
        return SeenGPU(files[0]) if index == 0 else None
    places = list(range(len(files))) if words is None else [int(word) for word in words if word.isdigit()]
    if index >= len(places) or places[index] >= len(files):
        return None
    return SeenGPU(files[places[index]], None if places[index] == 0 else "0")
