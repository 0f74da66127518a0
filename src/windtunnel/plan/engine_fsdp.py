"""The package's own engine for Hugging Face models: a rank's memory, and what its ranks exchange.

FSDP2 over blocks; frozen experts may be shared out instead, so that tokens travel to them.
"""

from __future__ import annotations

from collections.abc import Mapping

from windtunnel.recipe import Layout
from windtunnel.rig import Rig

from .constants import HFConstants
from .expert_parallel import all_to_all_seconds, dispatch_bytes
from .hf_work import STATE_BYTES, Totals, Workload
from .memory import BF16, FP32, GIB, Ledger, Memory, around
from .steptime import FAST_LINK_GBS, Exchange, ring_seconds

SOURCES: Mapping[str, str] = {
    "weights": "bf16 weights, or frozen ones as they are held, this rank's share",
    "experts": "frozen fp8 codes and block scales of this rank's experts",
    "master_weights": "fp32 weights that the optimizer updates, 4 B a trained parameter, this rank's share",
    "gradients": "reduced ones, this rank's share, and those of the block at work",
    "optimizer_states": "AdamW's two moments, this rank's share",
    "reference": "bf16 copy of the policy as it was, this rank's share",
    "activations": "what autograd keeps between forward and backward pass, and what the block at work needs",
    "loss": "one chunk of logits, gradients of the last hidden states and of the head",
    "gathered_weights": "copies of the blocks at work in compute precision: gathered, or cast",
    "answers": "a copy of the weights that answers between steps, keys and values",
    "recording": "of recorded passes: theirs for good, between them too, with cuBLAS's workspace of the stream they are on",
    "communication": "buffers of collectives: gathering the next block, reducing the last one's gradients",
}


# Families whose logits pass through a tanh.
CAPPED = ("gemma2",)


def loss_chunk(vocab: int) -> int:
    """Return tokens whose logits exist at a time: half a GiB in bf16, in whole 256s."""
    return max(256, 2**29 // vocab // 256 * 256)


def static_bytes(sums: Totals, shards: int, expert: int = 1) -> dict[str, float]:
    """Bytes that a rank holds all the time, by component.

    shards: ranks that share states and weights. expert: ranks that share frozen experts, which are not sharded else.
    """
    work = sums.work
    # An adapter is trained in fp32 itself, so its weights are master weights and nothing beside them.
    if work.adapter is not None:
        held = {"weights": sums.frozen, "master_weights": FP32 * sums.trained}
    elif work.master:
        held = {"master_weights": FP32 * sums.trained}
    else:
        held = {"weights": BF16 * sums.trained}
    held["optimizer_states"] = state_bytes(work) * sums.trained
    if work.frozen_copy:
        held["reference"] = BF16 * work.shape.parameters
    shared = {name: size / shards for name, size in held.items()}
    return shared | ({"experts": sums.resident / expert} if sums.resident else {})


def least_gib(work: Workload) -> float:
    """GiB that all ranks together must hold however they are laid out: weights and states once, each."""
    held = STATE_BYTES[work.states] if not _in_place(work) else min(STATE_BYTES[work.states], STATE_BYTES["bf16"])
    if work.adapter is not None:
        return sum(n * work.frozen_bytes(block) for block, n in work.kinds.items()) / 2**30
    if work.choice.offload == "optimizer":
        return BF16 * work.trained / 2**30
    return (held + (BF16 if _in_place(work) else FP32)) * work.trained / 2**30


def state_bytes(work: Workload) -> float:
    """Bytes of AdamW's moments per trained parameter; beside bf16 weights that are updated in place they are bf16 at most."""
    return min(STATE_BYTES[work.states], STATE_BYTES["bf16"]) if _in_place(work) else STATE_BYTES[work.states]


def gradient_bytes(work: Workload) -> float:
    """Bytes of a reduced gradient per trained parameter."""
    return BF16 if _in_place(work) else FP32


def memory(sums: Totals, layout: Layout, c: HFConstants) -> Memory:
    """Note the moments of one optimizer step; where it has several micro-batches, of the last one."""
    return _Step(sums, layout, c).run()


class _Step:
    """Sizes in bytes that the moments are put together from."""

    def __init__(self, sums: Totals, layout: Layout, c: HFConstants) -> None:
        work = sums.work
        self.work, self.layout, self.c, self.kind = work, layout, c, sums.largest
        self.tokens = layout.micro_tokens
        self.shards = layout.data if layout.shard != "none" else 1
        self.casts = work.adapter is None and work.master
        self.ledger = Ledger(static_bytes(sums, self.shards, layout.expert))
        # Ranks that hold everything compute with what is bf16 as it lies; only fp32 weights are cast, block by block.
        copies = self.shards > 1 or self.casts
        self.root = BF16 * work.root_parameters if copies else 0.0
        self.block = self.kind.copied if copies else 0.0
        self.all_blocks = sums.copied
        self.layers = work.shape.layers
        kept, again = self.kind.kept, layout.recompute == "block"
        # Of blocks that are computed again all but the input; the last few may be kept whole nonetheless.
        whole_share = layout.kept_blocks / self.layers if again else 1.0
        self.kept = self.tokens * (sums.inputs + whole_share * (sums.whole - sums.inputs))
        self.inputs = self.tokens * sums.inputs
        self.kept_by_one = self.tokens * (kept.entry if again else kept.whole)
        self.kept_by_last = self.tokens * (kept.entry if again and not layout.kept_blocks else kept.whole)
        self.forward = self.tokens * (kept.forward_again if again else kept.forward)
        self.backward = self.tokens * (kept.backward_again if again else kept.backward)
        self.backward_kept = self.tokens * kept.backward
        self.scratch = BF16 * self.kind.largest_matrix
        # Beside the tokens of a block at work lie those that are on their way to experts and back.
        travelling = max(dispatch_bytes(kind, layout) for kind in sums.kinds)
        self.forward, self.backward = self.forward + travelling, self.backward + travelling
        if any(kind.block.window is not None and kind.block.window < layout.sequence for kind in sums.kinds):
            # Attention within a window takes a mask: a byte a pair of positions, and as many again in bf16.
            masks = 3.0 * layout.sequence**2
            self.forward, self.backward = self.forward + masks, self.backward + masks
        # Gradients are summed over ranks in what the optimizer takes them in, not in what they were computed in.
        reduced = gradient_bytes(work)
        trained_block = self.kind.trained + self.kind.trained_experts
        self.block_gradients, self.block_reduce = BF16 * trained_block, reduced * trained_block
        self.root_gradients, self.root_reduce = BF16 * work.trained_root, reduced * work.trained_root
        self.gradients = reduced * sums.trained / self.shards
        self.blocks_gradients = self.gradients - self.root_reduce / self.shards
        # Earlier micro-batches have left their gradients; where passes are recorded they have a place for good.
        self.before = self.gradients if layout.accumulation > 1 or layout.recorded else 0.0

    def run(self) -> Memory:
        self._note("before the step", (0.0, 0.0), {}, self.before)
        self._forward()
        self._backward()
        self._note("optimizer", (1.0, 1.0), {}, self.gradients)
        if self.work.answers is not None:
            left = self.gradients if self.layout.recorded else 0.0
            self._note("answering", (1.0, 1.0), self.work.answering_bytes(self.layout.ranks, BF16), left)
        if self.layout.recorded:
            self._record()
        # Experts are decoded into buffers of one size, which leave no holes.
        holes = self.scratch and not self.work.shares_experts
        wasted = self.c.fragmentation + (self.c.quantised_fragmentation if holes else 0.0)
        return Memory(self.ledger, around(self.layout, self.c), self.c.extra_gib, wasted, self._misplaced())

    def _record(self) -> None:
        """Hold what passes need in all other moments too: nothing else may use it, but for passes of batches that are launched.

        They are recorded on a stream of their own, and so with cuBLAS's workspace of that stream.
        """
        static = sum(self.ledger.static.values()) + self.gradients
        # The memory of a recording is its own for good: the largest moment of all passes counts at every moment.
        of_passes = ("forward", "loss", "backward")
        passes = max(entry.total for entry in self.ledger.entries if entry.name.startswith(of_passes))
        for entry in self.ledger.entries:
            theirs = 0.0 if entry.name.startswith(of_passes) else passes - static
            entry.held["recording"] = theirs + self.c.workspace_gib * GIB

    def _misplaced(self) -> float:
        """Bytes beyond the sum of what is alive: the buffer that reduces embedding and head must lie in one piece.

        Of the memory that a rank's computing stream freed since the loss a hole may be large enough, or not.
        """
        if self.layout.ranks == 1 or not self.root_reduce:
            return 0.0
        at_loss = next(sum(e.held.values()) for e in self.ledger.entries if e.name == "loss")
        hole = at_loss - sum(self.ledger.static.values()) - self.root - self.root_gradients
        return self.c.misplaced * self.root_reduce if hole < 2 * self.root_reduce else 0.0

    def _forward(self) -> None:
        copies = self._copies(gathered=1.0)
        self._note(
            "forward, last block", (1.0, 0.0), {"activations": self.kept + self.forward, **copies}, self.before, self._gathering()
        )
        norm = self.tokens * self.work.shape.dim * (FP32 + (BF16 if self.work.trained_root else 0.0))
        copies = {"gathered_weights": self.root + self._kept_copies(1.0)}
        self._note("loss", (1.0, 0.0), {"activations": self.kept + norm, "loss": self._loss(), **copies}, self.before)

    def _backward(self) -> None:
        head = BF16 * self.work.shape.head_matrix_parameters if self.work.trained_root else 0.0
        at_work = {"loss": head, "gradients": self.block_gradients}
        whole = self.layout.kept_blocks
        at_last = self.backward_kept if whole else self.backward
        last = {"activations": self.kept + at_last, **at_work, **self._copies(1.0)}
        self._note("backward, last block", (1.0, 0.0), last, self.before, self.block)
        # What a block's gradients were cast into is held until the next ones are: alone, a rank keeps it as their sum.
        kept = self.layout.ranks == 1 and not self.before
        cast = self.block_reduce
        if self.layers > 1:
            share = 1 - 1 / self.layers
            at_work_later = self.backward_kept if whole > 1 else self.backward
            later = {"activations": self.kept - self.kept_by_last + at_work_later, **at_work, **self._copies(share)}
            later |= {"gradients": self.block_gradients + cast} if kept else {"communication": cast}
            self._note("backward, a block later", (1.0, 1 / self.layers), later, self.before, self.block)
        if whole:
            share = whole / self.layers
            again = {"activations": (1 - share) * self.inputs + self.backward, **at_work, **self._copies(1 - share)}
            again |= {"gradients": self.block_gradients + cast} if kept else {"communication": cast}
            made = max(self.before, share * self.blocks_gradients)
            self._note("backward, first block made again", (1.0, min(share, 0.95)), again, made, self.block)
        first = {"activations": self.kept_by_one + self.backward, **at_work, **self._copies(0.0)}
        if not kept:
            first["communication"] = cast
        self._note("backward, first block", (1.0, 0.95), first, max(self.before, self.blocks_gradients))
        if self.work.trained_root:
            both = {"gradients": self.root_gradients, "communication": self.root_reduce}
            if kept:
                both = {"gradients": self.root_gradients + self.root_reduce}
            reduced = max(self.before, self.blocks_gradients)
            if self.shards == 1 and self.layout.ranks > 1:
                reduced = self.gradients + self.root_reduce  # replicated gradients are scaled through a copy
            self._note("backward, embedding and head", (1.0, 1.0), both, reduced)

    def _note(
        self, name: str, done: tuple[float, float], held: dict[str, float], gradients: float, gathering: float = 0.0
    ) -> None:
        if self.layout.ranks == 1:
            # All on one stream, and so in one pool.
            self.ledger.note(name, done, held | {"gradients": held.get("gradients", 0.0) + gradients})
            return
        pools = {"reduce": {"gradients": gradients}}
        if self.shards > 1 and gathering:
            pools["gather"] = {"communication": gathering}
        self.ledger.note(name, done, held, **pools)

    def _copies(self, gathered: float) -> dict[str, float]:
        """Return copies in compute precision while a block is at work; `gathered`: share of the other blocks still gathered."""
        return {"gathered_weights": self.root + max(self.block, self._kept_copies(gathered)) + self.scratch}

    def _kept_copies(self, share: float) -> float:
        """Return what other blocks' copies hold between a block's forward and backward pass.

        With only the optimizer's states sharded they stay gathered; a rank that holds all keeps what it cast, for its products.
        """
        gathered = self.layout.shard == "optimizer" and self.shards > 1
        cast = self.casts and self.shards == 1 and self.layout.recompute == "none"
        return share * self.all_blocks if gathered or cast else 0.0

    def _gathering(self) -> float:
        """Buffers of the gather stream: the last block's lives until the next one's has been copied out; and a cast share."""
        cast = 1 / self.shards if self.casts else 0.0
        return max(self.root * (1 + cast), max(self.root, self.block) + self.block * (1 + cast))

    def _loss(self) -> float:
        """Logits of a chunk, gradients of the last hidden states, and the head's: summed in fp32 over several chunks."""
        shape = self.work.shape
        chunk = min(loss_chunk(shape.vocab), self.tokens)
        # Beside capped logits lie their derivatives.
        logits = BF16 * chunk * shape.vocab * (2 if shape.family in CAPPED else 1)
        hidden = 2 * BF16 * self.tokens * shape.dim
        if not self.work.trained_root:
            return logits + hidden
        head = shape.head_matrix_parameters
        if chunk == self.tokens:
            return logits + hidden + BF16 * head
        return hidden + max(logits + FP32 * head, (FP32 + BF16) * head)


def _in_place(work: Workload) -> bool:
    """Whether bf16 weights are updated themselves; adapters always have fp32 ones."""
    return work.adapter is None and not work.master


def exchange(sums: Totals, layout: Layout, rig: Rig, c: HFConstants) -> Exchange:
    """Return what FSDP2 exchanges: weights gathered for each pass, gradients reduced after each; unsharded, gradients alone."""
    if layout.ranks == 1:
        return Exchange({}, 0.0)
    reduce = gradient_bytes(sums.work) * sums.trained
    # Of tokens that travel to experts all wait.
    travelling = {}
    if layout.expert > 1:
        passes = 3 if layout.recompute == "block" else 2
        travelling = {"expert parallel": layout.accumulation * passes * all_to_all_seconds(sums, layout, rig, c)}
    if layout.shard == "none":
        # Once a step, when its last backward pass is done.
        return Exchange({"communication": 2 * ring_seconds(reduce, layout.data, 1, rig, c)} | travelling, 0.0)
    # What is gathered is what computes: bf16 of trained weights, frozen ones as they are held.
    copies = 2.0 * sums.trained + sums.frozen
    passes = layout.accumulation * 2 if layout.shard == "full" else 1
    gathered = ring_seconds(copies, layout.data, 1, rig, c) * passes
    reduced = ring_seconds(reduce, layout.data, 1, rig, c) * layout.accumulation
    # The first block's weights and the last gradients have nothing to hide behind.
    alone = (ring_seconds(2.0 * sums.work.root_parameters, layout.data, 1, rig, c)) * (2 if reduce else 1)
    size = (copies * passes + reduce * layout.accumulation) * (layout.data - 1) / layout.data
    busy = size / (FAST_LINK_GBS * 1e9 * c.link_efficiency)
    return Exchange({"communication": gathered + reduced} | travelling, max(0.0, gathered + reduced - alone), busy)


def copied_bytes(sums: Totals, layout: Layout) -> float:
    """Return the bytes a micro-batch moves by copies: to compute precision, out of gathered buffers, gradients to be reduced."""
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
