"""Layouts that Megatron-Bridge runs, which split matrices, experts or layers over ranks: memory and communication.

Nothing here was measured by us; the arithmetic is Megatron-Core's: bf16 weights, fp32 gradients, a distributed optimizer,
sequence parallelism beside tensor parallelism, one forward one backward (1F1B) along the pipeline.
"""

from __future__ import annotations

import math

from windtunnel.recipe import Layout
from windtunnel.rig import Rig

from .constants import HFConstants
from .engine_fsdp import gradient_bytes, state_bytes
from .expert_parallel import IMBALANCE, all_to_all_seconds
from .hf_work import Totals
from .memory import BF16, FP32, Ledger, Memory, around
from .steptime import Exchange, ring_seconds

# Bytes of the buckets in which gradients are reduced while the backward pass goes on.
BUCKETS = 0.5 * 2**30
# Kept free for what was never measured here, as a share of what is reserved.
UNMEASURED = 0.10


class Split:
    """What one rank of a split model holds: parameters and bytes after tensor, expert and pipeline parallelism."""

    def __init__(self, sums: Totals, layout: Layout) -> None:
        work = sums.work
        self.layers = math.ceil(work.shape.layers / layout.pipeline)
        share = self.layers / work.shape.layers
        tensor, expert = layout.tensor, layout.expert
        trained, trained_experts, frozen, frozen_experts = sums.in_blocks
        self.trained, self.trained_experts = share * trained / tensor, share * trained_experts / expert
        self.frozen, self.frozen_experts = share * frozen / tensor, share * frozen_experts / expert
        # Embedding on the first stage, head on the last; both on the only one.
        shape = work.shape
        root = work.root_parameters if layout.pipeline == 1 else shape.vocab * shape.dim
        self.root = root / tensor
        if not work.adapter:
            self.trained += self.root
        else:
            self.frozen += BF16 * self.root
        # Ranks over which optimizer states are sharded: those that hold the same weights.
        self.copies = layout.data
        self.expert_copies = max(1.0, layout.data * tensor / expert)


def memory(sums: Totals, layout: Layout, c: HFConstants) -> Memory:
    """Moments of a step on the rank that needs most: the first stage, where most micro-batches are under way."""
    work, split = sums.work, Split(sums, layout)
    tokens = layout.micro_tokens
    sharded = layout.shard != "none"
    copies, expert_copies = (split.copies, split.expert_copies) if sharded else (1.0, 1.0)
    owned = split.trained / copies + split.trained_experts / expert_copies
    trained = split.trained + split.trained_experts
    on_host = layout.offload == "optimizer"
    master = FP32 if work.master or work.adapter else 0.0
    static = {"weights": BF16 * trained + split.frozen + split.frozen_experts}
    if work.frozen_copy:
        static["reference"] = BF16 * (split.trained + split.trained_experts)
    if not on_host:
        static |= {"master_weights": master * owned, "optimizer_states": state_bytes(work) * owned}
    # Gradients are added up in one buffer that is there all the time.
    static["gradients"] = gradient_bytes(work) * trained
    static["communication"] = min(BUCKETS, BF16 * trained) * (layout.data > 1)
    under_way = min(layout.pipeline, layout.accumulation)
    kind = sums.most_kept
    again = layout.recompute == "block"
    whole = sum(k.count * (k.kept.plain + IMBALANCE * k.kept.routed) for k in sums.kinds) / work.shape.layers
    per_layer = tokens / layout.tensor * (kind.kept.entry if again else whole)
    passing = kind.kept.forward_again if again else kind.kept.forward
    working = kind.kept.backward_again if again else kind.kept.backward
    if layout.expert > 1:
        working += IMBALANCE * kind.kept.routed
    at_work = tokens / layout.tensor * passing, tokens / layout.tensor * working
    activations = split.layers * per_layer * under_way
    # Logits of the tensor-parallel head: bf16, and fp32 for the loss, and their gradient.
    logits = tokens * work.shape.vocab / layout.tensor * (BF16 + FP32 + BF16) / (1 if layout.pipeline == 1 else 2)
    scratch = BF16 * kind.largest_matrix / (layout.expert if kind.block.experts else layout.tensor)
    ledger = Ledger(static)
    ledger.note("before the step", (0.0, 0.0), {})
    ledger.note("forward, last block", (1.0, 0.0), {"activations": activations + at_work[0], "gathered_weights": scratch})
    ledger.note("loss", (1.0, 0.0), {"activations": activations, "loss": logits})
    ledger.note("backward, last block", (1.0, 0.0), {"activations": activations + at_work[1], "gathered_weights": scratch})
    ledger.note("optimizer", (1.0, 1.0), {})
    return Memory(ledger, around(layout, c), c.extra_gib, UNMEASURED)


def host_gib(sums: Totals, layout: Layout, gpus_per_node: int) -> float:
    """GiB of CPU memory a node needs where optimizer states are kept there, pinned copies of gradients included."""
    if layout.offload == "none":
        return 0.0
    split = Split(sums, layout)
    owned = split.trained / split.copies + split.trained_experts / split.expert_copies
    return gpus_per_node * owned * (FP32 + state_bytes(sums.work) + FP32) / 2**30


def exchange(sums: Totals, layout: Layout, rig: Rig, c: HFConstants) -> Exchange:
    """Communication of one step: within tensor groups, to experts and back, along the pipeline, and of gradients."""
    work, split = sums.work, Split(sums, layout)
    micro, tokens, dim = layout.accumulation, layout.micro_tokens, work.shape.dim
    passes = 3 if layout.recompute == "block" else 2
    hidden = BF16 * tokens * dim
    # Sequence parallel: before and after attention and MLP, one gather and one scatter each.
    tensor = micro * passes * split.layers * 4 * ring_seconds(hidden, layout.tensor, 1, rig, c)
    expert = micro * passes * all_to_all_seconds(sums, layout, rig, c)
    across = (
        micro * 2 * hidden / layout.tensor / (_hop_gbs(layout, rig) * 1e9 * c.link_efficiency) if layout.pipeline > 1 else 0.0
    )
    stride = layout.tensor
    sizes = ((split.trained, layout.data), (split.trained_experts, max(1, layout.data * layout.tensor // layout.expert)))
    volume = gradient_bytes(work) + BF16
    data = sum(ring_seconds(volume * size, ranks, stride, rig, c) for size, ranks in sizes if ranks > 1)
    terms = {"tensor parallel": tensor, "expert parallel": expert, "pipeline hops": across, "communication": data}
    # Gradients go while the last micro-batches compute; of the others a part overlaps.
    return Exchange(terms, 0.7 * data + 0.3 * (tensor + expert) + 0.8 * across)


def _hop_gbs(layout: Layout, rig: Rig) -> float:
    """GB/s between neighbouring stages: a link where they share a node, else this GPU's part of the network."""
    if rig.nodes == 1 or layout.tensor * 2 <= rig.gpus_per_node // 2:
        return rig.link_gbs
    return rig.network_gbs / rig.gpus_per_node


def copied_bytes(sums: Totals, layout: Layout) -> float:
    """Return the bytes moved per micro-batch by copies: weights are held as they compute, gradients added to their buffer."""
    split = Split(sums, layout)
    return 3 * gradient_bytes(sums.work) * (split.trained + split.trained_experts)
