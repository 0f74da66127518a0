"""The layout search: the layout that finishes first, and so for the fewest dollars, among those that fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from windtunnel.recipe import MEGATRON, OWN_ENGINE, Layout, UserError
from windtunnel.rig import Rig

from .constants import HFConstants
from .layouts import NOT_OURS, check_choice, layouts
from .ledger import Memory
from .megatron import host_gib, megatron_memory
from .memory import memory
from .steptime import StepSeconds, step_seconds
from .totals import Totals

# Layouts this close to the fastest count as equal: the one that needs least memory wins.
SAME_SPEED = 1.01
# The package's own engine is kept unless Megatron-Bridge is faster by more than this.
WORTH_ANOTHER_ENGINE = 1.5
# A layout with room to spare is taken where it costs no more than this.
WORTH_ROOM = 1.05
ROOMY = 0.94  # share of the limit
RANKED = 8


@dataclass(frozen=True)
class Candidate:
    """One layout with its memory, its step time (None where it does not fit) and what a rank may use."""

    layout: Layout
    memory: Memory
    time: StepSeconds | None
    limit_gib: float
    host_gib: float
    host_limit_gib: float

    @property
    def peak_gib(self) -> float:
        """The rank's peak."""
        return self.memory.peak_gib

    @property
    def fits(self) -> bool:
        """Whether the GPU's and the node's memory do."""
        return self.peak_gib <= self.limit_gib and self.host_gib <= self.host_limit_gib


@dataclass(frozen=True)
class Found:
    """The chosen layout (the one that needs least memory where none fits), and the best few that fit, fastest first."""

    best: Candidate
    ranked: tuple[Candidate, ...]


def gpu_limit(rig: Rig, c: HFConstants) -> float:
    """GiB of a GPU that one rank may use."""
    assert rig.gpu is not None
    return rig.gpu.memory_gib * c.usable_share


def weigh(sums: Totals, layout: Layout, rig: Rig, c: HFConstants, limit_gib: float, timed: bool = False) -> Candidate:
    """A layout's memory, and its time where it fits or where it is asked for."""
    split = layout.engine == MEGATRON
    needs = (megatron_memory if split else memory)(sums, layout, c)
    host = host_gib(sums, layout, rig.gpus_per_node) if split else 0.0
    candidate = Candidate(layout, needs, None, limit_gib, host, rig.ram_gib * c.cpu_usable_share)
    if not candidate.fits and not timed:
        return candidate
    return Candidate(layout, needs, step_seconds(sums, layout, rig, c), limit_gib, host, candidate.host_limit_gib)


def search(
    sums: Totals,
    rig: Rig,
    c: HFConstants,
    ranks: int,
    limit_gib: float,
    allowed: Callable[[Layout], bool] = lambda layout: True,
) -> Found:
    """Choose among all layouts of `ranks` GPUs.

    Raises:
        UserError: the recipe's layout contradicts itself, the model or the rig.
    """
    check_choice(sums.work, rig, ranks)
    smallest: Candidate | None = None
    fitting: list[Candidate] = []
    too_large: set[tuple[object, ...]] = set()
    for layout in layouts(sums.work, rig, ranks):
        if not allowed(layout):
            continue
        # Larger micro-batches of a layout that does not fit need more.
        same = (layout.engine, layout.shard, layout.recompute, layout.tensor, layout.expert, layout.pipeline)
        if same in too_large:
            continue
        candidate = weigh(sums, layout, rig, c, limit_gib)
        if candidate.fits:
            fitting.append(candidate)
            continue
        too_large.add(same)
        if smallest is None or candidate.peak_gib < smallest.peak_gib:
            smallest = candidate
    if smallest is None and not fitting:
        keys = ", ".join(f"layout.{key}={value}" for key, value in sums.work.choice.model_dump().items() if value is not None)
        lacking = NOT_OURS.get(sums.work.shape.family)
        why = f"; the package's own engine has no {lacking}" if lacking else ""
        raise UserError(
            f"no engine runs {sums.work.shape.name} with {keys or 'any layout'} and {sums.work.stage}'s keys on {rig.name}{why}",
            "more GPUs, or leave layout's keys null and let the plan search",
        )
    if not fitting:
        assert smallest is not None
        return Found(weigh(sums, smallest.layout, rig, c, limit_gib, timed=True), ())
    ranked = sorted(fitting, key=_seconds)
    return Found(_best(ranked), tuple(ranked[:RANKED]))


def _best(ranked: list[Candidate]) -> Candidate:
    own = [candidate for candidate in ranked if candidate.layout.engine == OWN_ENGINE]
    pool = own if own and _seconds(own[0]) <= WORTH_ANOTHER_ENGINE * _seconds(ranked[0]) else ranked
    fastest = _seconds(pool[0])
    roomy = [c for c in pool if c.peak_gib <= ROOMY * c.limit_gib]
    if roomy and _seconds(roomy[0]) <= WORTH_ROOM * fastest:
        pool, fastest = roomy, _seconds(roomy[0])
    equal = [candidate for candidate in pool if _seconds(candidate) <= SAME_SPEED * fastest]
    return min(equal, key=lambda candidate: candidate.peak_gib)


def _seconds(candidate: Candidate) -> float:
    """Seconds per token: layouts round the batch up by different numbers of sequences."""
    assert candidate.time is not None
    return candidate.time.seconds / candidate.layout.batch_tokens
