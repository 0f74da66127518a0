"""Seconds of one optimizer step of a Hugging Face model, term by term, and what hides behind what."""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.recipe import MEGATRON, Layout
from windtunnel.rig import Rig

from .collectives import sharded_exchange
from .constants import HFConstants
from .megatron import Split, megatron_exchange
from .memory import gradient_bytes, static_bytes
from .products import Seconds, block_seconds, head_seconds
from .totals import Totals


@dataclass(frozen=True)
class StepSeconds:
    """One step: terms before overlap, what overlaps, and the seconds of its phases as they pass."""

    seconds: float
    terms: dict[str, float]
    hidden: float
    forward: float
    backward: float
    update: float
    peak_flops: float

    @property
    def bound(self) -> str:
        """The term that most of the step goes to."""
        return max(self.terms, key=lambda name: self.terms[name])


def step_seconds(sums: Totals, layout: Layout, rig: Rig, c: HFConstants) -> StepSeconds:
    """Estimate one optimizer step: every rank does `accumulation` micro-batches, exchanges and updates."""
    assert rig.gpu is not None
    gpu, work, micro = rig.gpu, sums.work, layout.accumulation
    bandwidth = gpu.bandwidth_gbs * 1e9 * c.bandwidth_efficiency
    blocks = Seconds((0.0, 0.0), (0.0, 0.0), (0.0, 0.0))
    for kind in sums.kinds:
        blocks = blocks + block_seconds(kind, work, layout, gpu, c).scaled(kind.count / layout.pipeline)
    head = head_seconds(sums, layout, gpu, c).scaled(1 / layout.pipeline)
    copies = _copies(sums, layout) / bandwidth
    talk = (megatron_exchange if layout.engine == MEGATRON else sharded_exchange)(sums, layout, rig, c)
    rounded = 1.0 if work.states == "fp32" and (work.master or work.adapter) else c.rounding_factor
    update = rounded * _update_bytes(sums, layout) / (gpu.bandwidth_gbs * 1e9 * c.optimizer_efficiency) + c.step_overhead_seconds
    if layout.offload == "optimizer":
        update += _offloaded(sums, layout, rig, c)
    both = blocks + head
    passes = micro * (both.forward + both.backward + copies)
    host = _host_seconds(work.shape.layers / layout.pipeline, work.compile, layout, c) * micro
    terms = {
        "matrix products": micro * sum(both.products),
        "attention": micro * sum(both.attention),
        "memory bandwidth": micro * (sum(both.traffic) + copies),
        "optimizer": update,
        **{name: value for name, value in talk.terms.items() if value > 0},
    }
    if host > passes:
        terms["kernel launches"] = host - passes
        passes = host
    bubble = (layout.pipeline - 1) / micro * passes
    if bubble:
        terms["pipeline bubble"] = bubble
    hidden = min(talk.hideable, c.overlap * passes)
    busy = sum(terms.values()) - hidden
    slower = c.gather_slowdown * hidden
    if slower:
        terms["memory bandwidth"] += slower
        busy += slower
    factor = c.time_factor
    forward = both.forward / (both.forward + both.backward)
    rest = busy - update
    return StepSeconds(
        seconds=factor * busy,
        terms={name: factor * value for name, value in terms.items()},
        hidden=factor * hidden,
        forward=factor * rest * forward,
        backward=factor * rest * (1 - forward),
        update=factor * update,
        peak_flops=1e12 * gpu.bf16_tflops,
    )


def _copies(sums: Totals, layout: Layout) -> float:
    """Bytes moved per micro-batch by FSDP2's copies: into compute precision, out of gathered buffers, gradients to be reduced.

    Megatron-Core holds bf16 weights as they are and only adds gradients to their buffer.
    """
    if layout.engine == MEGATRON:
        split = Split(sums, layout)
        return 3 * gradient_bytes(sums.work) * (split.trained + split.trained_experts)
    work, shards = sums.work, layout.data if layout.shard != "none" else 1
    held = 4.0 if work.master else 2.0
    gathered = 2.0 * sums.trained + sums.frozen
    cast = (held + 2.0) * (0 if work.adapter else sums.trained) / shards
    once = cast + 2.0 * gathered
    passes = 1 if layout.shard == "optimizer" and shards > 1 else 2
    reduce = gradient_bytes(work)
    gradients = (2.0 + reduce) * sums.trained
    if layout.ranks > 1:  # alone, a rank keeps them where they were cast to
        gradients += 2 * reduce * sums.trained / shards
    if layout.accumulation > 1:
        gradients += 3 * reduce * sums.trained / shards
    return passes * once + gradients


def _update_bytes(sums: Totals, layout: Layout) -> float:
    """Bytes a rank moves to update its share: weights and states read and written, gradients read for the norm and again."""
    shards = layout.ranks if layout.shard != "none" else layout.tensor * layout.pipeline
    held = static_bytes(sums, shards)
    weights = held.get("master_weights") or held["weights"]
    return 2 * (weights + held["optimizer_states"]) + 2 * gradient_bytes(sums.work) * sums.trained / shards


def _host_seconds(layers: float, compiled: bool, layout: Layout, c: HFConstants) -> float:
    """Time the host takes to launch a micro-batch."""
    passes = 3 if layout.recompute == "block" and not compiled else 2
    return layers * passes * (c.launch_seconds if compiled else c.eager_launch_seconds)


def _offloaded(sums: Totals, layout: Layout, rig: Rig, c: HFConstants) -> float:
    """Gradients to CPU memory, the update there, weights back."""
    mine = sums.trained / (layout.ranks if layout.shard != "none" else 1)
    transfer = 6.0 * mine / (c.pcie_gbs * 1e9)
    return transfer + 28.0 * mine * rig.gpus_per_node / (c.cpu_adam_gbs * 1e9)
