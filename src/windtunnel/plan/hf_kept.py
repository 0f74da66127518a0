"""What autograd keeps of a Hugging Face model's block for each token, and what its passes work with beside that; no torch.

What is kept was counted with torch.autograd.graph.saved_tensors_hooks on the engine's blocks: eager, and compiled, where
the partitioner makes again what is cheap; with every weight trained, and frozen with adapters. A test counts it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from windtunnel.model import Block

from .memory import BF16, FP32

if TYPE_CHECKING:
    from .hf_work import Workload

INT64 = 8.0


@dataclass(frozen=True)
class Working:
    """What a block needs at once while it computes, beside what is kept: elements per token, as multiples of widths."""

    dims: float
    queries: float
    hidden: float


# (forward, backward), by what is trained - every weight, adapters on all linear layers, or on attention's - and whether
# the block is computed again in its backward pass, where this counts all that is made again too.
# The most that was alive in compiled blocks; adapters on all layers as measured on a H200.
COMPILED = {
    ("weights", False): (Working(1.0, 0.0, 0.0), Working(1.0, 0.0, 1.0)),
    ("weights", True): (Working(1.6, 0.0, 2.1), Working(6.0, 3.0, 6.0)),
    ("all", False): (Working(0.0, 0.0, 2.1), Working(0.6, 0.0, 4.9)),
    ("all", True): (Working(1.6, 0.0, 4.1), Working(5.6, 2.2, 11.1)),
    ("attention", False): (Working(0.6, 0.0, 1.1), Working(0.6, 0.0, 2.1)),
    ("attention", True): (Working(2.6, 0.0, 2.1), Working(3.6, 2.2, 4.1)),
}
# The same of blocks that are computed again whose MLP works in place: gate, up and one more are alive, and stay the same three.
IN_PLACE = {
    "weights": (Working(1.6, 0.0, 2.1), Working(6.0, 3.0, 3.0)),
    "all": (Working(1.6, 0.0, 3.1), Working(5.6, 2.2, 3.1)),
    "attention": (Working(2.6, 0.0, 2.1), Working(3.6, 2.2, 3.1)),
}
WORKS_IN_PLACE = frozenset({"llama", "mistral", "qwen2", "qwen3", "olmo", "olmo2", "olmo3", "granite", "smollm3", "seed_oss"})
"""Families whose MLP is silu(gate) * up by transformers' usual formula; see train/hf/in_place.py."""
EAGER = {
    ("weights", False): (Working(2.0, 0.0, 0.0), Working(4.0, 0.0, 2.0)),
    ("weights", True): (Working(18.0, 3.0, 4.0), Working(22.0, 4.0, 6.0)),
    ("all", False): (Working(2.0, 0.0, 2.0), Working(4.0, 0.0, 4.0)),
    ("all", True): (Working(16.0, 3.0, 6.0), Working(20.0, 4.0, 9.0)),
    ("attention", False): (Working(2.0, 0.0, 1.0), Working(4.0, 0.0, 2.0)),
    ("attention", True): (Working(16.0, 3.0, 3.0), Working(20.0, 4.0, 5.0)),
}


@dataclass(frozen=True)
class Kept:
    """Bytes per token of one block.

    Attributes:
        entry: its input, which is all that is kept where the block is computed again.
        plain: all that is kept where it is not, but for copies of the token that were routed to experts: `routed`.
        forward, backward: at work in each pass beside what is kept; `again`: the same where the block is computed again.
    """

    entry: float
    plain: float
    routed: float
    forward: float
    backward: float
    forward_again: float
    backward_again: float

    @property
    def whole(self) -> float:
        """All that is kept when nothing is computed again."""
        return self.plain + self.routed


def kept(block: Block, work: Workload) -> Kept:
    """Count what one block keeps per token, and what its passes work with."""
    entry = BF16 * block.dim
    # Eager norms keep their input in fp32 and nothing reads it in bf16 again.
    plain = (entry if work.compile else 0.0) + _attention(block, work) + _norms(block, work) + _mlp(block, work)
    table = COMPILED if work.compile else EAGER
    trained = "weights" if work.adapter is None else "all" if _adapts_mlp(block, work) else "attention"
    again = table[trained, True]
    if work.compile and block.experts is None and work.shape.family in WORKS_IN_PLACE and work.shape.gates_by_silu:
        again = IN_PLACE[trained]
    passes = (*table[trained, False], *again)
    # Frozen experts' inputs are not kept: gate and up are alive together with their gradients.
    more = 0.0 if trained == "weights" else 0.9
    if work.shares_experts and block.experts is not None:
        working = [BF16 * (one.dims * block.dim + one.queries * block.q_dim) for one in passes]
        working = [sum(both) for both in zip(working, _shared_working(block), strict=True)]
    else:
        working = [_working(block, one, more) for one in passes]
    return Kept(entry, plain, _experts(block, work), *working)


def _shared_working(block: Block) -> tuple[float, float, float, float]:
    """Bytes per token of experts frozen in fp8 blocks beyond what they keep: forward, backward, and both where all is made again.

    Of each copy of a token two are alive with gate, up, the activated gate and their product; one and all but the product
    are kept: counted with every storage that operations allocate while they run on a CPU. Where all is made again, what a
    token's experts give is summed in fp32 beside that, which takes three more such tensors (steps on H200s).
    """
    experts = block.experts
    assert experts is not None
    dim, hidden = BF16 * experts.per_token * block.dim, BF16 * experts.per_token * experts.hidden
    both, again = 3 * FP32 * block.dim, 2 * dim + 4 * hidden
    return dim + hidden, dim + 2 * hidden, again + both, again + both


def _working(block: Block, one: Working, more: float) -> float:
    """Bytes per token; routed copies count as wide tokens, with `more` of the experts' width."""
    experts = block.experts
    wide = max(block.hidden, _shared(block))
    dims = one.dims * block.dim + one.queries * block.q_dim
    if experts is None:
        return BF16 * (dims + one.hidden * wide)
    routed = experts.per_token * ((one.hidden + more) * experts.hidden + (1 + one.dims / 6) * block.dim)
    return BF16 * (dims + max(one.hidden * wide, routed))


def _shared(block: Block) -> int:
    return block.experts.shared_hidden if block.experts else 0


def _attention(block: Block, work: Workload) -> float:
    """Count queries, keys, values, attention's output and its log-sum-exp; compiled, also the output projection's result."""
    held = BF16 * (block.q_dim + block.k_dim + block.v_dim + block.out_dim) + FP32 * block.heads
    if block.mla:
        held += BF16 * ((block.mla.q_rank or 0) + block.mla.kv_rank + block.mla.rope_dim)  # inputs of the up-projections
    if work.compile:
        held += BF16 * block.dim  # the residual stream is made again from it
    if work.adapter is not None:
        held += BF16 * work.adapter.rank * sum(linear.adapted(work.adapter.targets) for linear in block.linears)
    return held


def _norms(block: Block, work: Workload) -> float:
    """Norms of the residual stream keep their result for the products after them; norms of heads keep their input."""
    total, frozen = 0.0, work.adapter is not None
    for norm in block.norms:
        of_heads = norm.module.endswith(("q_norm", "k_norm"))
        if work.compile:
            total += BF16 * norm.channels + FP32
        elif of_heads:  # the input in fp32, and where the weight is trained what it multiplies
            total += (FP32 + (0.0 if frozen else BF16)) * norm.channels + FP32
        else:  # the same, and the result
            total += (FP32 + BF16 + (0.0 if frozen else BF16)) * norm.channels + FP32
    if frozen and not _adapts_mlp(block, work):
        total -= BF16 * block.dim  # nothing after the second norm is trained
    return total


def _adapts_mlp(block: Block, work: Workload) -> bool:
    """Whether adapters sit behind the norm before the MLP; routed experts get none."""
    return work.adapter is not None and work.adapter.targets == "all" and max(block.hidden, _shared(block)) > 0


def _mlp(block: Block, work: Workload) -> float:
    """Gate, up and their product, which the last projection takes; eager keeps the activated gate too."""
    taken = work.adapter is None or _adapts_mlp(block, work)
    return BF16 * (block.hidden + _shared(block)) * ((2 if work.compile else 3) + (1 if taken else 0))


def _experts(block: Block, work: Workload) -> float:
    """Routed copies of a token: gate, up and output; where experts are trained also the inputs of both products."""
    experts = block.experts
    if experts is None:
        return 0.0
    widths = block.dim + 2 * experts.hidden if work.adapter else 2 * block.dim + 3 * experts.hidden
    if not work.compile or work.shares_experts:
        widths += experts.hidden
    return experts.per_token * (BF16 * widths + 5 * INT64) + FP32 * experts.count
