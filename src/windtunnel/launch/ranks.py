"""The ranks of a job on this machine: started, listened to, watched, told to stop, and ended together.

A rank that dies, hangs or is stopped is named within a minute, with what it was doing and its stack. The others then save
what can be saved: they would wait for it in a collective until its time-out.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, NoReturn

from windtunnel.files import write_atomic
from windtunnel.recipe import UserError
from windtunnel.run import (
    KEEPING,
    LEAST_SECONDS,
    STOP_FILE,
    STOPPING,
    WAITING,
    Beat,
    RunFolder,
    StoppedEarly,
)

from .processes import CRASHED
from .rank import STARTING_SECONDS, Rank, open_store, start_here
from .ready import ReadyRanks
from .stacks import Stack

ABANDON = signal.SIGQUIT
"""Tells a rank to leave whatever it is doing; see `windtunnel.launch.worker`."""
STILL_SECONDS = 20.0
"""A rank that is stopped (SIGSTOP, a debugger) for so long ends the run."""
ENDS_SECONDS = 35.0
"""For a run with short steps to begin to save, once ranks that were stopped are continued; others have SAVING_SECONDS / 10."""
AGAIN_SECONDS = 5.0
"""Between the two looks at a rank that seems to hang: it does where its stack has not changed."""
COMPILING_SECONDS = 3600.0
CERTAIN = 10.0
"""A rank that takes so many times its limit hangs, whatever its stack."""
ENDING_SECONDS = 10.0
"""For the other ranks to end, or to begin to save, after one has failed."""
SAVING_SECONDS = 600.0
TICK = 0.05
STACKS = "stacks.txt"
"""In the run's folder: the stacks of all ranks when one hung, or was stopped."""


class RankFailed(UserError):
    """A rank died, or hung and was ended."""

    exit_code = 1


@dataclass(frozen=True)
class _Look:
    """A rank that seemed to hang: when it was looked at, and its stack then."""

    rank: int
    when: float
    beat: float
    stack: Stack | None


def run_ranks(folder: Path, ranks: int, *, as_json: bool, output: IO[str] | None, ready: ReadyRanks | None = None) -> None:
    """Train in a process a rank; how training ended stands in the run's manifest.

    Args:
        folder: of the run.
        ranks: how many processes.
        as_json: rank 0 tells progress as JSON.
        output: gets what the ranks print, in place of standard output.
        ready: processes that wait for such work; those for which there is none are ended.

    Raises:
        RankFailed: a rank died or hung; names it, what it did and where.
        UserError: a rank refused what it was to do, or ran out of memory.
    """
    store = open_store() if ranks > 1 else None
    with tempfile.TemporaryDirectory(prefix="windtunnel-ranks-") as beats:
        started = start_here(folder, ranks, store.port if store else 0, Path(beats), as_json, output, ready)
        watch_ranks(folder, started, output)


def watch_ranks(folder: Path, ranks: Sequence[Rank], output: IO[str] | None) -> None:
    """Wait for ranks to end well, wherever they run, and end them; see `run_ranks`."""
    watch = _RankWatch(folder, ranks, output)
    with watch.signals():
        try:
            watch.wait()
        finally:
            watch.end()


class _RankWatch:
    """Watches the ranks of one run from their start to their end; see the module."""

    def __init__(self, folder: Path, ranks: Sequence[Rank], output: IO[str] | None) -> None:
        self._folder, self._ranks, self._output, self._interrupts = folder, ranks, output, 0
        self._asked: float | None = None
        self._signal = signal.SIGTERM
        self._look: _Look | None = None

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Hand requests to stop to rank 0, which decides for all; a second Ctrl-C ends all at once."""

        def forward(number: int, frame: FrameType | None) -> None:
            # Ctrl-C comes once for a checkpoint and a second time from somebody who does not want to wait for it.
            self._interrupts += number == signal.SIGINT
            if self._interrupts > 1:
                raise KeyboardInterrupt
            self._asked, self._signal = self._asked or time.monotonic(), signal.Signals(number)
            self._ranks[0].send(signal.SIGTERM if number == signal.SIGINT else number)

        old = {number: signal.signal(number, forward) for number in STOPPING}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

    def wait(self) -> None:
        """Wait for all ranks to end well."""
        while True:
            codes = [rank.code for rank in self._ranks]
            if all(code is not None for code in codes) and not any(codes):
                return
            dead = [rank for rank, code in zip(self._ranks, codes, strict=True) if code]
            if dead:
                self._failed(dead)
            # A list, not a generator: every rank's clock must be looked at.
            if any([self._stands_still(rank) for rank in self._ranks]):
                return
            self._look_for_a_hang()
            time.sleep(TICK)

    def end(self) -> None:
        """End what is left of the ranks, and read what they still have printed."""
        for rank in self._ranks:
            rank.end()

    # A rank that died

    def _failed(self, dead: Sequence[Rank]) -> NoReturn:
        """Raise why a rank ended, once the others have saved what they can; a refusal is passed on."""
        # Python ends by a signal that came before it could set a handler: that is no failure.
        stopped = -signal.SIGTERM if self._signal == signal.SIGINT else -self._signal
        if self._asked is not None and self._ranks[0].code == stopped and self._doing(self._ranks[0]) == "starting":
            raise StoppedEarly(self._signal.name)  # it could not listen yet
        self._let_them_save(lambda: None)
        # Ranks that ended for want of another one are not the cause; if all say so, whoever ended first is taken for it.
        told = {rank.number: rank.told() for rank in self._ranks}
        causes = [rank for rank in self._ranks if rank.code and not (told[rank.number] or {}).get("lost")] or list(dead)
        for rank in causes:
            said = told[rank.number]
            if said is not None and said["exit_code"] != CRASHED and not said.get("lost"):
                error = UserError(f"{said['error']}{self._kept()}", said["fix"])
                error.exit_code = said["exit_code"]
                raise error
        # One that was killed is the cause; of those that raised, it is rather one that computed than one that waited for it.
        first = min(causes, key=lambda rank: ((rank.code or 0) > 0, self._doing(rank) == WAITING, rank.number))
        code, said = first.code or 0, told[first.number]
        how = said.get("how") or f"raised {said['error']}" if said else f"ended with code {code}"
        if code < 0:
            how = f"was ended by {signal.Signals(-code).name}"
        see = ""
        if code == -signal.SIGKILL:
            how += " (out of memory, or somebody's kill)"
            see = f"where memory ran out, {self._lighter()}"
        raise self._error(first, how, first.beat(), see)

    def _lighter(self) -> str:
        from windtunnel.train import lighter_run

        return lighter_run(RunFolder.open(self._folder))

    def _let_them_save(self, after: Callable[[], None]) -> None:
        """Wait for ranks to end by themselves; those that save the last good state have the time for it.

        Args:
            after: called once when some have not ended within half of `ENDING_SECONDS`, and do not save either.
        """
        # They notice that a peer is gone within seconds; one that saves takes as long as its disk.
        began, called = time.monotonic(), False
        while any(rank.code is None for rank in self._ranks):
            gone = time.monotonic() - began
            saving = any(rank.code is None and self._doing(rank) == KEEPING for rank in self._ranks)
            if not called and gone > ENDING_SECONDS / 2:
                called = True
                after()
            if gone > (SAVING_SECONDS if saving else ENDING_SECONDS):
                return
            time.sleep(TICK)

    def _kept(self) -> str:
        """Return what became of the last good state, in rank 0's words and behind a semicolon; '' where it said nothing."""
        told = self._ranks[0].told()
        return f"; {told['kept']}" if told and told.get("kept") else ""

    # A rank that was stopped

    def _stands_still(self, rank: Rank) -> bool:
        """Return whether a rank was stopped for too long, and the run was saved and ended for it.

        Raises:
            RankFailed: it was, but could not be continued, or the run could not be ended.
        """
        if rank.code is not None or rank.state() not in ("T", "t"):
            rank.stopped_since = None
            return False
        # A debugger that looks for a moment is no hang.
        rank.stopped_since = rank.stopped_since or time.monotonic()
        if time.monotonic() - rank.stopped_since < STILL_SECONDS:
            return False
        beat = rank.beat()
        living = [one for one in self._ranks if one.code is None]
        # All that stand still are continued: a run whose other rank stays stopped could not save.
        still = [rank, *(one for one in living if one is not rank and one.state() in ("T", "t"))]
        stacks: dict[int, Stack] = {}
        for one in still:
            stacks |= type(rank).stacks([one], stopped=one.number)
        stacks |= type(rank).stacks([one for one in living if one not in still])
        self._keep_stacks(stacks)
        others = "".join(f"; so did rank {one.number}{_in(stacks.get(one.number))}" for one in still[1:])
        how = f"stood still for {STILL_SECONDS:.0f} s{_in(stacks.get(rank.number))}{others}: stopped (SIGSTOP, or a debugger)"
        error = self._error(rank, how, beat)
        self._say(f"warn: {error.message}; continued, so that the run can save and end")
        with contextlib.suppress(OSError):
            write_atomic(self._folder / STOP_FILE, error.message + "\n")
        for one in still:
            one.send(signal.SIGCONT)  # once more: one that could not be asked for its stack was not continued for it
        short = all(at is not None and at.limit <= LEAST_SECONDS for at in (one.beat() for one in living))
        limit = time.monotonic() + (ENDS_SECONDS if short else SAVING_SECONDS / 10)
        while time.monotonic() < limit or any(self._doing(rank) in ("saving", KEEPING) for rank in self._ranks):
            codes = [one.code for one in self._ranks]
            if all(code == 0 for code in codes):
                return True
            if any(codes):
                break
            time.sleep(TICK)
        raise error

    # A rank that hangs

    def _look_for_a_hang(self) -> None:
        """Raise RankFailed where a rank has given no sign of life for too long, twice with the same stack."""
        # Each rank says itself how long what it does may take; whoever waits for others is not to blame.
        overdue = {rank.number: beat for rank in self._ranks if (beat := self._overdue(rank)) is not None}
        if not overdue:
            self._look = None
            return
        if self._look is not None and time.monotonic() - self._look.when < AGAIN_SECONDS:
            return
        stacks = type(self._ranks[0]).stacks([rank for rank in self._ranks if rank.code is None])
        number = self._blamed(overdue, stacks)
        beat, stack, before = overdue[number], stacks.get(number), self._look
        self._look = _Look(number, time.monotonic(), beat.when, stack)
        certain = beat.age > CERTAIN * beat.limit
        if stack is not None and stack.compiles and beat.age < COMPILING_SECONDS and not certain:
            return
        # Twice the same sign of life and the same stack: what merely is slow has moved between the two looks.
        same = before is not None and (before.rank, before.beat) == (number, beat.when)
        if not same or before is None or (_frames(before.stack) != _frames(stack) and not certain):
            return
        self._hangs(self._ranks[number], beat, stacks)

    def _overdue(self, rank: Rank) -> Beat | None:
        """Return the last sign of life of a rank that should have given another one since; None: all is well with it."""
        beat = rank.beat() or Beat(rank.began, STARTING_SECONDS, 0, "starting")
        if rank.code is not None or rank.stopped_since is not None or beat.doing == WAITING:
            return None
        return beat if beat.late(self._asked) else None

    def _blamed(self, overdue: dict[int, Beat], stacks: dict[int, Stack]) -> int:
        """Return which rank it is that hangs: one that does not wait for another, or else the one that came least far."""

        def order(number: int) -> tuple[bool, int, int]:
            stack = stacks.get(number)
            # One that computes or reads a disk holds up those that wait in a collective, not the other way round.
            return stack is not None and stack.waits, overdue[number].step, number

        return min(overdue, key=order)

    def _hangs(self, rank: Rank, beat: Beat, stacks: dict[int, Stack]) -> NoReturn:
        """Make a rank that hangs leave what it does, so that all can save; then raise what was found."""
        stack = stacks.get(rank.number)
        waits = stack is not None and stack.waits
        how = "waits for other ranks that do not come" if waits else "hangs"
        what = f"{how}: no sign of life for {beat.age:.0f} s{_in(stack)}"
        self._keep_stacks(stacks)
        self._say(f"warn: {self._error(rank, what, beat).message}; the ranks save what they can")
        # An exception where it hangs, if Python still runs there; SIGKILL after that.
        rank.send(ABANDON)
        self._let_them_save(lambda: rank.send(signal.SIGKILL) if self._doing(rank) != KEEPING else None)
        raise self._error(rank, what, beat, f"the stacks of all ranks are in {self._folder / STACKS}")

    # What is told

    def _keep_stacks(self, stacks: dict[int, Stack]) -> None:
        text = "".join(
            f"rank {one.number}: {self._doing(one)}\n{stacks[one.number].text if one.number in stacks else 'no answer'}\n"
            for one in self._ranks
        )
        with contextlib.suppress(OSError):
            write_atomic(self._folder / STACKS, text)

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            print(text, file=self._output or sys.stderr, flush=True)

    def _doing(self, rank: Rank) -> str:
        beat = rank.beat()
        return beat.doing if beat else "starting"

    def _error(self, rank: Rank, how: str, beat: Beat | None, see: str = "") -> RankFailed:
        at = f" after step {beat.step:,}, while {beat.doing}" if beat and beat.doing != "starting" else " while starting"
        again = f"go on with: windtunnel train --resume --run {self._folder}"
        return RankFailed(
            f"rank {rank.number} of {len(self._ranks)} {how}{at}{self._kept()}", f"{see}; {again}" if see else again
        )


def _in(stack: Stack | None) -> str:
    return f", in {stack.where}" if stack is not None and stack.where else ""


def _frames(stack: Stack | None) -> object:
    return None if stack is None else stack.frames
