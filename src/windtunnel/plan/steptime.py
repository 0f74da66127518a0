"""Seconds of one optimizer step, term by term, and what bounds it."""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.model import GPTShape
from windtunnel.rig import Rig

from .constants import Constants
from .layout import Layout

NEWTON_SCHULZ_ITERATIONS = 5


@dataclass(frozen=True)
class StepTime:
    """One step: its seconds and the seconds of each term (before overlap)."""

    seconds: float
    terms: dict[str, float]
    peak_flops: float

    @property
    def bound(self) -> str:
        """The term that most of the step goes to."""
        return max(self.terms, key=lambda name: self.terms[name])


def step_time(shape: GPTShape, layout: Layout, rig: Rig, constants: Constants) -> StepTime:
    """Estimate one optimizer step: all ranks do `accumulation` forward and backward passes, exchange, and update."""
    if layout.device == "cpu":
        return _cpu(shape, layout, rig, constants)
    time, factor = _gpu(shape, layout, rig, constants), constants.time_factor
    return StepTime(factor * time.seconds, {name: factor * value for name, value in time.terms.items()}, time.peak_flops)


def _gpu(shape: GPTShape, layout: Layout, rig: Rig, c: Constants) -> StepTime:
    assert rig.gpu is not None
    gpu = rig.gpu
    rank_tokens = layout.micro_tokens * layout.accumulation
    bandwidth = gpu.bandwidth_gbs * 1e9 * c.bandwidth_efficiency
    peak = 1e12 * (gpu.fp32_tflops if layout.precision == "fp32" else gpu.bf16_tflops)
    size = size_efficiency(shape, layout, c)
    products = 6.0 * (shape.matrix_parameters + shape.head_parameters) * rank_tokens / (peak * c.matmul_efficiency * size)
    if layout.precision == "fp8" and gpu.fp8_tflops:
        head = 6.0 * shape.head_parameters * rank_tokens / (peak * c.matmul_efficiency * size)
        blocks = 6.0 * shape.matrix_parameters * rank_tokens / (gpu.fp8_tflops * 1e12 * c.fp8_efficiency * size)
        products = head + blocks
    width = 2 if layout.precision == "fp32" else 1
    traffic = c.traffic_bytes * width * (1 if layout.compile else c.eager_traffic)
    moved = traffic * shape.layers * shape.dim * rank_tokens + c.micro_step_bytes * shape.parameters * layout.accumulation
    terms = {
        "matrix products": products,
        "attention": _attention_flops(shape) * rank_tokens / (peak * c.attention_efficiency),
        "memory bandwidth": moved / bandwidth,
        "optimizer": _optimizer_seconds(shape, layout, peak * c.matmul_efficiency * size, bandwidth, c),
        "communication": _communication_seconds(shape, layout, rig, c),
    }
    busy = sum(terms.values()) - c.overlap * min(terms["communication"], products)
    launch = (c.launch_seconds if layout.compile else c.eager_launch_seconds) * shape.layers * (layout.accumulation + 1)
    if launch > busy:
        return StepTime(launch, terms | {"kernel launches": launch}, peak)
    return StepTime(busy, terms, peak)


def _cpu(shape: GPTShape, layout: Layout, rig: Rig, c: Constants) -> StepTime:
    gflops = rig.cpu_gflops or c.cpu_gflops_per_core * rig.cpu_cores
    tokens = layout.batch_tokens
    peak = gflops * 1e9
    rate = peak * c.cpu_efficiency * (c.cpu_bf16_share if layout.precision != "fp32" else 1.0)
    bandwidth = c.cpu_bandwidth_gbs * 1e9
    moved = 2 * c.traffic_bytes * shape.layers * shape.dim * tokens + c.micro_step_bytes * shape.parameters * layout.accumulation
    terms = {
        "matrix products": 6.0 * (shape.matrix_parameters + shape.head_parameters) * tokens / rate,
        "attention": _attention_flops(shape) * tokens * c.cpu_efficiency / c.cpu_attention_efficiency / rate,
        "memory bandwidth": moved / bandwidth,
        "optimizer": _optimizer_seconds(shape, layout, rate, bandwidth, c),
        "kernel launches": c.eager_launch_seconds * shape.layers * layout.accumulation,
    }
    return StepTime(sum(terms.values()), terms, peak)


def size_efficiency(shape: GPTShape, layout: Layout, c: Constants) -> float:
    """Share of the large-product rate that products of this width and this many rows reach, in (0, 1)."""
    return shape.dim / (shape.dim + c.half_dim) * layout.micro_tokens / (layout.micro_tokens + c.half_tokens)


def newton_schulz_flops(shape: GPTShape) -> float:
    """FLOPs of orthogonalising every matrix once: an iteration on m x n, m <= n, is 4 m^2 n + 2 m^3 (Muon, Jordan 2024)."""

    def one(rows: int, columns: int) -> float:
        m, n = sorted((rows, columns))
        return 4.0 * m * m * n + 2.0 * m**3

    attention = 2 * one(shape.dim, shape.dim) + 2 * one(shape.dim, shape.kv_dim)
    mlp = (3 if shape.mlp == "swiglu" else 2) * one(shape.dim, shape.hidden)
    return NEWTON_SCHULZ_ITERATIONS * shape.layers * (attention + mlp)


def _attention_flops(shape: GPTShape) -> float:
    """FLOPs a token really done, forward and backward: the causal half of the published convention, 12 h d s."""
    return sum(6.0 * shape.heads * shape.head_dim * min(w, shape.sequence) for w in shape.windows)


def _optimizer_seconds(shape: GPTShape, layout: Layout, rate: float, bandwidth: float, c: Constants) -> float:
    # Matrices go to ranks whole: with more ranks than layers some idle.
    spread = min(layout.ranks, 6 * shape.layers)
    return newton_schulz_flops(shape) / spread / rate + c.optimizer_bytes * shape.parameters / layout.ranks / bandwidth


def _communication_seconds(shape: GPTShape, layout: Layout, rig: Rig, c: Constants) -> float:
    """Ring reduce-scatter and all-gather: inside a node over its links, between nodes over the network.

    Between nodes every byte crosses each node's network once per direction; the two do not overlap.
    """
    volume = c.communication_bytes * shape.parameters
    seconds = 0.0
    if rig.gpus_per_node > 1:
        seconds += volume * (rig.gpus_per_node - 1) / rig.gpus_per_node / (rig.link_gbs * 1e9 * c.link_efficiency)
    if rig.nodes > 1:
        seconds += volume * (rig.nodes - 1) / rig.nodes / (rig.network_gbs * 1e9 * c.link_efficiency)
    return seconds
