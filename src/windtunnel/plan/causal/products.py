"""Seconds of what one rank computes for a micro-batch: products, attention, and what only moves memory."""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.model import Block
from windtunnel.recipe import Layout
from windtunnel.rig import GPU, Rig

from .constants import HFConstants
from .totals import Kind, Totals
from .workload import FORMATS, Workload

# A backward pass of fused attention makes the probabilities again: five products to the forward pass's two.
ATTENTION_BACKWARD = 2.5


@dataclass(frozen=True)
class Seconds:
    """Seconds by what they go to, of a forward and of a backward pass (with what is computed again)."""

    products: tuple[float, float]
    attention: tuple[float, float]
    traffic: tuple[float, float]

    @property
    def forward(self) -> float:
        """Of a forward pass."""
        return self.products[0] + self.attention[0] + self.traffic[0]

    @property
    def backward(self) -> float:
        """Of a backward pass."""
        return self.products[1] + self.attention[1] + self.traffic[1]

    def scaled(self, factor: float) -> Seconds:
        """All of them times a factor."""
        return Seconds(*(tuple(factor * part for part in pair) for pair in (self.products, self.attention, self.traffic)))  # type: ignore[arg-type]

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(
            (self.products[0] + other.products[0], self.products[1] + other.products[1]),
            (self.attention[0] + other.attention[0], self.attention[1] + other.attention[1]),
            (self.traffic[0] + other.traffic[0], self.traffic[1] + other.traffic[1]),
        )


def block_seconds(kind: Kind, work: Workload, layout: Layout, gpu: GPU, c: HFConstants) -> Seconds:
    """One block on one micro-batch. Tensor parallelism divides widths, expert parallelism the routed tokens' spread."""
    tokens, again = layout.micro_tokens, 1 if layout.recompute == "block" else 0
    forward, trained = _products(kind.block, work, layout, gpu, c)
    backward = (1 + again) * forward + (0.0 if work.adapter else trained)
    attend = _attention_flops(kind.block, layout.sequence) * tokens / layout.tensor / (1e12 * gpu.bf16_tflops)
    reach = _reach(kind.block, layout.sequence, c)
    attention = attend / (c.attention_forward * reach)
    attention_back = ATTENTION_BACKWARD * attend / (c.attention_backward * reach) + again * attention
    moved = _traffic(kind.block, work, c) * tokens / layout.tensor
    one, two = moved / 3 + _dequantised(kind, work), 2 * moved / 3 + _dequantised(kind, work)
    bandwidth = gpu.bandwidth_gbs * 1e9 * c.bandwidth_efficiency
    traffic = (one / bandwidth, (two + again * one) / bandwidth)
    return Seconds((forward, backward), (attention, attention_back), traffic)


def head_seconds(sums: Totals, layout: Layout, gpu: GPU, c: HFConstants) -> Seconds:
    """Output head and loss; their gradients are computed in the forward pass, chunk by chunk."""
    shape, tokens = sums.work.shape, layout.micro_tokens
    products = 2 if sums.work.adapter else 3
    flops = 2.0 * products * shape.head_matrix_parameters * tokens / layout.tensor
    rate = 1e12 * gpu.bf16_tflops * c.matmul_efficiency * _wide(shape.dim, tokens, c)
    moved = c.logit_traffic * tokens * shape.vocab / layout.tensor + 20.0 * tokens * shape.dim
    return Seconds((flops / rate, 0.0), (0.0, 0.0), (moved / (gpu.bandwidth_gbs * 1e9 * c.bandwidth_efficiency), 0.0))


def forward_seconds(sums: Totals, layout: Layout, rig: Rig, c: HFConstants) -> float:
    """A forward pass over one optimizer step's tokens that keeps nothing: log-probabilities of another policy."""
    assert rig.gpu is not None
    once = head_seconds(sums, layout, rig.gpu, c).forward / 3
    for kind in sums.kinds:
        once += kind.count * block_seconds(kind, sums.work, layout, rig.gpu, c).forward
    return layout.accumulation * once / layout.pipeline


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
        total += flops / (peak * efficiency * share * _wide(narrow, rows, c))
    return total, total


def _wide(narrow: float, rows: float, c: HFConstants) -> float:
    """Share of the large products' rate that products of this width and this many rows reach."""
    return narrow / (narrow + c.half_dim) * rows / (rows + c.half_tokens)


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


def _dequantised(kind: Kind, work: Workload) -> float:
    """Bytes moved to turn a block's frozen weights into bf16 once."""
    if work.adapter is None or work.weights == "bf16":
        return 0.0
    return (FORMATS[work.weights][0] + 2.0) * sum(linear.matrix_parameters for linear in kind.block.linears)
