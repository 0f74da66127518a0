"""Seconds of one optimizer step of a Hugging Face model: products, attention, what only moves memory, and the update."""

from __future__ import annotations

from windtunnel.model import Block
from windtunnel.recipe import MEGATRON, Layout
from windtunnel.rig import GPU, Rig

from . import engine_fsdp, engine_megatron
from .constants import HFConstants
from .engine_fsdp import gradient_bytes, static_bytes
from .hf_work import FORMATS, Kind, Totals, Workload
from .steptime import Seconds, StepTime, Work, step_time, wide

# A backward pass of fused attention makes the probabilities again: five products to the forward pass's two.
ATTENTION_BACKWARD = 2.5
# Bytes moved to turn an expert's weight in fp8 into bf16, once: the code, then the product with its scale in place.
DECODED_TRAFFIC = 1.0 + 3 * 2.0


def block_seconds(kind: Kind, work: Workload, layout: Layout, gpu: GPU, c: HFConstants) -> Seconds:
    """Return the seconds of one block on one micro-batch.

    Tensor parallelism divides widths, expert parallelism the routed tokens' spread.
    """
    tokens = layout.micro_tokens
    again = 1 - layout.kept_blocks / work.shape.layers if layout.recompute == "block" else 0.0
    forward, trained = _products(kind.block, work, layout, gpu, c)
    backward = (1 + again) * forward + (0.0 if work.adapter else trained)
    attend = _attention_flops(kind.block, layout.sequence) * tokens / layout.tensor / (1e12 * gpu.bf16_tflops)
    reach = _reach(kind.block, layout.sequence, c)
    attention = attend / (c.attention_forward * reach)
    attention_back = ATTENTION_BACKWARD * attend / (c.attention_backward * reach) + again * attention
    moved = _traffic(kind.block, work, c) * tokens / layout.tensor
    one, two = moved / 3 + _dequantised(kind, work, layout), 2 * moved / 3 + _dequantised(kind, work, layout)
    bandwidth = gpu.bandwidth_gbs * 1e9 * c.bandwidth_efficiency
    traffic = (one / bandwidth, (two + again * one) / bandwidth)
    return Seconds((forward, backward), (attention, attention_back), traffic)


def head_seconds(sums: Totals, layout: Layout, gpu: GPU, c: HFConstants) -> Seconds:
    """Output head and loss; their gradients are computed in the forward pass, chunk by chunk."""
    shape, tokens = sums.work.shape, layout.micro_tokens
    products = 2 if sums.work.adapter else 3
    flops = 2.0 * products * shape.head_matrix_parameters * tokens / layout.tensor
    rate = 1e12 * gpu.bf16_tflops * c.matmul_efficiency * wide(shape.dim, tokens, c)
    moved = c.logit_traffic * tokens * shape.vocab / layout.tensor + 20.0 * tokens * shape.dim
    return Seconds((flops / rate, 0.0), (0.0, 0.0), (moved / (gpu.bandwidth_gbs * 1e9 * c.bandwidth_efficiency), 0.0))


def forward_seconds(sums: Totals, layout: Layout, rig: Rig, c: HFConstants) -> float:
    """Return the seconds of a forward pass over a step's tokens that keeps nothing: log-probabilities of another policy."""
    assert rig.gpu is not None
    once = head_seconds(sums, layout, rig.gpu, c).forward / 3
    for kind in sums.kinds:
        once += kind.count * block_seconds(kind, sums.work, layout, rig.gpu, c).forward
    return layout.accumulation * once / layout.pipeline / _reached(layout, c)


def _reached(layout: Layout, c: HFConstants) -> float:
    """Return the share of a whole model's rates that this layout reaches."""
    return c.split_efficiency if layout.tensor * layout.pipeline * layout.expert > 1 and layout.engine == MEGATRON else 1.0


def least_seconds(sums: Totals, ranks: int, gpu: GPU, c: HFConstants) -> float:
    """Return the seconds that a step takes at least over so many ranks: its products, at the best rate they could have."""
    work, shape = sums.work, sums.work.shape
    rate = 1e12 * gpu.bf16_tflops * c.matmul_efficiency
    fast = 1e12 * gpu.fp8_tflops * c.fp8_efficiency if work.precision == "fp8" and gpu.fp8_tflops else rate
    passes = 2 if work.adapter else 3
    blocks = sum(kind.count * linear.active_matrix_parameters for kind in sums.kinds for linear in kind.block.linears)
    seconds = 2.0 * passes * (blocks / fast + shape.head_matrix_parameters / rate)
    return c.time_factor * work.batch_tokens * seconds / ranks


def _products(block: Block, work: Workload, layout: Layout, gpu: GPU, c: HFConstants) -> tuple[float, float]:
    """Seconds of the forward products (as many again for the inputs' gradients), and of the weights' gradients."""
    tokens = layout.micro_tokens
    peak, efficiency = 1e12 * gpu.bf16_tflops, c.matmul_efficiency
    if work.precision == "fp8" and gpu.fp8_tflops:
        peak, efficiency = 1e12 * gpu.fp8_tflops, c.fp8_efficiency
    total = 0.0
    for linear in block.linears:
        narrow = min(linear.inputs, linear.outputs) / (1 if linear.part == "experts" else layout.tensor)
        rows, share = float(tokens), 1.0
        if linear.part == "experts":
            # Rows that one expert sees; ranks that share the experts also share the tokens of tensor ranks.
            rows, share = tokens * linear.used / linear.count * max(1, layout.expert // layout.tensor), c.grouped_efficiency
        flops = 2.0 * tokens * linear.active_matrix_parameters / layout.tensor
        total += flops / (peak * efficiency * share * wide(narrow, rows, c))
    return total, total


def _reach(block: Block, sequence: int, c: HFConstants) -> float:
    return block.v_head_dim / (block.v_head_dim + c.half_head) * sequence / (sequence + c.half_sequence)


def _attention_flops(block: Block, sequence: int) -> float:
    """FLOPs of one token's forward pass through attention that are really done: what the future or a window hides is skipped."""
    seen = block.visible(sequence)
    mean = seen - seen * seen / (2.0 * sequence)
    return 2.0 * block.heads * (block.qk_head_dim + block.v_head_dim) * mean


def _traffic(block: Block, work: Workload, c: HFConstants) -> float:
    """Bytes a token moves through norms, rotations, activations, residuals and adapters, forward and backward."""
    experts = block.experts
    hidden = block.hidden + (experts.shared_hidden + experts.per_token * experts.hidden if experts else 0)
    routed = experts.per_token * block.dim if experts else 0
    moved = c.traffic_dims * (block.dim + (block.q_dim + block.k_dim + block.v_dim + block.out_dim) / 4)
    moved += c.traffic_hidden * hidden + c.traffic_routed * routed
    if work.adapter is not None:
        targets = work.adapter.targets
        moved += c.traffic_adapter * sum(linear.inputs + linear.outputs for linear in block.linears if linear.adapted(targets))
    return moved if work.compile else moved * c.eager_traffic


def _dequantised(kind: Kind, work: Workload, layout: Layout) -> float:
    """Bytes moved to turn a block's frozen weights, of experts those of this rank, into bf16 once."""
    packed = sum(linear.matrix_parameters for linear in kind.block.linears if work.is_packed(linear))
    if work.shares_experts:
        return DECODED_TRAFFIC * packed / layout.expert
    return (FORMATS[work.weights][0] + 2.0) * packed


class Passes:
    """Seconds of a micro-batch's passes through all blocks and the head, worked out once for layouts that agree in them."""

    def __init__(self, sums: Totals, c: HFConstants) -> None:
        self.sums, self.c = sums, c
        self.known: dict[tuple[object, ...], Seconds] = {}

    def of(self, layout: Layout, gpu: GPU) -> Seconds:
        """Return the seconds of a model that is not cut into stages."""
        key = (gpu.name, layout.micro_batch, layout.tensor, layout.expert, layout.recompute, layout.kept_blocks)
        if key not in self.known:
            seconds = head_seconds(self.sums, layout, gpu, self.c)
            for kind in self.sums.kinds:
                seconds = seconds + block_seconds(kind, self.sums.work, layout, gpu, self.c).scaled(kind.count)
            self.known[key] = seconds
        return self.known[key]


def step_seconds(sums: Totals, layout: Layout, rig: Rig, c: HFConstants, passes: Passes | None = None) -> StepTime:
    """Estimate one optimizer step: every rank does `accumulation` micro-batches, exchanges and updates.

    passes: of the same `sums` and `c`, where many layouts are asked for.
    """
    assert rig.gpu is not None
    gpu, work, micro = rig.gpu, sums.work, layout.accumulation
    megatron = layout.engine == MEGATRON
    both = (passes or Passes(sums, c)).of(layout, gpu).scaled(micro / layout.pipeline / _reached(layout, c))
    copied = (engine_megatron if megatron else engine_fsdp).copied_bytes(sums, layout)
    exchange = (engine_megatron if megatron else engine_fsdp).exchange(sums, layout, rig, c)
    rounded = 1.0 if work.states == "fp32" and (work.master or work.adapter) else c.rounding_factor
    update = rounded * _update_bytes(sums, layout) / (gpu.bandwidth_gbs * 1e9 * c.optimizer_efficiency) + c.step_overhead_seconds
    if layout.offload == "optimizer":
        update += _offloaded(sums, layout, rig, c)
    return step_time(
        Work(
            passes=both,
            copies=micro * copied / (gpu.bandwidth_gbs * 1e9 * c.bandwidth_efficiency),
            update=update,
            exchange=exchange,
            slowdown=c.gather_slowdown,
            host=_host_seconds(work.shape.layers / layout.pipeline, work.compile and not work.shares_experts, layout, c) * micro,
            bubble=(layout.pipeline - 1) / micro,
            peak_flops=1e12 * gpu.bf16_tflops,
        ),
        c,
    )


def _update_bytes(sums: Totals, layout: Layout) -> float:
    """Bytes a rank moves to update its share: weights and states read and written, gradients read for the norm and again."""
    shards = layout.ranks if layout.shard != "none" else layout.tensor * layout.pipeline
    held = static_bytes(sums, shards, layout.expert)
    weights = held.get("master_weights") or held["weights"]
    return 2 * (weights + held["optimizer_states"]) + 2 * gradient_bytes(sums.work) * sums.trained / shards


def _host_seconds(layers: float, compiled: bool, layout: Layout, c: HFConstants) -> float:
    """Return the time the host takes to launch a micro-batch, nothing where it is recorded. FSDP2's hooks are the host's too."""
    if layout.recorded:
        return 0.0
    passes = 3 if layout.recompute == "block" and not compiled else 2
    sharding = c.shard_launch_seconds if layout.ranks > 1 and layout.shard != "none" and layout.engine != MEGATRON else 0.0
    return layers * passes * ((c.launch_seconds if compiled else c.eager_launch_seconds) + sharding)


def _offloaded(sums: Totals, layout: Layout, rig: Rig, c: HFConstants) -> float:
    """Gradients to CPU memory, the update there, weights back."""
    mine = sums.trained / (layout.ranks if layout.shard != "none" else 1)
    transfer = 6.0 * mine / (c.pcie_gbs * 1e9)
    return transfer + 28.0 * mine * rig.gpus_per_node / (c.cpu_adam_gbs * 1e9)
