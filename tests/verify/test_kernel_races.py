"""What the log of a launch finds between programs, however many accesses there are."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest

from windtunnel.verify.kernel.child import races
from windtunnel.verify.kernel.child.pauses import SPINS, Paused, Pauses, Waiting

STORES = "two programs store different values at one address"
LOADS = "one program loads what another stores in the same launch"
ATOMICS = "one program loads or stores, without atomics, what another changes by them in the same launch"
TORN = "one tl.store has different values for one address"

TAKE = GIVE = ("swap", [9], [])  # a compare-and-swap or an exchange that changed the word, as do a lock's
# Of one program after the other: (what it does, where, with which values).
CASES = {
    "places of their own": ([[("store", [1], [5])], [("store", [2], [6]), ("load", [2], [])]], ""),
    "the same value": ([[("store", [1], [5])], [("store", [1], [5])]], ""),
    "another value": ([[("store", [1], [5])], [("store", [1], [6])]], STORES),
    "another value in the end": (
        [[("store", [1], [5]), ("store", [1], [7])], [("store", [1], [7]), ("store", [1], [8])]],
        STORES,
    ),
    "one after the other": ([[("store", [1], [5]), ("store", [1], [6])]], ""),
    "two at once": ([[("store", [1, 2, 1], [5, 5, 6])]], TORN),
    "loads another's": ([[("load", [1, 2], [])], [("store", [2], [5])]], LOADS),
    "atomics alone": ([[("atomic", [1], [])], [("atomic", [1], [])]], ""),
    "a load beside atomics": ([[("load", [1], []), ("atomic", [1], [])], [("atomic", [1], [])]], ATOMICS),
    "a store beside atomics": ([[("store", [1], [0])], [("atomic", [1], [])]], ATOMICS),
    "after a ticket": ([[("atomic", [1, 9], [])], [("atomic", [1, 9], []), ("load", [1], []), ("store", [9], [0])]], ""),
    "behind a lock": ([[TAKE, ("load", [1], []), ("store", [1], [program]), GIVE] for program in (5, 6)], ""),
    "behind a lock that a store gives back": ([[TAKE, ("store", [1], [program]), ("store", [9], [0])] for program in (5, 6)], ""),
    "behind a lock that an addition gives back": (
        [[TAKE, ("load", [1], []), ("store", [1], [program]), ("atomic", [9], [])] for program in (5, 6)],
        "",
    ),
    "behind a lock that nobody gives back": ([[TAKE, ("store", [1], [program])] for program in (5, 6)], STORES),
    "behind a lock of each one's own": (
        [[("swap", [program], []), ("store", [1], [program]), ("swap", [program], [])] for program in (15, 16)],
        STORES,
    ),
    "beside a lock": ([[TAKE, ("store", [1], [5]), GIVE], [("swap", [], []), ("store", [1], [6])]], STORES),
    "after a lock": ([[TAKE, GIVE, ("store", [1], [program])] for program in (5, 6)], STORES),
    "after a flag": ([[("store", [1], [5]), ("swap", [9], [])], [("swap", [], []), ("load", [1], []), ("store", [2], [6])]], ""),
    "before a lock": ([[("load", [1], []), ("store", [1], [program]), TAKE] for program in (5, 6)], STORES),
    "loads before a lock": ([[("load", [1, 2], []), TAKE], [("store", [2], [5])]], LOADS),
    "the last one by a ticket loads": (
        [[("store", [1], [5]), ("atomic", [9], [])], [("atomic", [9], []), ("load", [1], [])]],
        "",
    ),
    "a ticket before its store": ([[("atomic", [9], []), ("store", [1], [5])], [("atomic", [9], []), ("load", [1], [])]], LOADS),
    "loads before the ticket": ([[("store", [1], [5]), ("atomic", [9], [])], [("load", [1], []), ("atomic", [9], [])]], LOADS),
    "the first one by a ticket loads": (
        [[("atomic", [9], []), ("load", [1], [])], [("store", [1], [5]), ("atomic", [9], [])]],
        LOADS,
    ),
}


@pytest.mark.parametrize("most", [0, 3, 1000])
@pytest.mark.parametrize("name", CASES)
def test_a_log_finds_the_same_however_long_it_gets(name: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(races, "MOST_ACCESSES", most)
    programs, expected = CASES[name]
    log = races.Log()
    for program in programs:
        log.next_program()
        for what, where, values in program:
            at = np.array(where, np.uint64)
            if what == "load":
                log.loaded(at)
            elif what == "store":
                log.stored(at, np.array(values, np.int64))
            elif what == "atomic":
                log.changed(at)
            else:
                log.swapped(at)
    assert log.conflict() == expected


def test_what_goes_on_later_may_load_what_was_stored_meanwhile() -> None:
    place, ticket = np.array([1], np.uint64), np.array([9], np.uint64)
    log = races.Log()
    log.next_program()
    log.changed(ticket)
    log.stop()
    log.next_program()
    log.stored(place, np.array([5]))
    log.changed(ticket)
    log.resume(1)
    log.loaded(place)
    assert log.conflict() == ""


def test_who_waits_for_a_lock_has_told_nobody_yet() -> None:
    """The first program stores, finds the lock taken, and gets it later: then others may load what it stored."""
    place, lock, none = np.array([1], np.uint64), np.array([9], np.uint64), np.array([], np.uint64)
    for told, expected in ((True, ""), (False, LOADS)):
        log = races.Log()
        log.next_program()
        log.stored(place, np.array([5]))
        log.swapped(none)
        log.stop()
        log.next_program()
        log.swapped(lock)
        log.swapped(lock)
        log.stop()
        log.resume(1)
        if told:
            log.swapped(lock)
            log.swapped(lock)
        log.resume(2)
        log.loaded(place)
        assert log.conflict() == expected


WORD, NOTHING = (SimpleNamespace(data=np.array([number])) for number in (9, 0))


def test_a_program_goes_on_with_what_its_accesses_gave() -> None:
    made: list[int] = []

    def program(pauses: Pauses) -> int:
        first = pauses.access(lambda: made.append(1) or len(made))
        pauses.may_stop(WORD, NOTHING)
        return first + pauses.access(lambda: made.append(2) or len(made))

    pauses = Pauses(random.Random(0), on=True)
    pauses.dice.random = lambda: 0.0  # type: ignore[method-assign]
    with pytest.raises(Paused):
        program(pauses)
    made.append(3)
    pauses.resume(Waiting((0, 0, 0), 1, pauses.done))
    assert program(pauses) == 1 + 3
    assert made == [1, 3, 2]


def test_who_waits_for_another_stops_until_nobody_comes_to_an_end() -> None:
    pauses = Pauses(random.Random(0), on=True)
    pauses.resume(Waiting((0, 0, 0), 1, []))

    def tries(number: int) -> None:
        for _ in range(number):
            pauses.access(lambda: NOTHING)
            pauses.may_stop(WORD, NOTHING)

    tries(SPINS)
    with pytest.raises(Paused):
        tries(1)
    pauses.in_vain = 1
    tries(SPINS)
