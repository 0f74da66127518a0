"""From traces of a model with few blocks to the model with all of them: every phase grows by the same with each block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .trace_ledger import Peak
from .trace_watch import backward_phase, forward_phase

LONGEST_PREFIX, LONGEST_PERIOD = 8, 8


@dataclass(frozen=True)
class Depths:
    """Which depths to trace for a model of `whole` blocks.

    The first `head` blocks and the last `tail` of every depth are of the same kinds; small == large == whole
    where only the whole model will do.
    """

    small: int
    large: int
    whole: int
    head: int
    tail: int


def choose_depths(blocks: Sequence[Any]) -> Depths:
    """Return depths at which the same blocks stand first and last as in the whole model, whose blocks come back in turn."""
    whole = len(blocks)
    for period in range(1, LONGEST_PERIOD + 1):
        for prefix in range(LONGEST_PREFIX + 1):
            rest = blocks[prefix:]
            if all(a == b for a, b in zip(rest, rest[period:], strict=False)):
                # Two at the end: buffers of one block's gradients still live while the next one is at work.
                head, tail = prefix + period, max(2, period)
                small = head + tail + (whole - head - tail) % period
                large = small + period * -(-2 // period)
                if large < whole:
                    return Depths(small, large, whole, head, tail)
                return Depths(whole, whole, whole, whole, 0)
    return Depths(whole, whole, whole, whole, 0)


def cut(config: dict[str, Any], layers: int) -> dict[str, Any]:
    """Return a config.json with its first `layers` layers only."""
    inner = config.get("text_config")
    if isinstance(inner, dict) and "num_hidden_layers" in inner:
        return {**config, "text_config": cut(inner, layers)}
    key = next(name for name in ("num_hidden_layers", "n_layer", "num_layers") if name in config)
    before = config[key]
    short = {
        k: v[:layers] if isinstance(v, list) and k.startswith("layer") and len(v) == before else v for k, v in config.items()
    }
    return {**short, key: layers}


def extrapolate(small: Sequence[Peak], large: Sequence[Peak], depths: Depths) -> list[Peak]:
    """Return the whole model's phases: each kind's bytes on the line through two depths. Blocks in the middle are left out."""
    share = (depths.whole - depths.small) / (depths.large - depths.small)
    at_small, at_large = ({peak.phase: peak.bytes for peak in peaks} for peaks in (small, large))
    found = []
    for name, short, long in _aligned(list(at_large), depths):
        if short not in at_small or long not in at_large:
            continue
        kinds = [*at_small[short], *(kind for kind in at_large[long] if kind not in at_small[short])]
        values = {kind: (at_small[short].get(kind, 0), at_large[long].get(kind, 0)) for kind in kinds}
        found.append(Peak(name, {kind: max(0, round(a + (b - a) * share)) for kind, (a, b) in values.items()}))
    return found


def _aligned(phases: Sequence[str], depths: Depths) -> list[tuple[str, str, str]]:
    """Return (name in the whole model, in the small one, in the large one) of what is common to all."""
    numbers = [(i, i, i) for i in range(depths.head)]
    numbers += [(depths.whole - i, depths.small - i, depths.large - i) for i in range(depths.tail, 0, -1)]
    blocks = {
        phase(long): (phase(whole), phase(short)) for phase in (forward_phase, backward_phase) for whole, short, long in numbers
    }
    every = {phase(i) for phase in (forward_phase, backward_phase) for i in range(depths.large)}
    return [(*blocks.get(phase, (phase, phase)), phase) for phase in phases if phase in blocks or phase not in every]
