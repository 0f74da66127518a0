"""What the programs of one launch do to each other's places: races that running one program after the other hides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

MOST_ACCESSES = 6_000_000  # elements; then what is known of each address takes the place of its accesses

# The lowest and the highest number of the programs that make an access, of all elements or of each.
Programs = tuple[int | np.ndarray, int | np.ndarray]

LOADS_WHAT_IS_STORED = "one program loads what another stores in the same launch"


@dataclass
class Touched:
    """Places that were loaded, stored to or changed by atomics, one row for each access or for several of one address.

    Attributes:
        first, last: the lowest and highest number of a program that did.
        low, high: of a value that was stored.
    """

    where: np.ndarray
    first: np.ndarray
    last: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def by_address(self) -> Touched:
        """Return one row for each address, in order."""
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
        """Return whether an address in both was touched by more than one program. other: by address."""
        mine, theirs = self._met(other)
        return bool(((self.first[mine] != other.last[theirs]) | (self.last[mine] != other.first[theirs])).any())

    def before(self, other: Touched) -> bool:
        """Return whether a program touched an address here and one that ran after it did there. other: by address."""
        mine, theirs = self._met(other)
        return bool((self.first[mine] < other.last[theirs]).any())

    def _met(self, other: Touched) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows here and the rows there that have one address."""
        if not other.where.size:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        at = np.minimum(np.searchsorted(other.where, self.where), len(other.where) - 1)
        mine = np.flatnonzero(other.where[at] == self.where)
        return mine, at[mine]


def joined(parts: Sequence[Touched]) -> Touched:
    """Return all rows of them."""
    none = np.zeros(0, np.int64)
    filled = [Touched(np.zeros(0, np.uint64), none, none, none, none), *parts]
    columns = ("where", "first", "last", "low", "high")
    return Touched(*(np.concatenate([getattr(part, name) for part in filled]) for name in columns))


@dataclass
class Accesses:
    """Of one kind, as they come, and how many elements they are."""

    parts: list[Touched] = field(default_factory=list)
    size: int = 0

    def add(self, where: np.ndarray, who: Programs, values: np.ndarray | None = None) -> None:
        """Add accesses of programs to these addresses, with the values where they store some."""
        first, last = (np.broadcast_to(np.int64(number), where.shape) for number in who)  # takes no memory
        what = first if values is None else values
        self.parts.append(Touched(where, first, last, what, what))
        self.size += len(where)

    def whole(self) -> Touched:
        """Return all of them as one."""
        return joined(self.parts)

    def take(self, other: Accesses) -> None:
        """Take all of another's, which has none then."""
        self.parts += other.parts
        self.size += other.size
        other.clear()

    def clear(self) -> None:
        """Forget all of them."""
        self.parts, self.size = [], 0

    def fold(self) -> None:
        """Keep one row for each address in the place of all."""
        whole = self.whole().by_address()
        self.parts, self.size = [whole], len(whole.where)


class Locks:
    """Words that programs hold.

    A program holds a word that its compare-and-swap or exchange changed, until it writes to it again. A word that another changes
    meanwhile keeps nobody out, and never did.
    """

    def __init__(self) -> None:
        self.owner: dict[int, int] = {}  # program by word
        self.held: dict[int, list[int]] = {}  # words by program, in the order they were taken
        self.broken: set[int] = set()

    def guard(self, program: int) -> int:
        """Return the word that a program has held for longest, 0 for none."""
        words = self.held.get(program)
        return words[0] if words else 0

    def swapped(self, changed: np.ndarray, program: int) -> None:
        """Note the addresses of words to which a program's exchange gave another value."""
        for word in changed.tolist():
            if word not in self.owner:
                self.owner[word] = program
                self.held.setdefault(program, []).append(word)
            elif self.owner[word] == program:
                self._release(word, program)
            else:
                self.broken.add(word)

    def written(self, where: np.ndarray, program: int) -> None:
        """Note that a program stored to these addresses, or changed them by another atomic access."""
        for word in list(self.held.get(program, ())):
            if (where == word).any():
                self._release(word, program)

    def kept_apart(self, least: np.ndarray, most: np.ndarray) -> np.ndarray:
        """Return where all accesses were guarded by one word that kept the others out. least, most: guards of the accesses."""
        return (least == most) & (least != 0) & ~np.isin(least, list(self.broken))

    def _release(self, word: int, program: int) -> None:
        del self.owner[word]
        self.held[program].remove(word)


class Log:
    """What each program of one launch loads, stores and changes by atomics.

    early: loads before the program's first atomic access; late: those after it, which may have been told that others are done.
    stores: those of programs that held no lock; guarded: of those that did, with the lock in `guards`; what they load then is
    theirs. bare: stores before the first atomic access. kept: stores that no atomic access of the program follows, so that
    nobody can have been told of them. resumed: a program went on after others with higher numbers; that somebody loads before
    another stores is then no longer seen, as numbers say nothing about it.
    """

    def __init__(self) -> None:
        self.program = 0
        self.early, self.late, self.changes = Accesses(), Accesses(), Accesses()
        self.stores, self.bare, self.kept = Accesses(), Accesses(), Accesses()
        self.guarded, self.guards = Accesses(), Accesses()
        self.untold = Accesses()  # stores of this program since its last atomic access
        self.aside: dict[int, Accesses] = {}  # the same of programs that have stopped
        self.told = False  # whether the program has made an atomic access
        self.locks = Locks()
        self.torn = False  # one tl.store with two values for an address
        self.resumed = False
        self.most = MOST_ACCESSES

    def next_program(self, number: int = 1) -> None:
        """Go on with the next program, or with so many: of what this one stored last nobody can have been told."""
        self.kept.take(self.untold)
        self.program, self.told = self.program + number, False

    def take(self, other: Log) -> None:
        """Take what programs did that ran together, without atomic accesses."""
        self.early.take(other.early)
        self.stores.take(other.stores)
        self.bare.take(other.bare)
        self.kept.take(other.untold)
        self.torn |= other.torn
        self._bound()

    def stop(self) -> None:
        """Note that the program stops after an atomic access, and goes on later."""
        self.aside[self.program], self.untold = self.untold, Accesses()

    def resume(self, program: int) -> None:
        """Note that a program goes on."""
        self.kept.take(self.untold)
        self.untold = self.aside.pop(program)
        self.program, self.told, self.resumed = program, True, True

    def loaded(self, where: np.ndarray, who: Programs | None = None) -> None:
        """Note that the program, or those that run together, load from these addresses.

        What a program loads while it holds a lock is its own.
        """
        if self.locks.guard(self.program):
            return
        (self.late if self.told else self.early).add(where, who or self._itself)
        self._bound()

    def stored(self, where: np.ndarray, values: np.ndarray, who: Programs | None = None) -> None:
        """Note that the program, or those that run together, store values to these addresses."""
        who = who or self._itself
        if not self.torn and len(where) > 1:
            self.torn = _is_torn(where, values, np.broadcast_to(who[0], where.shape))
        if guard := self.locks.guard(self.program):
            self.guarded.add(where, who, values)
            self.guards.add(where, who, np.broadcast_to(np.int64(guard), where.shape))
            self.locks.written(where, self.program)
        else:
            for kind in (self.stores, self.untold) if self.told else (self.stores, self.untold, self.bare):
                kind.add(where, who, values)
        self._bound()

    def changed(self, where: np.ndarray, exchanged: np.ndarray | None = None) -> None:
        """Note a change by an atomic access. exchanged: of an exchange, the words that got another value."""
        self.told = True
        self.untold.clear()
        self.changes.add(where, self._itself)
        if exchanged is None:
            self.locks.written(where, self.program)
        else:
            self.locks.swapped(exchanged, self.program)
        self._bound()

    def swapped(self, changed: np.ndarray) -> None:
        """Note a compare-and-swap. changed: what got another value."""
        self.told = True
        if changed.size:
            self.untold.clear()
        self.locks.swapped(changed, self.program)

    @property
    def _itself(self) -> Programs:
        return self.program, self.program

    def _bound(self) -> None:
        kinds = (self.early, self.late, self.changes, self.stores, self.bare, self.kept, self.untold, self.guarded, self.guards)
        if sum(kind.size for kind in kinds) > self.most:
            for kind in kinds:
                kind.fold()
            self.most = MOST_ACCESSES + sum(kind.size for kind in kinds)

    def conflict(self) -> str:
        """Return what two programs do to one address, '' for nothing. Programs that agree on the value written do no harm."""
        self.kept.take(self.untold)
        early, late = self.early.whole(), self.late.whole()
        stores = joined([*self.stores.parts, *self.guarded.parts]).by_address()
        if self._stored_by_two(stores):
            return "two programs store different values at one address"
        if self.torn:
            return "one tl.store has different values for one address"
        # What is loaded after an atomic access may have been told that the other is done, but not of what that one does after its
        # own last.
        if early.shared_with(stores) or late.shared_with(self.kept.whole().by_address()):
            return LOADS_WHAT_IS_STORED
        if not self.resumed and late.before(stores):
            return LOADS_WHAT_IS_STORED
        changes = self.changes.whole().by_address()
        if early.shared_with(changes) or self.bare.whole().shared_with(changes):
            return "one program loads or stores, without atomics, what another changes by them in the same launch"
        return ""

    def _stored_by_two(self, stores: Touched) -> bool:
        """Return whether two programs stored different values at an address, and not one after the other under one lock.

        stores: all of them, by address.
        """
        clash = stores.where[(stores.first != stores.last) & (stores.low != stores.high)]
        if not clash.size or not self.guards.size:
            return bool(clash.size)
        guards = self.guards.whole().by_address()
        apart = guards.where[self.locks.kept_apart(guards.low, guards.high)]
        return not (np.isin(clash, apart) & ~np.isin(clash, self.stores.whole().where)).all()


def _is_torn(where: np.ndarray, values: np.ndarray, who: np.ndarray) -> bool:
    """Return whether one program stores different values to an address at once."""
    order = np.argsort(where, kind="stable")
    if not (where[order][1:] == where[order][:-1]).any():
        return False
    order = np.lexsort((where, who))
    where, values, who = where[order], values[order], who[order]
    return bool(((where[1:] == where[:-1]) & (who[1:] == who[:-1]) & (values[1:] != values[:-1])).any())
