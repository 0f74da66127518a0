"""Sums over a model's blocks that every layout's memory and time are made of; made once for a search."""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.model import Block

from .activations import Kept, kept
from .workload import Workload


@dataclass(frozen=True)
class Kind:
    """Blocks that are alike: how many, what one keeps per token, its trained parameters and its frozen bytes.

    The routed experts' part of trained parameters and frozen bytes stands apart: expert parallelism divides only that.
    """

    block: Block
    count: int
    kept: Kept
    trained: int
    trained_experts: int
    frozen: float
    frozen_experts: float
    largest_matrix: int

    @property
    def copied(self) -> float:
        """Bytes of the block as it computes: bf16 of what is trained, frozen weights as they are held."""
        return 2.0 * (self.trained + self.trained_experts) + self.frozen + self.frozen_experts


@dataclass(frozen=True)
class Totals:
    """A workload's blocks by kind, and sums over all layers."""

    work: Workload
    kinds: tuple[Kind, ...]
    trained: int
    frozen: float
    inputs: float
    whole: float

    @property
    def largest(self) -> Kind:
        """The kind whose copy takes most memory."""
        return max(self.kinds, key=lambda kind: kind.copied)


def totals(work: Workload) -> Totals:
    """Sum up a workload."""
    kinds = []
    for block, count in work.kinds.items():
        experts = 0 if work.adapter else block.expert_parameters
        kinds.append(
            Kind(
                block=block,
                count=count,
                kept=kept(block, work),
                trained=work.trained_in(block) - experts,
                trained_experts=experts,
                frozen=work.frozen_bytes(block, experts=False),
                frozen_experts=work.frozen_bytes(block, experts=True),
                largest_matrix=work.largest_matrix(block),
            )
        )
    root_frozen = 2.0 * work.root_parameters if work.adapter else 0.0
    return Totals(
        work=work,
        kinds=tuple(kinds),
        trained=work.trained,
        frozen=root_frozen + sum(k.count * (k.frozen + k.frozen_experts) for k in kinds),
        inputs=sum(k.count * k.kept.entry for k in kinds),
        whole=sum(k.count * k.kept.whole for k in kinds),
    )
