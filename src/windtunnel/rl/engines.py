"""A rank's engines as one generator: each in a process of its own, started again when it dies, its answers asked again."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from windtunnel.generate import Completion, GenerationFailed, GenerationJob, Notify, Piece, Stats, TextCodec, TextStream, Ticket
from windtunnel.recipe import UserError

from .engine import NOTHING, Receipt
from .engine_process import Answered, RemoteEngine, Told
from .errors import BrokenSnapshot, DifferentScores, EngineFailed, EngineSilent, StaleWeights
from .link import Link, Send
from .patience import told_while
from .sync import Offer

log = logging.getLogger(__name__)

RESTARTS = 3
"""Times in a row that an engine may die without having brought anything in between."""


Start = Callable[[int, Told, Callable[[str], None]], RemoteEngine]
"""Starts the engine of a number, which is not waited for; told of its answers, and of its end. See `EngineProcess`."""


@dataclass
class _Place:
    """An engine's place, whoever holds it.

    Attributes:
        lives: processes that held it so far; the last one holds it, unless it is None.
        deaths: since one brought an answer.
        worked: whether one of them has ever taken weights.
        asked: of the batch under way, in the order in which it was asked.
    """

    number: int
    process: RemoteEngine | None = None
    lives: int = 0
    deaths: int = 0
    worked: bool = False
    asked: dict[int, Ticket] = field(default_factory=dict)

    @property
    def open(self) -> list[int]:
        """Return the numbers of the jobs without an answer."""
        return [number for number, ticket in self.asked.items() if not ticket.over]


class Engines:
    """Several engines as a `windtunnel.generate.Generator`: jobs are shared out in the order in which they are asked.

    An engine that dies, or hangs and is ended, is started again, takes the same weights, and is asked again what it had not
    answered. Jobs carry their seeds, so that the answers are the same ones.

    Args:
        count: of engines.
        start: starts one.
        text: of the answers.
        tokens: most of a sequence.
        slots: sequences that each decodes together.
        exact: what a job gives depends on the jobs beside it in the last bits of its log-probabilities, and on nothing else: a
            dead engine is then asked again all of its share, and gives the very same bits.
        in_flight: weights may be taken while answers are under way, which go on with them.
        say: told what happened to engines, and for which is waited.
        heard: returns what an engine of a number last printed.
    """

    def __init__(
        self, count: int, start: Start, text: TextCodec, *, tokens: int, slots: int, exact: bool, in_flight: bool = False,
        say: Callable[[str], None] = log.warning, heard: Callable[[int], str] = lambda number: "",
    ) -> None:  # fmt: skip
        self.text, self.context, self.vocab, self.slots = text, tokens, text.vocab, slots * count
        self.weights_version, self.restarts, self.stats = NOTHING, 0, Stats()
        self._start, self._exact, self._in_flight, self._say, self._heard = start, exact, in_flight, say, heard
        self._lock, self._numbers = threading.Lock(), itertools.count()
        self._places = [_Place(number) for number in range(count)]
        # Has an engine that starts again take the present version, by the same way as the others took it.
        self._again: Callable[[RemoteEngine], Receipt] | None = None
        self._failure: UserError | None = None
        self._closed = False
        for place in self._places:
            self._begin(place)

    @property
    def alive(self) -> bool:
        """Return whether it can be expected to answer."""
        return not self._closed and self._failure is None

    @property
    def waiting(self) -> int:
        """Return how many sequences have no slot yet."""
        return max(0, sum(len(place.open) for place in self._places) - self.slots)

    @property
    def running(self) -> int:
        """Return how many sequences are in slots."""
        return min(self.slots, sum(len(place.open) for place in self._places))

    def take(self, path: Path, version: int) -> list[Receipt]:
        """Have every engine take a version of the weights; each one's receipt. Unless `in_flight` nothing may be under way.

        Raises:
            UserError: an engine refuses the weights, or does not live long enough to take them.
        """
        assert self._in_flight or not any(place.open for place in self._places)
        self._again, self.weights_version = lambda process: process.load(path, version), version
        # Together: each reads as much as the others, and none waits for another.
        with ThreadPoolExecutor(len(self._places)) as pool:
            found = pool.map(lambda place: self._take_on(place) if place.open else self._load(place), self._places)
            return [receipt for receipt in found if receipt is not None]

    def receive(self, link: Link, offer: Offer, send: Send) -> list[Receipt]:
        """Have every engine receive a version of the weights; each one's receipt. Nothing may be under way.

        Args:
            link: to these engines.
            offer: what is sent.
            send: see `Link.give`; it is called once, also where no engine lives.

        Raises:
            UserError: an engine refuses the weights, or does not live long enough to take them.
        """
        assert not any(place.open for place in self._places)
        self._again, self.weights_version = lambda process: link.again(offer, process), offer.version
        for place in self._places:
            if place.process is None:
                self._begin(place)
        there = [place.process for place in self._places if place.process is not None]
        with told_while(f"engines start, or take version {offer.version} of the weights", self._say, lambda: self._heard(0)):
            found = link.give(offer, there if len(there) == len(self._places) else [], send)
        # Nothing was sent to anybody where one was missing: all have to take the version alone.
        found += [EngineFailed("the engine's process ended as it began")] * (len(self._places) - len(found))
        return [self._received(place, one) for place, one in zip(self._places, found, strict=True)]

    def submit(
        self, jobs: Sequence[GenerationJob], notify: Notify | None = None, *, stream: bool = True, bounded: bool = True
    ) -> list[Ticket]:
        """Share jobs out over the engines. See `Generator`; answers come whole, and nothing limits their number."""
        if not self.alive:
            raise GenerationFailed(self._failure.message if self._failure else "the engines are closed")
        tickets = [Ticket(job, notify, False, TextStream(self.text, job.stop, job.include_stop)) for job in jobs]
        numbered = list(zip((next(self._numbers) for _ in tickets), tickets, strict=False))
        # Which engine answers what depends on the order alone, never on which of them is free first.
        share = -(-len(jobs) // len(self._places))
        for place in self._places:
            mine = dict(numbered[place.number * share : (place.number + 1) * share])
            if mine:
                self._ask(place, mine)
        return tickets

    def generate(self, jobs: Sequence[GenerationJob]) -> list[Completion]:
        """Run jobs to their ends, however many. See `Generator`."""
        return [ticket.result() for ticket in self.submit(jobs)]

    def require_well(self) -> None:
        """Raise the UserError that made answers impossible, if there is one."""
        if self._failure is not None:
            raise self._failure

    def drop(self) -> None:
        """Give up what is under way; engines that were at something are ended, and start again when they are needed."""
        for place in self._places:
            with self._lock:
                left = [place.asked[number] for number in place.open]
                process, place.process = (place.process, None) if left else (None, place.process)
                # What the old process still says is of a life that is over, and is not listened to.
                place.lives += bool(left)
            if process is not None:
                process.close()
            for ticket in left:
                _finish(ticket, GenerationFailed("it was given up"))

    def close(self) -> None:
        """End the engines; whoever still waits is told."""
        with self._lock:
            self._closed = True
            processes = [place.process for place in self._places if place.process is not None]
            left = [place.asked[number] for place in self._places for number in place.open]
        for process in processes:
            process.close()
        for ticket in left:
            _finish(ticket, GenerationFailed("the engines are closed"))

    def _ask(self, place: _Place, tickets: dict[int, Ticket]) -> None:
        with self._lock:
            # The batch before is whole, so that a dead engine need not be asked any of it again.
            if not place.open:
                place.asked.clear()
            place.asked |= tickets
            process = place.process
        if process is not None:
            # Outside the lock: an engine may answer at once, on the thread that takes it too.
            process.submit([(number, ticket.job) for number, ticket in tickets.items()])
        else:
            threading.Thread(target=self._refill, args=(place,), name=f"engine-{place.number}-again", daemon=True).start()

    def _begin(self, place: _Place) -> None:
        """Start a process for a place; the old one is gone."""
        with self._lock:
            place.lives += 1
            # The number goes into the callback: news of a process that was replaced must not end its successor.
            life, old = place.lives, place.process
            place.process = None
        if old is not None:
            old.close()
        process = self._start(
            place.number, lambda number, answer: self._answered(place, number, answer), lambda why: self._ended(place, life, why)
        )
        with self._lock:
            place.process = process

    def _load(self, place: _Place) -> Receipt:
        """Have one engine take the present version, in a new process if need be."""
        assert self._again is not None
        while True:
            if place.process is None:
                self._begin(place)
            process = place.process
            try:
                if process is None:
                    raise EngineFailed("the engine's process ended as it began")
                what = f"engine {place.number} starts, or takes version {self.weights_version} of the weights"
                with told_while(what, self._say, lambda: self._heard(place.number)):
                    receipt = self._again(process)
                place.worked = True
                return receipt
            except EngineFailed as error:
                self._require_begun(place, error)
                with self._lock:
                    place.deaths += 1
                    given_up = place.deaths > RESTARTS
                if given_up:
                    raise self._gone(place, str(error)) from None
                self._tell(place, str(error))
                self._begin(place)
            # Starting again would load the same files: they are refused for good.
            except (BrokenSnapshot, StaleWeights) as error:
                raise self._refused(place, error) from None

    def _take_on(self, place: _Place) -> Receipt | None:
        """Have an engine take the present version in the middle of its answers; None: it died, and starts again with it."""
        assert self._again is not None
        process = place.process
        try:
            return None if process is None else self._again(process)
        except EngineFailed:
            return None
        except (BrokenSnapshot, StaleWeights) as error:
            raise self._refused(place, error) from None

    def _received(self, place: _Place, found: Receipt | Exception) -> Receipt:
        """Return an engine's receipt; where it failed, or others did, that of another try alone."""
        if isinstance(found, Receipt):
            place.worked = True
            return found
        if isinstance(found, (BrokenSnapshot, StaleWeights)):
            raise self._refused(place, found)
        if not isinstance(found, EngineFailed):
            raise found
        self._require_begun(place, found)
        return self._load(place)

    def _require_begun(self, place: _Place, error: EngineFailed) -> None:
        """Raise a UserError where an engine's first start took all its time: the next one would take as long."""
        if isinstance(error, EngineSilent) and not place.worked:
            heard = self._heard(place.number)
            raise UserError(
                f"engine {place.number} never started: {error}{f'; the last that it printed: {heard}' if heard else ''}",
                "see `windtunnel logs RUN --which engine`; raise stages.rl.engine_seconds where it was only slow",
            ) from None

    def _answered(self, place: _Place, number: int, answer: Answered | str) -> None:
        """Pass an answer on; from the thread that listens to the engine."""
        ticket = place.asked.get(number)
        if ticket is None or ticket.over:
            return  # asked again for the sake of those beside it
        # It lives and works: deaths that are counted are those in a row.
        place.deaths = 0
        if isinstance(answer, str):
            self.stats.failed += 1
            _finish(ticket, GenerationFailed(answer))
            return
        given = self.weights_version
        # Newer than given cannot be. Older may be only where weights are taken in the middle of an answer.
        wrong = next((v for v in answer.versions if v > given or (v < given and not self._in_flight)), None)
        if wrong is not None:
            why = f"engine {place.number} answered by version {wrong} of the weights, it was given {given}"
            self._fail(UserError(why, "this must not happen: please report it with the run's folder"))
            return
        ticket.tokens, ticket.drawn, ticket.versions = list(answer.tokens), list(answer.drawn), list(answer.versions)
        self.stats.finished += 1
        self.stats.completion_tokens += len(answer.tokens)
        _finish(ticket, Piece("", (), answer.finish))

    def _ended(self, place: _Place, life: int, why: str) -> None:
        """Have answers that an engine left outstanding asked again; from the thread that listened to it."""
        with self._lock:
            if self._closed or place.lives != life or not place.open:
                return  # who needs it next starts another
            place.deaths += 1
            given_up = place.deaths > RESTARTS
        if given_up:
            self._fail(self._gone(place, why))
            return
        self._tell(place, why)
        self._begin(place)
        self._refill(place)

    def _refill(self, place: _Place) -> None:
        try:
            self._load(place)
        except UserError as error:
            self._fail(error)
            return
        with self._lock:
            # The same jobs beside each other give the same bits; an engine that promises none is asked only for what is
            # missing.
            again = list(place.asked) if self._exact else place.open
            process = place.process
        if process is not None:
            process.submit([(number, place.asked[number].job) for number in again])

    def _tell(self, place: _Place, why: str) -> None:
        self.restarts += 1
        left = f", {len(place.open)} answers are asked again" if place.open else ""
        self._say(f"engine {place.number}: {why}; it is started again{left}")

    def _gone(self, place: _Place, why: str) -> UserError:
        return UserError(
            f"engine {place.number} died {RESTARTS + 1} times in a row: {why}",
            "see what it said (windtunnel logs RUN --which engine) and look at free memory; raise stages.rl.engine_seconds "
            "where it was only slow; --set stages.rl.sync=disk where it is weights that it cannot receive",
        )

    def _refused(self, place: _Place, error: Exception) -> UserError:
        fix = "look at the disk that the run's folder is on; `windtunnel check` proves this way (docs/weight-sync.md)"
        if isinstance(error, DifferentScores):
            fix = (
                "the same weights give another model there: --set stages.rl.engine=transformers samples as the learner computes; "
                "`windtunnel check` compares the two (docs/weight-sync.md)"
            )
        return UserError(f"engine {place.number} refuses version {self.weights_version} of the weights: {error}", fix)

    def _fail(self, error: UserError) -> None:
        """Give up: all who wait are told, and `require_well` says why."""
        self._failure = self._failure or error
        for place in self._places:
            for number in place.open:
                _finish(place.asked[number], GenerationFailed(error.message))


def _finish(ticket: Ticket, piece: Piece | GenerationFailed) -> None:
    ticket.add(piece)
    ticket.tell()
