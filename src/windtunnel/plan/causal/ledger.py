"""Memory of one rank over a step, allocation by allocation, in the pools that PyTorch's allocator keeps per stream."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from ..calibration import with_correction
from ..types import Moment
from .constants import HFConstants

GIB = 2**30


@dataclass(frozen=True)
class Entry:
    """One moment: bytes by component; `beside` are those in pools other than the computing stream's, by pool."""

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
    """Writes down moments over what is held all the time (`static`, bytes by component)."""

    static: dict[str, float]
    entries: list[Entry] = field(default_factory=list)

    def note(self, name: str, done: tuple[float, float], held: dict[str, float], **beside: dict[str, float]) -> None:
        """One moment: `held` comes on top of the static bytes."""
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
        wasted: share of what is reserved that holds nothing. misplaced: bytes that found no hole in a pool.
    """

    ledger: Ledger
    ranks: int
    constants: HFConstants
    wasted: float
    misplaced: float = 0.0

    @cached_property
    def peak(self) -> int:
        """Place of the moment at which most is allocated."""
        entries = self.ledger.entries
        return max(range(len(entries)), key=lambda i: entries[i].total)

    @cached_property
    def peak_gib(self) -> float:
        """GiB at the peak, everything counted."""
        reserved = (self.ledger.reserved * (1 + self.wasted) + self.misplaced) / GIB
        return sum(with_correction({"reserved": reserved, **self._around}, self.constants.extra_gib).values())

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
            gib = {name: size / GIB for name, size in sizes.items() if size > 0}
            gib |= self._around | {"fragmentation": idle / GIB}
            found.append(Moment(entry.name, 0.0, with_correction(gib, self.constants.extra_gib)))
        return tuple(found)

    @cached_property
    def _around(self) -> dict[str, float]:
        c = self.constants
        return {"workspaces": c.workspace_gib, "context": c.context_gib} | ({"nccl": c.nccl_gib} if self.ranks > 1 else {})
