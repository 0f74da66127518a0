"""Memory of one rank over a step, whatever trains: what is held at each moment, and what lies around it.

An engine writes its moments into a `Ledger` (engine_gpt.py, engine_fsdp.py, engine_megatron.py); what PyTorch's allocator
reserves for them, and what lies outside of it, is the same for all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from windtunnel.recipe import Layout

from .calibration import with_correction
from .constants import Constants
from .types import Moment

GIB = 2**30
SOURCES = {
    "workspaces": "of cuBLAS, cuDNN and Triton",
    "context": "CUDA context and loaded kernels, outside PyTorch's allocator",
    "nccl": "communicators' buffers, outside PyTorch's allocator",
    "process": "the interpreter with torch loaded",
    "fragmentation": "reserved over allocated: pools of other streams that idle at the peak, rounding",
    "correction": "by measurements on this kind of GPU",
}
BF16 = 2.0
FP32 = 4.0


@dataclass(frozen=True)
class Entry:
    """One moment of a step.

    Attributes:
        done: shares of the forward and of the backward pass that are done by then.
        held: bytes by component, in the computing stream's pool. beside: those in other streams' pools, by pool.
    """

    name: str
    done: tuple[float, float]
    held: dict[str, float]
    beside: dict[str, dict[str, float]]

    @property
    def total(self) -> float:
        """All bytes allocated."""
        return sum(self.held.values()) + sum(sum(pool.values()) for pool in self.beside.values())


@dataclass
class Ledger:
    """Write down moments over what is held all the time (`static`, bytes by component)."""

    static: dict[str, float]
    entries: list[Entry] = field(default_factory=list)

    def note(self, name: str, done: tuple[float, float], held: dict[str, float], **beside: dict[str, float]) -> None:
        """Note one moment: `held` comes on top of the static bytes."""
        merged = dict(self.static)
        for component, size in held.items():
            merged[component] = merged.get(component, 0.0) + size
        self.entries.append(Entry(name, done, merged, beside))

    @property
    def reserved(self) -> float:
        """Bytes the allocator ends up holding: the most of each pool, for a pool's free memory serves no other."""
        pools = {pool for entry in self.entries for pool in entry.beside}
        most = max(sum(entry.held.values()) for entry in self.entries)
        return most + sum(max(sum(entry.beside.get(pool, {}).values()) for entry in self.entries) for pool in pools)


@dataclass(frozen=True)
class Memory:
    """One rank's memory over a step: what was written down, and what lies around it.

    Attributes:
        around: GiB by component outside of the ledger. extra_gib: what measurements add (see calibration.py).
        wasted: share of what is reserved that holds nothing. misplaced: bytes that found no hole in a pool.
    """

    ledger: Ledger
    around: dict[str, float]
    extra_gib: float
    wasted: float
    misplaced: float = 0.0

    @cached_property
    def peak(self) -> int:
        """Place of the moment at which most is allocated; of equal ones the first of those that tell what a recording holds."""
        entries = self.ledger.entries
        return max(range(len(entries)), key=lambda i: (round(entries[i].total / GIB, 6), "recording" not in entries[i].held))

    @property
    def least_gib(self) -> float:
        """GiB that are needed wherever buffers find their holes."""
        reserved = self.ledger.reserved * (1 + self.wasted) / GIB
        return sum(with_correction({"reserved": reserved, **self.around}, self.extra_gib).values())

    @cached_property
    def peak_gib(self) -> float:
        """GiB at the peak, everything counted."""
        reserved = (self.ledger.reserved * (1 + self.wasted) + self.misplaced) / GIB
        return sum(with_correction({"reserved": reserved, **self.around}, self.extra_gib).values())

    @property
    def components(self) -> dict[str, float]:
        """GiB by component at the peak."""
        return self.moments[self.peak].components

    @cached_property
    def done(self) -> tuple[tuple[float, float], ...]:
        """Of each moment, the shares of forward and backward pass that are done."""
        return tuple(entry.done for entry in self.ledger.entries)

    @cached_property
    def moments(self) -> tuple[Moment, ...]:
        """GiB by component, moment by moment; their seconds are left at 0."""
        entries = self.ledger.entries
        # What the allocator holds beyond what is in use stays the same through the step.
        idle = self.ledger.reserved * (1 + self.wasted) + self.misplaced - entries[self.peak].total
        found = []
        for entry in entries:
            sizes = dict(entry.held)
            for pool in entry.beside.values():
                for component, size in pool.items():
                    sizes[component] = sizes.get(component, 0.0) + size
            gib = {name: size / GIB for name, size in sizes.items() if size > 0} | self.around
            if idle > 0:
                gib["fragmentation"] = idle / GIB
            found.append(Moment(entry.name, 0.0, with_correction(gib, self.extra_gib)))
        return tuple(found)


def around(layout: Layout, c: Constants) -> dict[str, float]:
    """Return GiB by component of what lies around a step's tensors: workspaces, context, communicators; on a CPU the process."""
    if layout.device == "cpu":
        return {"process": c.cpu_context_gib}
    return {"workspaces": c.workspace_gib, "context": c.context_gib} | ({"nccl": c.nccl_gib} if layout.ranks > 1 else {})
