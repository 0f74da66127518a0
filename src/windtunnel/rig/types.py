"""What a rig is: plain data, no detection and no prices looked up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Price:
    """Dollars per hour: ranges (low, high) with the date and source they were seen at.

    `interruptions`: how often an hour a spot machine is taken away; None: not known.
    """

    on_demand: tuple[float, float] | None
    spot: tuple[float, float] | None
    date: str
    source: str
    interruptions: float | None = None

    def middle(self, kind: str = "on_demand") -> float | None:
        """Return the middle of the on_demand or spot range; None where none is known."""
        span = self.spot if kind == "spot" else self.on_demand
        return None if span is None else (span[0] + span[1]) / 2


@dataclass(frozen=True)
class GPU:
    """One kind of GPU. Rates are dense peaks in TFLOP/s, bandwidths GB/s (10^9 bytes), memory GiB as CUDA reports it.

    `link_gbs` is one direction between two GPUs of a node: NVLink or PCI Express. `bf16_tflops` is
    what the tensor cores reach in 16 bits, also on GPUs that only have fp16.
    """

    name: str
    memory_gib: float
    bf16_tflops: float
    fp8_tflops: float | None
    fp32_tflops: float
    bandwidth_gbs: float
    link_gbs: float
    capability: tuple[int, int]
    source: str


DOWNLOAD_GBS = 0.5
DOWNLOAD_NOTE = "0.5 GB/s assumed: about what the hub's plain client reaches on a fast line (pypi.org/project/hf-transfer)"


@dataclass(frozen=True)
class Rig:
    """What to train on. `gpu` is None on a machine without one.

    cpu_cores, ram_gib and disk_free_gib are per node; link_gbs is GB/s in one direction between
    GPUs of a node and network_gbs between nodes, per node; dollars_per_hour is for the whole rig,
    None where no price is known; cpu_gflops is measured fp32 matrix multiplication; download_gbs is GB/s from the hub;
    provider is whom it is rented from, None where nothing tells.
    """

    name: str
    gpu: GPU | None
    gpus_per_node: int
    nodes: int
    cpu_cores: int
    ram_gib: float
    disk_free_gib: float | None
    link_gbs: float
    network_gbs: float
    dollars_per_hour: float | None
    price_note: str
    cpu_gflops: float | None
    notes: tuple[str, ...] = ()
    download_gbs: float = DOWNLOAD_GBS
    download_note: str = DOWNLOAD_NOTE
    provider: str | None = None

    @property
    def gpus(self) -> int:
        """All GPUs of the rig; 0 on a CPU."""
        return self.gpus_per_node * self.nodes if self.gpu else 0

    @property
    def rung(self) -> str:
        """How far up the ladder this rig is: 'cpu', 'gpu', 'node' or 'cluster'."""
        if self.gpu is None:
            return "cpu"
        if self.nodes > 1:
            return "cluster"
        return "node" if self.gpus_per_node > 1 else "gpu"

    def describe(self) -> str:
        """Return in one line what the machine is."""
        host = f"{self.cpu_cores} CPU cores, {self.ram_gib:.0f} GiB RAM"
        if self.gpu is None:
            return host
        nodes = f"{self.nodes} nodes of " if self.nodes > 1 else ""
        return f"{nodes}{self.gpus_per_node} x {self.gpu.name} ({self.gpu.memory_gib:.0f} GiB), {host}"


# NVIDIA's Grace: an environment or image of an x86_64 machine does not run there.
_AARCH64 = ("GH200",)
"""GPUs whose hosts are aarch64 (NVIDIA Grace); the hosts of all others in the catalog are x86_64."""


def processor_of(rig: Rig) -> str:
    """Return the processor of a rig's hosts, as `uname -m` names it."""
    return "aarch64" if rig.gpu is not None and rig.gpu.name in _AARCH64 else "x86_64"
