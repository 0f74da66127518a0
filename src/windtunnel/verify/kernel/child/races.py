"""What the programs of one launch do to each other's places: races that running one program after the other hides."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

MOST_ACCESSES = 6_000_000  # elements; then what is known of each address takes the place of its accesses


@dataclass
class Touched:
    """Places that were loaded, stored to or changed by atomics, one row for each access or for several of one address. first,
    last: the lowest and highest number of a program that did; low, high: of a value that was stored."""

    where: np.ndarray
    first: np.ndarray
    last: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def by_address(self) -> Touched:
        """One row for each address, in order."""
        if not self.where.size:
            return self
        order = np.argsort(self.where, kind="stable")
        where = self.where[order]
        starts = np.flatnonzero(np.concatenate([[True], where[1:] != where[:-1]]))
        least = (np.minimum.reduceat(column[order], starts) for column in (self.first, self.low))
        most = (np.maximum.reduceat(column[order], starts) for column in (self.last, self.high))
        (first, low), (last, high) = least, most
        return Touched(where[starts], first, last, low, high)

    def shared_with(self, other: Touched) -> bool:
        """Whether an address in both was touched by more than one program. other: by address."""
        if not self.where.size or not other.where.size:
            return False
        at = np.minimum(np.searchsorted(other.where, self.where), len(other.where) - 1)
        both = other.where[at] == self.where
        return bool((both & ((self.first != other.last[at]) | (self.last != other.first[at]))).any())


@dataclass
class Accesses:
    """Of one kind, as they come, and how many elements they are."""

    parts: list[Touched] = field(default_factory=list)
    size: int = 0

    def add(self, where: np.ndarray, program: int, values: np.ndarray | None = None) -> None:
        who = np.broadcast_to(np.int64(program), where.shape)  # takes no memory
        what = who if values is None else values
        self.parts.append(Touched(where, who, who, what, what))
        self.size += len(where)

    def whole(self) -> Touched:
        none = np.zeros(0, np.int64)
        parts = [Touched(np.zeros(0, np.uint64), none, none, none, none), *self.parts]
        columns = ("where", "first", "last", "low", "high")
        return Touched(*(np.concatenate([getattr(part, name) for part in parts]) for name in columns))

    def fold(self) -> None:
        """One row for each address in the place of all."""
        whole = self.whole().by_address()
        self.parts, self.size = [whole], len(whole.where)


class Log:
    """What each program of one launch loads, stores and changes by atomics. bare_loads, bare_stores: of a
    program that has made no atomic access yet; one that has may have been told by it that others are done. locks: some were
    made by which programs may wait for each other, so that only what nobody can have waited for is a race."""

    def __init__(self) -> None:
        self.program = 0
        self.loads, self.stores, self.changes = Accesses(), Accesses(), Accesses()
        self.bare_loads, self.bare_stores = Accesses(), Accesses()
        self.told = False  # whether the program has made an atomic access
        self.locks = False
        self.torn = False  # one tl.store with two values for an address
        self.most = MOST_ACCESSES

    def next_program(self) -> None:
        self.program, self.told = self.program + 1, False

    def loaded(self, where: np.ndarray) -> None:
        self._touched(self.loads, self.bare_loads, where)

    def stored(self, where: np.ndarray, values: np.ndarray) -> None:
        if not self.torn and len(where) > 1:
            order = np.argsort(where, kind="stable")
            same = where[order][1:] == where[order][:-1]
            self.torn = bool((same & (values[order][1:] != values[order][:-1])).any())
        self._touched(self.stores, self.bare_stores, where, values)

    def changed(self, where: np.ndarray) -> None:
        self.told = True
        self.changes.add(where, self.program)
        self._bound()

    def _touched(self, kind: Accesses, bare: Accesses, where: np.ndarray, values: np.ndarray | None = None) -> None:
        kind.add(where, self.program, values)
        if not self.told:
            bare.parts.append(kind.parts[-1])
            bare.size += len(where)
        self._bound()

    def _bound(self) -> None:
        kinds = (self.loads, self.stores, self.changes, self.bare_loads, self.bare_stores)
        if sum(kind.size for kind in kinds) > self.most:
            for kind in kinds:
                kind.fold()
            self.most = MOST_ACCESSES + sum(kind.size for kind in kinds)

    def conflict(self) -> str:
        """What two programs do to one address, '' for nothing. Programs that agree on the value written do no harm."""
        loads, written = (self.bare_loads, self.bare_stores) if self.locks else (self.loads, self.stores)
        stores, changes = written.whole().by_address(), self.changes.whole().by_address()
        if ((stores.first != stores.last) & (stores.low != stores.high)).any():
            return "two programs store different values at one address"
        if self.torn and not self.locks:
            return "one tl.store has different values for one address"
        if loads.whole().shared_with(stores):
            return "one program loads what another stores in the same launch"
        bare = (self.bare_loads, self.bare_stores)
        if not self.locks and any(kind.whole().shared_with(changes) for kind in bare):
            return "one program loads or stores, without atomics, what another changes by them in the same launch"
        return ""
