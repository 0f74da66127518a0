"""Where a learner's rounds come from: each made when it is its turn, or ahead, while it trains on earlier ones.

Ahead they are made by a schedule that depends on round numbers alone: round n is answered by the weights that n - 1 - k rounds
made, k being stages.rl.overlap; the first rounds, and those after rounds ahead were lost, by the weights that there were. So
nothing depends on how fast anything was.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist

from windtunnel.generate import Generator
from windtunnel.train import RANKS_TIMEOUT, Ranks

from .kept_rounds import Answered, KeptRounds
from .rollouts import Agree, Collector, Stopped
from .sampler import EngineSampler, Sampler

WAIT_SECONDS = 0.2
BASE = "ahead_from"


class Rounds(Protocol):
    """Gives rounds in their order. All ranks call every method together."""

    sampler: Sampler

    def take(self, number: int, position: int) -> Answered:
        """Return a round.

        Args:
            number: of the round; the weights now are those that the rounds before made.
            position: of its prompts.

        Raises:
            UserError: it cannot be answered, or nothing is known of any answer.
            Stopped: this process, or that of another rank, is to end.
        """

    @contextlib.contextmanager
    def generator(self) -> Iterator[Generator]:
        """Yield what answers by the weights as they are, between two rounds; raises as `take` does."""
        with self.sampler.generator() as generator:
            yield generator
        # An engine that died for good leaves its answers failed, one by one; why is known here.
        self.sampler.require_well()

    def facts(self) -> dict[str, int]:
        """Return what `forget` needs to know again."""

    def forget(self, number: int, facts: Mapping[str, int] | None) -> None:
        """Take note that the weights are now those that `number` rounds made.

        Args:
            number: of rounds.
            facts: as saved with the weights; None: the learner went back on purpose.
        """

    def close(self) -> None:
        """End what answers."""


@dataclass
class SynchronousRounds(Rounds):
    """Each round by the weights that learn from it.

    Args:
        sampler: answers.
        collector: makes rounds; its loader is the learner's.
        updates: of the weights that a round makes.
    """

    sampler: Sampler
    collector: Collector
    updates: int

    def take(self, number: int, position: int) -> Answered:
        """See `Rounds`."""
        require_going_on(self.collector.agree, self.collector)
        with self.sampler.generator() as generator:
            found = self.collector.collect(generator, number, (number - 1) * self.updates)
        return Answered(found, position, self.collector.loader.position, dict(self.sampler.metrics()))

    def facts(self) -> dict[str, int]:
        """See `Rounds`."""
        return {}

    def forget(self, number: int, facts: Mapping[str, int] | None) -> None:
        """See `Rounds`."""
        self.sampler.forget()

    def close(self) -> None:
        """See `Rounds`."""
        self.sampler.close()


@dataclass
class RoundsAhead(Rounds):
    """Rounds ahead of the learner, at most `overlap` of them. All ranks call every method together.

    Args:
        overlap: rounds.
        updates: of the weights that a round makes.
        sampler: the engines.
        collector: makes rounds; it gets a loader of its own.
        kept: rounds that are answered and not yet learned from, on the disk.
        agree: the largest of all ranks' numbers; for the learner's thread. The collector's is for the one that collects.
        beat: called while the learner waits.
        say: told where rounds ahead were lost.
        in_flight: engines take new weights in the middle of answers.
    """

    overlap: int
    updates: int
    sampler: EngineSampler
    collector: Collector
    kept: KeptRounds
    agree: Agree
    beat: Callable[[], None]
    say: Callable[[str], None]
    in_flight: bool = False

    def __post_init__(self) -> None:
        self._newest: tuple[Path, int] | None = None  # weights that engines were to answer by
        self._taking = threading.Lock()
        self._base = 0  # no round is answered by weights of fewer rounds than this
        self._leaving, self._begun = False, False
        self._rounds: dict[int, Future[Answered]] = {}
        self._ends = 0
        stop = self.collector.stop
        # A loader of its own: rounds ahead take prompts that the learner's position has not come to.
        self.collector = replace(
            self.collector, loader=copy.copy(self.collector.loader), stop=lambda: stop() or self._leaving,
            alive=self.sampler.require_well,
        )  # fmt: skip
        self._thread = ThreadPoolExecutor(1, "rounds-ahead")

    def take(self, number: int, position: int) -> Answered:
        """See `Rounds`; those behind it are answered meanwhile."""
        require_going_on(self.agree, self.collector)
        self._begun = True
        if number not in self._rounds:
            self._begin(number, position)
        last = number + self.overlap
        if last not in self._rounds:
            self._give(last, number - 1)
            # Answers of the round that is waited for go on by the weights just published: its last tokens are the fresher for
            # it.
            if self.in_flight and not self._rounds[number].done():
                self._take_newest()
        began = time.monotonic()
        answered = self._waited(number)
        assert answered.begins == position
        waited = {"waiting_seconds": time.monotonic() - began}
        # From the disk it goes only when no checkpoint needs it; see `KeptRounds`.
        del self._rounds[number]
        self.kept.forget_before(number)
        return replace(answered, metrics={**answered.metrics, **waited})

    @contextlib.contextmanager
    def generator(self) -> Iterator[Generator]:
        """See `Rounds`. Rounds ahead are waited for: engines in the middle of one would go on by other weights than its own."""
        for number in list(self._rounds):
            self._waited(number)
        with super().generator() as generator:
            yield generator

    def facts(self) -> dict[str, int]:
        """See `Rounds`."""
        return {BASE: self._base}

    def forget(self, number: int, facts: Mapping[str, int] | None) -> None:
        """See `Rounds`. The first time a run goes on from where it was stopped, and its rounds ahead are on the disk."""
        # In the middle of a session it is a way back after trouble: what was ahead came of the weights that are given up.
        goes_on = facts is not None and not self._begun
        self._leave()
        self._begun = True
        self._base = int(facts.get(BASE, 0)) if goes_on and facts is not None else number
        self.sampler.forget(number * self.updates if goes_on else None)
        if not goes_on:
            self.kept.clear()

    def close(self) -> None:
        """See `Rounds`; what is under way is given up.

        Rounds that are whole stay on the disk, and of those that are not the weights, so that a run that goes on has them.
        """
        # Looked at before they are given up, which forgets them.
        left = [number for number, future in self._rounds.items() if not _is_whole(future)]
        self._leave()
        self._thread.shutdown()
        self.sampler.close({self._made(number) * self.updates for number in left})

    def _waited(self, number: int) -> Answered:
        """Return a round when it is there; it stays among those that are ahead."""
        future = self._rounds[number]
        while not future.done():
            self.beat()
            with contextlib.suppress(TimeoutError):
                future.exception(WAIT_SECONDS)
        return future.result()

    def _leave(self) -> None:
        # Told first, so that the round under way ends by itself; what waits behind it never begins.
        self._leaving = True
        for future in self._rounds.values():
            future.cancel()
        for future in self._rounds.values():
            with contextlib.suppress(Exception, Stopped):
                if not future.cancelled():
                    future.result()
        self._rounds.clear()
        self.sampler.engines.drop()
        self._leaving, self._newest = False, None

    def _begin(self, number: int, position: int) -> None:
        """Take up the rounds from `number` on: from the disk, by weights that are there still, or else anew."""
        self._ends = position
        wanted = range(number, number + self.overlap)
        there, ends = {}, position
        for one in wanted:
            found = self.kept.read(one, ends, self._made(one) * self.updates)
            # A round counts as kept where every rank has its part: half of one cannot be learned from.
            if self.agree(int(found is None)):
                break
            assert found is not None
            there[one], ends = found, found.ends
        older = [one for one in wanted if one not in there and self._made(one) < number - 1]
        paths = {one: self.sampler.published(self._made(one) * self.updates) for one in older}
        # Weights are on one disk, and yet each rank looks: all have to decide the same, or they wait for each other.
        if self.agree(int(any(path is None for path in paths.values()))):
            self.say(f"what was answered ahead of round {number} is not there: rounds from {number} on are answered anew")
            self._base, self._ends, there, paths = number - 1, position, {}, {}
        for one in wanted:
            if one in there:
                # So that `take` need not know whether a round was kept or is being answered.
                done: Future[Answered] = Future()
                done.set_result(there[one])
                self._rounds[one], self._ends = done, there[one].ends
            elif (path := paths.get(one)) is not None:
                self._submit(one, path, self._made(one) * self.updates)
            else:
                self._give(one, number - 1)

    def _made(self, number: int) -> int:
        """Return the rounds that the weights which answer a round have behind them."""
        # By numbers alone, never by what happens to be ready: the same run gives the same rounds on a slow machine.
        return max(self._base, number - 1 - self.overlap)

    def _give(self, number: int, made: int) -> None:
        """Have a round answered by the present weights."""
        assert self._made(number) == made, (number, made, self._base)
        self._submit(number, *self.sampler.publish())

    def _submit(self, number: int, path: Path, version: int) -> None:
        # Rounds made up for after a restart are asked of older weights: those are not what in-flight engines are to take.
        if self._newest is None or version >= self._newest[1]:
            self._newest = path, version
        self._rounds[number] = self._thread.submit(self._collect, number, path, version)

    def _take_newest(self) -> dict[str, float]:
        """Have the engines take the newest weights, whatever they are at; on either thread. What it showed."""
        # Both threads get here: the learner's with new weights, the other one with its next round.
        with self._taking:
            assert self._newest is not None
            return self.sampler.take(*self._newest)

    def _collect(self, number: int, path: Path, version: int) -> Answered:
        """Answer a round; on the thread of its own."""
        loader = self.collector.loader
        # The thread's own count: rounds end at other positions than planned where prompts were taken in others' place.
        loader.seek(self._ends)
        restarts = self.sampler.engines.restarts
        metrics = self._take_newest() if self.in_flight else self.sampler.take(path, version)
        found = self.collector.collect(self.sampler.engines, number, version)
        metrics["engine_restarts"] = float(self.sampler.engines.restarts - restarts)
        answered = Answered(found, self._ends, loader.position, metrics)
        self._ends = loader.position
        self.kept.write(number, version, answered)
        return answered


def require_going_on(agree: Agree, collector: Collector) -> None:
    """Raise Stopped on all ranks together where one of them is to end: engines may still be at held-out answers given up."""
    if agree(int(collector.stop())):
        raise Stopped


def _is_whole(future: Future[Answered]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def largest_of(ranks: Ranks, *, apart: bool = False) -> Agree:
    """Return what gives the largest of all ranks' numbers to each; all ranks call this together.

    Args:
        ranks: that agree.
        apart: for a thread beside the one that trains: in a group of its own, whose messages meet no others.
    """
    if ranks.world == 1:
        return lambda mine: mine
    group = dist.new_group(backend="gloo", timeout=RANKS_TIMEOUT) if apart else ranks.control

    def largest(mine: int) -> int:
        number = torch.tensor(mine)
        dist.all_reduce(number, dist.ReduceOp.MAX, group=group)
        return int(number)

    return largest
