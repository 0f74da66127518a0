"""Steps begun before the tokens of those before are known on the host: a GPU goes on while readers are told of these."""

from __future__ import annotations

import torch
from torch import Tensor

from .decoder import Decoder, DrawingDecoder, put
from .protocol import Stats
from .running import Flight, Running
from .telling import Teller, chosen, log_probabilities

SOONER = 4
"""Steps begun at a time while others wait for a slot."""


class StepsAhead:
    """The steps in flight of a decoder whose `step` waits for nothing; on the generator's thread.

    Args:
        decoder: takes the steps, and draws by itself if it can.
        teller: takes the tokens that have landed.
        stats: counters, which grow.
    """

    def __init__(self, decoder: Decoder, teller: Teller, stats: Stats) -> None:
        self._decoder, self._drawing = decoder, decoder if isinstance(decoder, DrawingDecoder) else None
        self._teller, self._stats = teller, stats
        self._flight: Flight | None = None

    def begin(self, ready: list[Running], *, waited_for: bool) -> bool:
        """Begin steps with the tokens of those before where they lie, and only then look at those; return whether some landed.

        Whether a sequence has had its last token is known ahead by its length; one that has said its last word goes some steps
        too far, and what comes of that is dropped. What a step raises leaves the steps before in flight.

        Args:
            ready: sequences to go on with, none of which is asked for log-probabilities of others.
            waited_for: others wait for a slot.
        """
        flight = self._flight
        # By identity: two jobs may be equal in everything.
        before = {} if flight is None else {id(s): i for i, s in enumerate(flight.sequences)}
        # Tokens that a sequence will have said when the flight has landed, though nobody has seen them yet.
        drawn = {id(s): len(s.ticket.tokens) + (flight.steps if flight is not None and id(s) in before else 0) for s in ready}
        going = [s for s in ready if not s.ends(drawn[id(s)])]
        if not going:
            return self.land()
        # Several at once where nobody looks at tokens in between: of a small model a step takes less than a return to the host.
        begun, steps = None, self._steps(going, drawn, waited_for)
        newest, places = self._newest(going, before), [drawn[id(s)] for s in going]
        # Tokens that the decoder draws never come to the host between two steps; else one step is begun, and its tokens chosen.
        if steps and self._drawing is not None:
            begun = _drawn(self._drawing, going, newest, places, steps)
        else:
            logits = self._decoder.step([s.slot for s in going], newest)
        self._stats.steps += max(1, steps)
        if begun is None:
            try:
                begun = self._chosen(logits, going, places)
            except Exception:  # the cache has grown, so these logits are all that there is
                landed = self.land()
                self._teller.take(logits, going)
                return landed
        landed = self.land()
        self._flight = begun
        return landed

    def land(self) -> bool:
        """Take the tokens of the steps in flight; return whether there were any. Never raises."""
        flight, self._flight = self._flight, None
        if flight is not None:
            self._teller.land(flight)
        return flight is not None

    def forget(self) -> None:
        """Drop the steps in flight: the cache that they belong to is gone."""
        self._flight = None

    def _steps(self, going: list[Running], drawn: dict[int, int], waited_for: bool) -> int:
        """Return how many steps the decoder can take by itself: some where all tokens are drawn alike and nobody waits for one.

        Those that wait for a slot get it when such a flight has landed, so that it is short then.
        """
        if self._drawing is None or not all(s.plain for s in going):
            return 0
        most = min(self._drawing.draws, SOONER) if waited_for else self._drawing.draws
        return min(most, max(s.most - drawn[id(s)] for s in going))

    def _newest(self, going: list[Running], before: dict[int, int]) -> Tensor:
        """Return each sequence's newest token (N,), on the device; `before` has the place in flight of those that lie there."""
        flight = self._flight
        if (
            flight is not None
            and len(going) == len(flight.sequences)
            and all(before.get(id(s)) == i for i, s in enumerate(going))
        ):
            return flight.newest
        # Joined since the last flight: their newest tokens are on the host.
        new = [s.ticket.tokens[-1] for s in going if id(s) not in before]
        places = iter(range(len(before), len(before) + len(new)))
        at = [before[id(s)] if id(s) in before else next(places) for s in going]
        there = [put(new, self._decoder.device)]
        return torch.cat([flight.newest, *there] if flight is not None else there)[put(at, self._decoder.device)]

    def _chosen(self, logits: Tensor, going: list[Running], places: list[int]) -> Flight:
        """Choose the next tokens on the device."""
        jobs = [s.job for s in going]
        tokens = chosen(logits, jobs, [s.number(place) for s, place in zip(going, places, strict=True)])
        logs = log_probabilities(logits, tokens, jobs)[None] if any(job.draws for job in jobs) else None
        return Flight(going, tokens[None], logs)


def _drawn(decoder: DrawingDecoder, going: list[Running], newest: Tensor, places: list[int], steps: int) -> Flight:
    """Begin steps whose tokens the decoder draws; `places` are the tokens that sequences have said by then."""
    uniform = [[s.number(place + step) for s, place in zip(going, places, strict=True)] for step in range(steps)]
    tokens, logs = decoder.draw([s.slot for s in going], newest, [s.job.temperature for s in going], uniform)
    return Flight(going, tokens, logs if any(s.job.draws for s in going) else None)
