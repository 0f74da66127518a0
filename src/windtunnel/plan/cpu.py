"""Fine-tuning on a CPU, as the layout search sees it: for scale models and tries before GPUs are rented; rough, in fp32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from windtunnel.recipe import Layout
from windtunnel.rig import Rig

from .constants import HFConstants
from .hf_layouts import even_micro_batches
from .hf_work import STATE_BYTES, Totals
from .memory import FP32, Ledger, Memory, around
from .search import Found, Promising, search
from .steptime import StepTime

# Of the speed of large fp32 products.
EFFICIENCY = 0.4
DEFAULT_GFLOPS = 50.0
LARGEST_MICRO = 16
ERRORS = {"memory": 0.5, "time": 2.0}


@dataclass(frozen=True)
class CPUTraining:
    """Optimizer steps of a Hugging Face model on one CPU rank (see search.Trainable)."""

    sums: Totals
    c: HFConstants

    preferred_first = True

    @property
    def step_tokens(self) -> int:
        """Return the tokens of a step, whatever the layout: nothing is compiled for one length, so none is padding."""
        return self.sums.work.batch_tokens

    def layouts(self, rig: Rig, ranks: int, promising: Promising) -> Iterator[Layout]:
        """Yield micro-batches that a step can be taken in, the largest first; what the recipe asks for, as far as it goes."""
        work = self.sums.work
        share = max(1, -(-work.batch_tokens // work.sequence))
        # Large ones first: a CPU's products are the faster the larger they are, and equal ones take the first.
        sizes = even_micro_batches(work, share, min(share, work.micro_batch or LARGEST_MICRO))
        if work.micro_batch:
            sizes = [min(share, work.micro_batch)] if work.uneven else sizes[-1:]
        for micro in reversed(sizes):
            yield Layout(1, micro, -(-share // micro), work.sequence, "fp32", False, "cpu", shard="full")

    def least_gib(self, layout: Layout) -> float:
        """Return 0: kinds of layout are too few to leave any out."""
        return 0.0

    def memory(self, layout: Layout) -> Memory:
        """Return the memory of the backward pass: all in fp32, so twice what blocks keep in bf16, and logits."""
        work, tokens = self.sums.work, layout.micro_tokens
        # Experts that stay in fp8 are never widened as a whole: they are decoded a few at a time.
        in_fp32 = work.shape.parameters - (work.shape.expert_parameters if work.shares_experts else 0)
        ledger = Ledger(
            {
                "weights": FP32 * (in_fp32 + (work.trained if work.adapter else 0)) + self.sums.resident,
                "gradients": FP32 * work.trained,
                "optimizer_states": STATE_BYTES[work.states] * work.trained,
            }
        )
        # Logits and their gradient are there at once, 4 bytes each.
        held = {"activations": 2 * self.sums.whole * tokens, "loss": 8.0 * work.shape.vocab * tokens}
        ledger.note("backward pass", (1.0, 0.5), held)
        if work.answers is not None:
            ledger.note("answering", (1.0, 1.0), work.answering_bytes(1, FP32))
        return Memory(ledger, around(layout, self.c), 0.0, 0.0)

    def time(self, layout: Layout, rig: Rig) -> StepTime:
        """Return the seconds that the products take."""
        peak = (rig.cpu_gflops or DEFAULT_GFLOPS) * 1e9
        seconds = self.sums.work.flops_per_token * self.step_tokens / (EFFICIENCY * peak)
        return StepTime(seconds, {"matrix products": seconds}, 0.0, seconds / 3, 2 * seconds / 3, 0.0, peak)

    def host_gib(self, layout: Layout, rig: Rig) -> float:
        """Return nothing: all of it is the rank's."""
        return 0.0

    def limit_gib(self, rig: Rig) -> float:
        """Return the GiB of memory that the rank may use."""
        return self.c.cpu_usable_share * rig.ram_gib

    def search(self, rig: Rig, ranks: int) -> Found:
        """Choose the largest micro-batch that fits."""
        found = search(self, rig, 1)
        assert found is not None
        return found
