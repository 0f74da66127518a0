"""Seconds of one optimizer step, whatever trains: terms, what hides behind what, and what bounds it.

An engine says what a step's work would take alone (`Work`); how the parts come together is the same for all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from windtunnel.rig import Rig

from .constants import Constants

LAUNCHES = "kernel launches"
# Of the links at which it was measured how much collectives slow computation down.
FAST_LINK_GBS = 450.0


@dataclass(frozen=True)
class Seconds:
    """Seconds by what they go to, of a forward and of a backward pass (with what is computed again)."""

    products: tuple[float, float] = (0.0, 0.0)
    attention: tuple[float, float] = (0.0, 0.0)
    traffic: tuple[float, float] = (0.0, 0.0)

    @property
    def forward(self) -> float:
        """Of a forward pass."""
        return self.products[0] + self.attention[0] + self.traffic[0]

    @property
    def backward(self) -> float:
        """Of a backward pass."""
        return self.products[1] + self.attention[1] + self.traffic[1]

    def scaled(self, factor: float) -> Seconds:
        """Return all of them times a factor."""
        products, attention, traffic = self.products, self.attention, self.traffic
        return Seconds(
            (factor * products[0], factor * products[1]),
            (factor * attention[0], factor * attention[1]),
            (factor * traffic[0], factor * traffic[1]),
        )

    def __add__(self, other: Seconds) -> Seconds:
        """Return the sums."""
        return Seconds(
            (self.products[0] + other.products[0], self.products[1] + other.products[1]),
            (self.attention[0] + other.attention[0], self.attention[1] + other.attention[1]),
            (self.traffic[0] + other.traffic[0], self.traffic[1] + other.traffic[1]),
        )


@dataclass(frozen=True)
class Exchange:
    """Seconds of communication by kind, of one step; and how many of them can hide behind computation.

    Attributes:
        busy: most seconds of what hides in which it takes memory bandwidth from computation: its bytes over fast links.
            What crawls over slow ones takes no more bandwidth for it. None: all of them.
    """

    terms: dict[str, float]
    hideable: float
    busy: float | None = None


ALONE = Exchange({}, 0.0)


@dataclass(frozen=True)
class Work:
    """What one step takes on a rank before anything overlaps.

    Attributes:
        passes: all forward and backward passes of the step. copies: seconds of copying weights and gradients beside them.
        update: the optimizer's. exchange: communication.
        under: seconds that communication can hide behind; None: a share of the passes (Constants.overlap).
        slowdown: seconds that computation loses for each second that communication hides behind it.
        host: what the host needs to launch the passes; what is beyond their own seconds is waited for.
        host_step: the same of the whole step. launches: seconds of launching that nothing hides (a CPU's).
        bubble: seconds that pipeline stages wait, as a share of the passes.
        peak_flops: of the device, per second. validation: cost of a token that is only scored, relative to a plain GPT's.
    """

    passes: Seconds
    update: float
    peak_flops: float
    copies: float = 0.0
    exchange: Exchange = ALONE
    under: float | None = None
    slowdown: float = 0.0
    host: float = 0.0
    host_step: float = 0.0
    launches: float = 0.0
    bubble: float = 0.0
    validation: float = 1.0


@dataclass(frozen=True)
class StepTime:
    """One step: terms before overlap, what overlaps, and the seconds of its phases as they pass."""

    seconds: float
    terms: dict[str, float]
    hidden: float
    forward: float
    backward: float
    update: float
    peak_flops: float
    validation: float = 1.0

    @property
    def bound(self) -> str:
        """The term that most of the step goes to."""
        return max(self.terms, key=lambda name: self.terms[name])


def step_time(work: Work, c: Constants) -> StepTime:
    """Put a step together: passes, exchange and update, less what hides, and not before the host has launched it."""
    both = work.passes
    passes = both.forward + both.backward + work.copies
    terms = {
        "matrix products": sum(both.products),
        "attention": sum(both.attention),
        "memory bandwidth": sum(both.traffic) + work.copies,
        "optimizer": work.update,
        **{name: value for name, value in work.exchange.terms.items() if value > 0},
    }
    if work.launches:
        terms[LAUNCHES] = work.launches
    # The GPU runs ahead of no host: where launching takes longer than computing, the rest of it is waited for. A step as a whole
    # has the same bound, since communication that hides is launched by the same host.
    if work.host > passes:
        terms[LAUNCHES] = work.host - passes
        passes = work.host
    bubble = work.bubble * passes
    if bubble:
        terms["pipeline bubble"] = bubble
    hidden = min(work.exchange.hideable, c.overlap * passes if work.under is None else work.under)
    busy = sum(terms.values()) - hidden
    slower = work.slowdown * (hidden if work.exchange.busy is None else min(hidden, work.exchange.busy))
    if slower:
        terms["memory bandwidth"] += slower
        busy += slower
    if work.host_step > busy:
        terms[LAUNCHES] = work.host_step
        busy, hidden = work.host_step, sum(terms.values()) - work.host_step
    factor, forward, rest = c.time_factor, both.forward / (both.forward + both.backward), busy - work.update
    return StepTime(
        seconds=factor * busy,
        terms={name: factor * value for name, value in terms.items()},
        hidden=factor * hidden,
        forward=factor * rest * forward,
        backward=factor * rest * (1 - forward),
        update=factor * work.update,
        peak_flops=work.peak_flops,
        validation=work.validation,
    )


def wide(narrow: float, rows: float, c: Constants) -> float:
    """Return the share of the large products' rate, in (0, 1), that products of this width and this many rows reach."""
    return narrow / (narrow + c.half_dim) * rows / (rows + c.half_tokens)


def ring_seconds(size: float, ranks: int, stride: int, rig: Rig, c: Constants) -> float:
    """Return the seconds of gathering (or reduce-scattering) `size` bytes in all over `ranks` ranks that stand `stride` apart.

    The part within nodes goes over their links. The part between nodes shares each node's network among the rings
    that cross it, one for each of its GPUs that belongs to another ring.
    """
    if ranks == 1 or size <= 0:
        return 0.0
    inside = min(ranks, max(1, rig.gpus_per_node // stride))
    nodes = math.ceil(ranks / inside)
    seconds = 0.0
    if inside > 1:
        seconds += size * (inside - 1) / inside / (rig.link_gbs * 1e9 * c.link_efficiency)
    if nodes > 1:
        rings = rig.gpus_per_node / inside
        slowed = 1 + c.straggle * math.log2(nodes)
        between = size * (nodes - 1) / nodes * rings / (rig.network_gbs * 1e9 * c.network_efficiency) * slowed
        # NCCL pipelines both: the slower one sets the pace.
        seconds = max(seconds, between)
    return seconds
