"""Fine-tuning of a causal language model on one rank: network, optimizer, and a step of both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from ..ranks import Ranks
from .network import Network
from .optimizer import AdamW
from .reduction import OneBuffer
from .shards import Sharded, use_one_stream

Batch = Iterable[Tensor]


@dataclass(frozen=True)
class Parameters:
    """Counts over all ranks; what is tied counts once."""

    total: int
    trained: int


class CausalJob:
    """What `build_causal` makes. Its steps never wait for the device.

    Attributes:
        network: sharded; called with tokens and targets (B, T) it gives losses and their differentiable sum.
        optimizer: AdamW over the trained parameters.
        parameters: how many there are.
    """

    def __init__(
        self, network: Network, optimizer: AdamW, parameters: Parameters, ranks: Ranks, sharded: Sharded,
        buffers: Sequence[OneBuffer], *, keep_gathered: bool,
    ) -> None:  # fmt: skip
        self.network, self.optimizer, self.parameters, self.ranks = network, optimizer, parameters, ranks
        self._sharded, self._buffers, self._keep_gathered = sharded, buffers, keep_gathered

    def step(
        self, batches: Iterable[Batch], batch_tokens: int, learning_rate: float, mark: Callable[[str], None] | None = None
    ) -> Tensor:
        """Forward and backward over this rank's micro-batches, then the update.

        Losses are summed over targets and divided by the tokens of the whole batch, so that gradients add
        up to the same whatever the ranks and micro-batches.

        Args:
            batches: this rank's (tokens, targets), each (micro_batch, sequence) on its device; targets < 0 are skipped.
            batch_tokens: tokens of the step over all ranks.
            mark: called on the host after each 'forward', 'backward' and 'optimizer'.

        Returns:
            (3,) fp64 on the device, over all ranks: sum of losses in nats, targets, squared gradient norm before clipping.
        """
        tell = mark or _ignore
        sums = torch.zeros(3, dtype=torch.float64, device=self.ranks.device)
        for (tokens, targets), last in _with_last(batches):
            if self._keep_gathered:
                assert isinstance(self.network, FSDPModule)
                self.network.set_reshard_after_backward(last)
            total = self.network(tokens, targets)[1]
            if self.ranks.world == 1:
                use_one_stream(self.network)
            tell("forward")
            (total * (1.0 / batch_tokens)).backward()
            assert all(buffer.paired for buffer in self._buffers), "FSDP2 allocates otherwise: gradients may share memory"
            tell("backward")
            sums[0] += total.detach()
            sums[1] += (targets >= 0).sum()
        sums[2] = self.optimizer.step(learning_rate)
        if self.ranks.world > 1:
            dist.all_reduce(sums[:2])
        tell("optimizer")
        return sums

    def close(self) -> None:
        """Leave the process group, if it was made for this job alone."""
        if self._sharded.owns_process_group and dist.is_initialized():
            dist.destroy_process_group()


def _with_last(batches: Iterable[Batch]) -> Iterator[tuple[Batch, bool]]:
    """Each batch, and whether it is the last."""
    iterator = iter(batches)
    try:
        current = next(iterator)
    except StopIteration:
        return
    for following in iterator:
        yield current, False
        current = following
    yield current, True


def _ignore(phase: str) -> None:
    """Nobody listens."""
