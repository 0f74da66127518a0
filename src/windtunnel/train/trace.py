"""A second opinion on memory without a GPU: the real model and step on tensors without data."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from windtunnel.recipe import Layout, Recipe

from .trace_ledger import Peak
from .trace_watch import backward_phase, forward_phase

GIB = 2**30
LONGEST_PREFIX, LONGEST_PERIOD = 8, 8


@dataclass(frozen=True)
class TraceRequest:
    """What to trace.

    Attributes:
        recipe: its depth a number.
        layout: the plan's, as JSON.
        vocab: tokens of a GPT's vocabulary. config: the mapping of a config.json (Hugging Face models).
        blocks: a number for each of its blocks, first to last; those with equal numbers are alike.
        whole: trace all blocks, however many they are.
    """

    recipe: Recipe
    layout: dict[str, Any]
    vocab: int | None
    config: dict[str, Any] | None
    blocks: list[int]
    whole: bool = False


def run_trace(request: TraceRequest, say: Callable[[str], None]) -> dict[str, Any]:
    """Trace one optimizer step of one rank; changes global state, so it is for a process of its own.

    Returns:
        JSON values: `peak_gib` and its `peak_phase`; `phases`, each with its name and GiB by kind at its peak, in the
        step's order; `traced_blocks` at which depths, of `blocks`; `seconds`; `torch`, its version.

    Raises:
        UserError: this engine does not train such a recipe.
    """
    began = time.monotonic()
    layout = Layout.of_plan(request.layout)
    peaks, depths, blocks = _trace(request, layout, say)
    top = max(peaks, key=lambda peak: peak.total)
    phases = [{"name": peak.phase, "gib": {kind: size / GIB for kind, size in peak.bytes.items() if size}} for peak in peaks]
    return {
        "peak_gib": top.total / GIB, "peak_phase": top.phase, "phases": phases, "traced_blocks": depths, "blocks": blocks,
        "seconds": time.monotonic() - began, "torch": torch.__version__,
    }  # fmt: skip


def _trace(request: TraceRequest, layout: Layout, say: Callable[[str], None]) -> tuple[list[Peak], list[int], int]:
    from .trace_steps import trace_gpt, trace_hf

    if request.config is None:
        assert request.vocab is not None, "a GPT's trace needs its vocabulary"
        depth = request.recipe.gpt.depth
        assert depth != "auto"
        say("tracing all supervision steps" if request.recipe.supervision else f"tracing all {depth} blocks")
        return trace_gpt(request.recipe, layout, request.vocab), [depth], depth
    # Equal numbers mean equal blocks; where all differ, the whole model is traced.
    depths = choose_depths(range(len(request.blocks)) if request.whole else request.blocks)
    traced = []
    for count in sorted({depths.small, depths.large}):
        say(f"tracing {count} of {depths.whole} blocks" if count < depths.whole else f"tracing all {count} blocks")
        traced.append((count, trace_hf(request.recipe, layout, request.layout, cut(request.config, count))))
    counts = [count for count, _ in traced]
    # Two depths give a line; every block between the first and the last adds the same to each kind of memory.
    peaks = traced[0][1] if len(traced) == 1 else extrapolate(traced[0][1], traced[1][1], depths)
    return peaks, counts, depths.whole


# From traces of a model with few blocks to the model with all of them: every phase grows by the same with each block.


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
                # Where the model is hardly deeper than what would be traced there is nothing to gain.
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
