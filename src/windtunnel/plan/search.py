"""The layout search, for all that trains: the layout that finishes first, and so for the fewest dollars, of those that fit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from windtunnel.recipe import OWN_ENGINE, Layout
from windtunnel.rig import Rig

from .constants import Constants
from .memory import Memory
from .steptime import StepTime

# Layouts this close to the fastest count as equal.
SAME_SPEED = 1.01
# The package's own engine is kept unless another is faster by more than this.
OTHER_ENGINE_FASTER = 1.5
# A layout that fits by the stated error too is taken where it costs no more than this.
ROOM_PRICE = 1.05
RANKED = 8


# Says of a layout whether those of its kind are to be computed.
Promising = Callable[[Layout], bool]


class Trainable(Protocol):
    """What is trained, as the search sees it: its layouts, and what each of them needs and takes."""

    @property
    def c(self) -> Constants:
        """Of the device that it is planned for."""

    @property
    def step_tokens(self) -> int | None:
        """Tokens of a step where those that a layout adds are padding; None: all of a layout's tokens are trained on."""

    @property
    def preferred_first(self) -> bool:
        """Whether the first of equally fast layouts is taken; else the one that needs least memory, with room to spare."""

    def layouts(self, rig: Rig, ranks: int, promising: Promising) -> Iterator[Layout]:
        """Yield every layout worth computing. Raises UserError: the recipe's choice contradicts itself, the model or the rig.

        Those that differ by micro-batch and recomputation alone are of one kind: where there are many kinds, `promising` is asked
        of a layout of each, and those that it turns down are left out.
        """

    def least_gib(self, layout: Layout) -> float:
        """Return the GiB of a rank that no layout of this one's kind needs less of; 0 where that is not known at once."""

    def memory(self, layout: Layout) -> Memory:
        """Return a rank's memory over a step."""

    def time(self, layout: Layout, rig: Rig) -> StepTime:
        """Return a step's seconds."""

    def host_gib(self, layout: Layout, rig: Rig) -> float:
        """Return the GiB of CPU memory that states take on a node."""

    def limit_gib(self, rig: Rig) -> float:
        """Return the GiB that one rank may use."""


@dataclass(frozen=True)
class Candidate:
    """One layout with its memory, its step time (None where it does not fit) and what a rank may use.

    `step_tokens`: see Trainable.
    """

    layout: Layout
    memory: Memory
    time: StepTime | None
    limit_gib: float
    host_gib: float = 0.0
    host_limit_gib: float = 0.0
    step_tokens: int | None = None

    @property
    def peak_gib(self) -> float:
        """The rank's peak."""
        return self.memory.peak_gib

    @property
    def fits(self) -> bool:
        """Whether the GPU's and the node's memory do."""
        return self.peak_gib <= self.limit_gib and self.host_gib <= self.host_limit_gib

    @property
    def timed(self) -> StepTime:
        """The step time of a layout that was chosen."""
        assert self.time is not None
        return self.time

    @property
    def token_seconds(self) -> float:
        """Seconds per token: layouts round the batch up by different numbers of sequences."""
        return self.timed.seconds / (self.step_tokens or self.layout.batch_tokens)


@dataclass(frozen=True)
class Found:
    """The chosen layout (the leanest where none fits), the best few that fit, fastest first, and all that were weighed."""

    best: Candidate
    ranked: tuple[Candidate, ...]
    tried: tuple[Candidate, ...]


def search(work: Trainable, rig: Rig, ranks: int, less_gib: float = 0.0) -> Found | None:
    """Choose among all layouts over `ranks` ranks; None where there is none.

    ranks: GPUs, or 1 on a CPU. less_gib: what others keep of a rank's memory.

    Raises:
        UserError: the recipe's layout contradicts itself, the model or the rig.
    """
    # What a CPU was measured at depends on what else it did. The choice must not: another layout has other last bits.
    nominal = rig if rig.gpu else replace(rig, cpu_gflops=None)
    weigh = _Weighing(work, nominal, ranks, work.limit_gib(rig) - less_gib, rig.ram_gib * work.c.cpu_usable_share)
    tried = weigh.all()
    if not tried:
        return None
    fitting = [candidate for candidate in tried if candidate.fits]
    ranked = sorted(fitting, key=lambda candidate: candidate.token_seconds)
    if not fitting:
        best = min(tried, key=lambda candidate: candidate.peak_gib)
    elif work.preferred_first:
        pool = _with_room(fitting, 1 + work.c.memory_error)
        fastest = min(c.token_seconds for c in pool)
        best = next(c for c in pool if c.token_seconds <= SAME_SPEED * fastest)
    else:
        best = _leanest_of_the_fast(ranked, 1 + work.c.memory_error)
    if best.time is None or nominal is not rig:
        best = replace(best, time=work.time(best.layout, rig))
    return Found(best, tuple(ranked[:RANKED]), tuple(tried))


class _Weighing:
    """All layouts that may fit with their memory and time; where none does, those that may need least."""

    def __init__(self, work: Trainable, rig: Rig, ranks: int, limit_gib: float, host_limit_gib: float) -> None:
        self.work, self.rig, self.ranks = work, rig, ranks
        self.limit, self.host_limit = limit_gib, host_limit_gib
        self.least: dict[Layout, float] = {}
        self.too_large: dict[tuple[object, ...], int] = {}

    def all(self) -> list[Candidate]:
        """Weigh every kind that could fit by what it needs at least; if none fits, the kinds that could be the leanest."""
        tried = self._weigh(lambda layout: self._least(layout) <= self.limit)
        # Where none fits, the leanest layout is told, for which most kinds need not be looked at either.
        down = [gib for gib in self.least.values() if gib > self.limit]
        if any(candidate.fits for candidate in tried) or not down:
            return tried
        nearest = min(down)
        # One of the nearest kind says what the leanest layout needs at most: kinds beyond that are none of it.
        tried += self._weigh(lambda layout: self._least(layout) == nearest)
        most = min(candidate.peak_gib for candidate in tried)
        return tried + self._weigh(lambda layout: self.limit < self._least(layout) != nearest and self._least(layout) <= most)

    def _least(self, layout: Layout) -> float:
        if layout not in self.least:
            self.least[layout] = self.work.least_gib(layout)
        return self.least[layout]

    def _weigh(self, promising: Promising) -> list[Candidate]:
        found = []
        for layout in self.work.layouts(self.rig, self.ranks, promising):
            # Larger micro-batches of a layout that does not fit need more.
            kind = (layout.shard, layout.tensor, layout.expert, layout.pipeline, layout.recompute, layout.recorded)
            if layout.micro_batch >= self.too_large.get(kind, sys.maxsize):
                continue
            host = self.work.host_gib(layout, self.rig)
            memory = self.work.memory(layout)
            candidate = Candidate(layout, memory, None, self.limit, host, self.host_limit, self.work.step_tokens)
            if candidate.fits:
                candidate = replace(candidate, time=self.work.time(layout, self.rig))
            else:
                self.too_large[kind] = layout.micro_batch
            found.append(candidate)
        return found


def _leanest_of_the_fast(ranked: list[Candidate], error: float) -> Candidate:
    """Return the leanest of those about as fast as the fastest, with room to spare where that costs little.

    Recorded ones come first where they were not demanded but pay: how slowly a host launches is known least of all.
    """
    # What this package runs was measured, and another engine's figures are arithmetic: it has to promise much more.
    own = [candidate for candidate in ranked if candidate.layout.engine == OWN_ENGINE]
    pool = own if own and own[0].token_seconds <= OTHER_ENGINE_FASTER * ranked[0].token_seconds else ranked
    pool = _with_room(pool, error)
    fastest = min(c.token_seconds for c in pool)
    return min((c for c in pool if c.token_seconds <= SAME_SPEED * fastest), key=lambda c: (not c.layout.recorded, c.peak_gib))


def _with_room(candidates: list[Candidate], error: float) -> list[Candidate]:
    """Return, in their order, those that fit by the stated error (1.2: 20 %) too, where that costs little; else all of them."""
    # A plan that is wrong by its own stated error ends in an out-of-memory after minutes of paid time.
    roomy = [c for c in candidates if c.peak_gib * error <= c.limit_gib]
    fastest = min(c.token_seconds for c in candidates)
    return roomy if roomy and min(c.token_seconds for c in roomy) <= ROOM_PRICE * fastest else candidates
