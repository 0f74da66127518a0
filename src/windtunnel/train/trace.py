"""A second opinion on memory without a GPU: the real model and step on tensors without data."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from windtunnel.recipe import Layout, Recipe

from .trace_depth import choose_depths, cut, extrapolate
from .trace_ledger import Peak

GIB = 2**30


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
    depths = choose_depths(range(len(request.blocks)) if request.whole else request.blocks)
    traced = []
    for count in sorted({depths.small, depths.large}):
        say(f"tracing {count} of {depths.whole} blocks" if count < depths.whole else f"tracing all {count} blocks")
        traced.append((count, trace_hf(request.recipe, layout, request.layout, cut(request.config, count))))
    counts = [count for count, _ in traced]
    peaks = traced[0][1] if len(traced) == 1 else extrapolate(traced[0][1], traced[1][1], depths)
    return peaks, counts, depths.whole
