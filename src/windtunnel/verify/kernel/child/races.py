"""What the programs of one launch do to each other's places: races that running one program after the other hides."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

MOST_ACCESSES = 6_000_000  # elements; then what is known of each address takes the place of its accesses

LOADS_WHAT_IS_STORED = "one program loads what another stores in the same launch"


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
        mine, theirs = self._met(other)
        return bool(((self.first[mine] != other.last[theirs]) | (self.last[mine] != other.first[theirs])).any())

    def before(self, other: Touched) -> bool:
        """Whether a program touched an address here and one that ran after it did there. other: by address."""
        mine, theirs = self._met(other)
        return bool((self.first[mine] < other.last[theirs]).any())

    def _met(self, other: Touched) -> tuple[np.ndarray, np.ndarray]:
        """Rows here and rows there that have one address."""
        if not other.where.size:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        at = np.minimum(np.searchsorted(other.where, self.where), len(other.where) - 1)
        mine = np.flatnonzero(other.where[at] == self.where)
        return mine, at[mine]


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

    def take(self, other: Accesses) -> None:
        """All of another's, which has none then."""
        self.parts += other.parts
        self.size += other.size
        other.clear()

    def clear(self) -> None:
        self.parts, self.size = [], 0

    def fold(self) -> None:
        """One row for each address in the place of all."""
        whole = self.whole().by_address()
        self.parts, self.size = [whole], len(whole.where)


class Log:
    """What each program of one launch loads, stores and changes by atomics.

    early: loads before the program's first atomic access; late: those after it, which may have been told that others are done.
    bare: stores before it. kept: stores that no atomic access of the program follows, so that nobody can have been told of them.
    locks: some accesses were atomic ones by which programs may wait for each other, so that only what nobody can have waited
    for is a race.
    """

    def __init__(self) -> None:
        self.program = 0
        self.early, self.late, self.changes = Accesses(), Accesses(), Accesses()
        self.stores, self.bare, self.kept = Accesses(), Accesses(), Accesses()
        self.untold = Accesses()  # stores of this program since its last atomic access
        self.told = False  # whether the program has made an atomic access
        self.locks = False
        self.torn = False  # one tl.store with two values for an address
        self.resumed = False  # a program went on after others that have higher numbers
        self.most = MOST_ACCESSES

    def next_program(self) -> None:
        self.kept.take(self.untold)
        self.program, self.told = self.program + 1, False

    def resume(self, program: int) -> None:
        """A program goes on that stopped after an atomic access."""
        self.kept.take(self.untold)
        self.program, self.told, self.resumed = program, True, True

    def loaded(self, where: np.ndarray) -> None:
        (self.late if self.told else self.early).add(where, self.program)
        self._bound()

    def stored(self, where: np.ndarray, values: np.ndarray) -> None:
        if not self.torn and len(where) > 1:
            order = np.argsort(where, kind="stable")
            same = where[order][1:] == where[order][:-1]
            self.torn = bool((same & (values[order][1:] != values[order][:-1])).any())
        for kind in (self.stores, self.untold) if self.told else (self.stores, self.untold, self.bare):
            kind.add(where, self.program, values)
        self._bound()

    def changed(self, where: np.ndarray) -> None:
        self.told = True
        self.untold.clear()
        self.changes.add(where, self.program)
        self._bound()

    def _bound(self) -> None:
        kinds = (self.early, self.late, self.changes, self.stores, self.bare, self.kept, self.untold)
        if sum(kind.size for kind in kinds) > self.most:
            for kind in kinds:
                kind.fold()
            self.most = MOST_ACCESSES + sum(kind.size for kind in kinds)

    def conflict(self) -> str:
        """What two programs do to one address, '' for nothing. Programs that agree on the value written do no harm."""
        self.kept.take(self.untold)
        early, late = self.early.whole(), self.late.whole()
        stores = (self.bare if self.locks else self.stores).whole().by_address()
        if ((stores.first != stores.last) & (stores.low != stores.high)).any():
            return "two programs store different values at one address"
        if early.shared_with(stores):
            return LOADS_WHAT_IS_STORED
        if self.locks:
            return ""
        if self.torn:
            return "one tl.store has different values for one address"
        if late.shared_with(self.kept.whole().by_address()) or (not self.resumed and late.before(stores)):
            return LOADS_WHAT_IS_STORED
        changes = self.changes.whole().by_address()
        if early.shared_with(changes) or self.bare.whole().shared_with(changes):
            return "one program loads or stores, without atomics, what another changes by them in the same launch"
        return ""
