"""Seconds of collectives: within a node over its links, between nodes over the network, each with its own rate."""

from __future__ import annotations

import math
from dataclasses import dataclass

from windtunnel.recipe import Layout
from windtunnel.rig import Rig

from .constants import HFConstants
from .memory import gradient_bytes
from .totals import Totals


@dataclass(frozen=True)
class Exchange:
    """Seconds of communication by kind, of one step; and how many of them can hide behind computation."""

    terms: dict[str, float]
    hideable: float


def ring_seconds(size: float, ranks: int, stride: int, rig: Rig, c: HFConstants) -> float:
    """Gathering (or reduce-scattering) `size` bytes in all over `ranks` ranks that stand `stride` apart.

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


def sharded_exchange(sums: Totals, layout: Layout, rig: Rig, c: HFConstants) -> Exchange:
    """FSDP2: weights are gathered for each pass, gradients reduced after each backward pass."""
    if layout.ranks == 1:
        return Exchange({}, 0.0)
    reduce = gradient_bytes(sums.work) * sums.trained
    if layout.shard == "none":
        both = 2 * ring_seconds(reduce, layout.data, 1, rig, c) * layout.accumulation
        return Exchange({"communication": both}, both)
    copies = 2.0 * sums.trained + sums.frozen
    passes = layout.accumulation * 2 if layout.shard == "full" else 1
    gathered = ring_seconds(copies, layout.data, 1, rig, c) * passes
    reduced = ring_seconds(reduce, layout.data, 1, rig, c) * layout.accumulation
    # The first block's weights and the last gradients have nothing to hide behind.
    alone = (ring_seconds(2.0 * sums.work.root_parameters, layout.data, 1, rig, c)) * (2 if reduce else 1)
    return Exchange({"communication": gathered + reduced}, max(0.0, gathered + reduced - alone))
