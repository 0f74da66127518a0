"""Seconds of one optimizer step of the package's own GPTs: products, attention, what only moves memory, and the update."""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.model import GPTShape
from windtunnel.recipe import Layout
from windtunnel.rig import Rig

from . import gpt_shards
from .constants import GPTConstants
from .engine_gpt import Passes, plain
from .gpt_shards import is_sharded
from .steptime import Exchange, Seconds, StepTime, Work, ring_seconds, step_time, wide

NEWTON_SCHULZ_ITERATIONS = 5
# Launches of the head with its loss, and of an optimizer step, beside those of one pass through a block. Counted: 25
# kernels a head, forwards and backwards, to 22 of a block; an optimizer step kept the host busy as long as 5 passes.
HEAD_LAUNCHES = 2
UPDATE_LAUNCHES = 5
# Of passes that are recorded: their batch is copied to where it was recorded, then one graph is started, however long it is.
REPLAY_LAUNCHES = 1
# Of the bytes that move per weight and micro-step: 6 of 14 make the copy in compute precision, 8 add the gradient.
CONVERSION = 6 / 14


@dataclass(frozen=True)
class _Load:
    """A step's work beside a plain GPT's, whose is 1 in each: of the blocks, the head, the blocks' weights, and validation."""

    blocks: float
    head: float
    weights: float
    combine: float  # applications that combine states
    validation: float


def _load(shape: GPTShape, layout: Layout, passes: Passes) -> _Load:
    """Count a backward pass as two forward passes; what is computed again takes a forward pass more."""
    forward = passes.forward(layout.recompute)
    blocks = (forward + 2 * passes.graded) / (3 * shape.layers)
    # Scored tokens take one forward pass of every application, beside training's `blocks` of three passes.
    validation = passes.applications / shape.layers / blocks
    # Weights are converted once a backward pass, or an update; each application adds its gradients to them. Sharded ones are
    # converted before they are gathered.
    weights = (0.0 if is_sharded(layout) else CONVERSION * passes.updates) + (1 - CONVERSION) * passes.graded / shape.layers
    return _Load(blocks, float(passes.heads), weights, float(passes.combined), validation)


def step_seconds(shape: GPTShape, layout: Layout, rig: Rig, c: GPTConstants, passes: Passes | None = None) -> StepTime:
    """Estimate one optimizer step: all ranks do `accumulation` forward and backward passes, exchange, and update."""
    passes = passes or plain(shape)
    load = _load(shape, layout, passes)
    work = _cpu(shape, layout, rig, c, passes, load) if layout.device == "cpu" else _gpu(shape, layout, rig, c, passes, load)
    return step_time(work, c)


def _gpu(shape: GPTShape, layout: Layout, rig: Rig, c: GPTConstants, passes: Passes, load: _Load) -> Work:
    assert rig.gpu is not None
    gpu = rig.gpu
    rank_tokens = layout.micro_tokens * layout.accumulation
    bandwidth = gpu.bandwidth_gbs * 1e9 * c.bandwidth_efficiency
    peak = 1e12 * (gpu.fp32_tflops if layout.precision == "fp32" else gpu.bf16_tflops)
    size = wide(shape.dim, layout.micro_tokens, c)
    products = _product_flops(shape, load) * rank_tokens / (peak * c.matmul_efficiency * size)
    quantising = 0.0
    if layout.precision == "fp8" and gpu.fp8_tflops:
        head = load.head * 6.0 * shape.head_parameters * rank_tokens / (peak * c.matmul_efficiency * size)
        blocks = load.blocks * 6.0 * shape.matrix_parameters * rank_tokens / (gpu.fp8_tflops * 1e12 * c.fp8_efficiency * size)
        products = head + blocks
        quantising = load.blocks * shape.layers * _quantised_bytes(shape) * rank_tokens / bandwidth
    width = 2 if layout.precision == "fp32" else 1
    eager = 1 if layout.compile else c.eager_traffic
    attention = load.blocks * attention_flops(shape) * rank_tokens / (peak * c.attention_efficiency)
    traffic = _moved(shape, layout, rank_tokens, width * eager, c, load) / bandwidth + quantising
    # Exponentials bind the loss, not memory: they are computed by units whose rate follows that of fp32.
    traffic += load.head * rank_tokens * shape.padded_vocab * c.loss_flops / (1e12 * gpu.fp32_tflops)
    # Reduce-scatter of the gradients and all-gather of the weights.
    once = passes.updates * ring_seconds(c.communication_bytes * shape.parameters, layout.ranks, 1, rig, c)
    exchange, copies = Exchange({"communication": once}, c.overlap * once), 0.0
    if is_sharded(layout):
        exchange = gpt_shards.exchange(shape, layout, rig, c)
        copies = gpt_shards.copied_bytes(shape, layout) / bandwidth
    return Work(
        passes=_both(products, attention, traffic),
        update=passes.updates * _optimizer_seconds(shape, layout, peak * c.matmul_efficiency * size, bandwidth, c),
        peak_flops=peak,
        copies=copies,
        exchange=exchange,
        under=c.overlap * products,
        host_step=_launch_seconds(layout, c, passes),
        validation=load.validation,
    )


def _cpu(shape: GPTShape, layout: Layout, rig: Rig, c: GPTConstants, passes: Passes, load: _Load) -> Work:
    gflops = rig.cpu_gflops or c.cpu_gflops_per_core * rig.cpu_cores
    tokens = layout.batch_tokens
    peak = gflops * 1e9
    rate = peak * c.cpu_efficiency * (c.cpu_bf16_share if layout.precision != "fp32" else 1.0)
    bandwidth = c.cpu_bandwidth_gbs * 1e9
    attention = load.blocks * attention_flops(shape) * tokens * c.cpu_efficiency / c.cpu_attention_efficiency / rate
    traffic = _moved(shape, layout, tokens, 2, c, load) / bandwidth
    return Work(
        passes=_both(_product_flops(shape, load) * tokens / rate, attention, traffic),
        update=passes.updates * _optimizer_seconds(shape, layout, rate, bandwidth, c),
        peak_flops=peak,
        launches=c.eager_launch_seconds * passes.forward(layout.recompute) * layout.accumulation,
        validation=load.validation,
    )


def _both(products: float, attention: float, traffic: float) -> Seconds:
    """Split seconds of both passes: a backward pass takes about twice as long as a forward pass."""
    third = 1 / 3
    return Seconds(*((third * each, (1 - third) * each) for each in (products, attention, traffic)))


def _launch_seconds(layout: Layout, c: GPTConstants, passes: Passes) -> float:
    """Return the host's seconds of a step: it launches every pass's kernels, and takes as long whatever their size.

    Recorded, passes of a micro-batch up to the next update are launched as one.
    """
    blocks = passes.forward(layout.recompute) + passes.graded
    one = REPLAY_LAUNCHES * passes.updates if layout.recorded else blocks + HEAD_LAUNCHES * passes.heads
    launched = layout.accumulation * one + UPDATE_LAUNCHES * passes.updates
    gathering = gpt_shards.PARTS * passes.graded * c.shard_launch_seconds if is_sharded(layout) else 0.0
    return launched * (c.launch_seconds if layout.compile else c.eager_launch_seconds) + layout.accumulation * gathering


def _product_flops(shape: GPTShape, load: _Load) -> float:
    """FLOPs a token of the products with weights, those that are done again included."""
    return 6.0 * (load.blocks * shape.matrix_parameters + load.head * shape.head_parameters)


def _moved(shape: GPTShape, layout: Layout, tokens: int, width: float, c: GPTConstants, load: _Load) -> float:
    """Bytes through memory: activations by what is no product, and weights, which every application converts anew."""
    activations = c.traffic_bytes * load.blocks * shape.layers + c.combine_traffic * load.combine
    rest = shape.parameters - shape.matrix_parameters - shape.head_parameters
    weights = load.weights * shape.matrix_parameters + load.head * shape.head_parameters + rest
    return width * activations * shape.dim * tokens + c.micro_step_bytes * weights * layout.accumulation


def _quantised_bytes(shape: GPTShape) -> float:
    """Bytes a token that a block moves more where its products are in fp8, forwards and backwards.

    Counted: 2 a number to look for the largest where nothing before tells it (attention's output, the gradients of q, k
    and v), 4 to read it and write it in both orders; of the MLP's hidden states what is more than bf16 moves: 1 forwards,
    3 backwards (of swiglu's 3 and 1).
    """
    inputs, gradients = 4 + 6 + 4, 4 + 4
    return (inputs + gradients) * shape.dim + 6.0 * (shape.dim + 2 * shape.kv_dim) + 4.0 * shape.hidden


def newton_schulz_flops(shape: GPTShape) -> float:
    """FLOPs of orthogonalising every matrix once: an iteration on m x n, m <= n, is 4 m^2 n + 2 m^3 (Muon, Jordan 2024)."""
    total = 0.0
    for linear in shape.blocks[0].linears:
        if linear.module != "value_gate":
            m, n = sorted((linear.inputs, linear.outputs))
            total += 4.0 * m * m * n + 2.0 * m**3
    return NEWTON_SCHULZ_ITERATIONS * shape.layers * total


def attention_flops(shape: GPTShape) -> float:
    """FLOPs a token really done by one pass, forward and backward; causal attention does half of them, 12 h d s."""
    done = 6.0 if shape.causal else 12.0
    return sum(done * shape.heads * shape.head_dim * min(w, shape.sequence) for w in shape.windows)


def _optimizer_seconds(shape: GPTShape, layout: Layout, rate: float, bandwidth: float, c: GPTConstants) -> float:
    # Matrices go to ranks whole: with more ranks than layers some idle.
    spread = min(layout.ranks, 6 * shape.layers)
    return newton_schulz_flops(shape) / spread / rate + c.optimizer_bytes * shape.parameters / layout.ranks / bandwidth
