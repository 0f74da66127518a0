"""The engine of Hugging Face causal language models: all weights or an adapter, by AdamW, on one rank or sharded by FSDP2."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from windtunnel.checkpoint import Slice
from windtunnel.data import Batch
from windtunnel.evaluate import Validation, validation_loss
from windtunnel.recipe import Layout, Schedule

from ..engine import EngineState, Feed, Mark, Moment, Parameters, Pending, adopt, nothing, row_offset
from ..ranks import Ranks
from ..schedule import learning_rate_scale
from .network import Network
from .optimizer import AdamW
from .shards import OneBuffer, Sharded, use_one_stream


class HFJob:
    """What `build_hf` makes. Its steps never wait for the device.

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
        self,
        batches: Iterable[Iterable[Tensor]],
        batch_tokens: int,
        learning_rate: float,
        mark: Mark | None = None,
        before_update: Callable[[], None] = nothing,
    ) -> Tensor:
        """Forward and backward over this rank's micro-batches, then the update.

        Losses are summed over targets and divided by the tokens of the whole batch, so that gradients add
        up to the same whatever the ranks and micro-batches.

        Args:
            batches: this rank's `Batch`es, or (tokens, targets), each (micro_batch, sequence) on its device; targets < 0 are
                skipped.
            batch_tokens: tokens of the step over all ranks.
            mark: called on the host after each 'forward', 'backward' and 'optimizer'.
            before_update: called when the gradients are complete.

        Returns:
            (3,) fp64 on the device, over all ranks: sum of losses in nats, targets, squared gradient norm before clipping.
        """
        tell = mark or _ignore
        sums = torch.zeros(3, dtype=torch.float64, device=self.ranks.device)
        for batch, last in _with_last(batches):
            if self._keep_gathered:
                assert isinstance(self.network, FSDPModule)
                self.network.set_reshard_after_backward(last)
            tokens, targets, packed = _given(batch)
            total = self.network(tokens, targets, **packed)[1]
            if self.ranks.world == 1:
                use_one_stream(self.network)
            tell("forward")
            (total * (1.0 / batch_tokens)).backward()
            assert all(buffer.paired for buffer in self._buffers), "FSDP2 allocates otherwise: gradients may share memory"
            tell("backward")
            sums[0] += total.detach()
            sums[1] += (targets >= 0).sum()
        before_update()
        sums[2] = self.optimizer.step(learning_rate)
        if self.ranks.world > 1:
            dist.all_reduce(sums[:2])
        tell("optimizer")
        return sums

    def reshard(self) -> None:
        """Drop what a forward pass left gathered: it is in the products' dtype, not the weights' own."""
        for module in self.network.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        """Return the parameters that are trained, by transformers' names."""
        return {name: p for name, p in self.network.model.named_parameters() if p.requires_grad}

    @property
    def sharded(self) -> bool:
        """Return whether each rank has a part of its own, not a copy."""
        return self._sharded.group is not None

    def close(self) -> None:
        """Leave the process group, if it was made for this job alone."""
        if self._sharded.owns_process_group and dist.is_initialized():
            dist.destroy_process_group()


class HFEngine:
    """Steps of a Hugging Face model; see `Engine`.

    What random numbers a step draws (for dropout and for rounding) depends on the seed, the step and the rank alone, so
    that none need be saved.

    Args:
        job: as `build_hf` makes it.
        rate: peak learning rate.
        weights: fills the parameters as they are at step 0.
    """

    def __init__(
        self, layout: Layout, ranks: Ranks, feed: Feed, job: HFJob, *, rate: float, schedule: Schedule, seed: int,
        weights: Callable[[], None],
    ) -> None:  # fmt: skip
        self.layout, self.feed, self.job, self.schedule = layout, feed, job, schedule
        self.parameters = job.parameters
        self.before_update: Callable[[], None] = nothing
        self._ranks, self._rate, self._seed, self._weights = ranks, rate, seed, weights
        gc.collect()
        gc.freeze()  # the collector need not look at long-lived objects again and stall a step

    def step(self, step: int, progress: float, since: Pending | None = None, mark: Mark | None = None) -> Pending:
        """Take one step; see `Engine.step`."""
        torch.manual_seed(_draws(self._seed, step, self._ranks.rank))
        rate = self._rate * learning_rate_scale(self.schedule, step - 1, progress)
        began = Moment(self._ranks.device)
        sums = self.job.step(self._batches(), self.layout.batch_tokens, rate, mark, self.before_update)
        return Pending(step, sums, began, since)

    def _batches(self) -> Iterator[Batch]:
        for _ in range(self.feed.batches.accumulation):
            yield self.feed.batches.next_batch()

    def validate(self) -> Validation:
        """Score the held-out micro-batches, without dropout."""
        scorer: Any = _Scorer(self.job.network)
        return validation_loss(scorer, self.feed.validation(), self.feed.token_bytes, self._ranks.device)

    def state_dict(self) -> EngineState:
        """Return trained weights and their moments; what is frozen is where the model came from."""
        self.job.reshard()
        trained, sharded = self.job.trained, self.job.sharded
        tensors: dict[str, Tensor | Slice] = {f"model.{name}": p.detach() for name, p in trained.items()}
        for key, tensor in self.job.optimizer.states():
            name, kind = key.rsplit(".", 1)
            if not sharded:
                tensors[f"optimizer.{kind}.{name}"] = tensor
            elif kind.endswith("_scale"):
                # Codes of 256 numbers share one: they are of this rank's shard and of no other.
                mine = f"{kind}@{self._ranks.rank}-of-{self._ranks.world}"
                tensors[f"optimizer.{mine}.{name}"] = Slice(tensor, (tensor.numel(),), 0)
            else:
                tensors[f"optimizer.{kind}.{name}"] = Slice(tensor, tuple(trained[name].shape), row_offset(trained[name]))
        facts = {"position": self.feed.batches.position, "updates": self.job.optimizer.steps}
        return EngineState(tensors, facts)

    @torch.no_grad()
    def load_state_dict(self, state: EngineState) -> None:
        """Take over weights, moments and position."""
        adopt(self.state_dict(), state)
        self.job.optimizer.steps = int(state.facts["updates"])
        self.feed.batches.seek(int(state.facts["position"]))

    @torch.no_grad()
    def start_over(self, position: int) -> None:
        """Return to the weights of step 0 and empty moments."""
        self.job.reshard()
        self._weights()
        for _, tensor in self.job.optimizer.states():
            tensor.zero_()
        self.job.optimizer.steps = 0
        self.feed.batches.seek(position)

    def export(self, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """Yield every weight by its name in Hugging Face's files, adapters merged; one block is whole at a time."""
        from .weights import hub_weights

        return hub_weights(self.job, dtype)

    def close(self) -> None:
        """End the batches' thread and leave the process group, if it was made for this engine."""
        self.feed.batches.close()
        self.job.close()


class _Scorer:
    """A network as `validation_loss` calls it."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.train, self.eval = network.train, network.eval

    @property
    def training(self) -> bool:
        return self._network.training

    def score(self, batch: Batch) -> Tensor:
        """Return the nats of each target (B, T), 0 where there is none."""
        tokens, targets, packed = _given(batch)
        losses: Tensor = self._network(tokens, targets, **packed)[0]
        return losses


def _given(batch: Iterable[Tensor]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Return tokens, targets and, of a packed batch, positions and documents."""
    if not isinstance(batch, Batch) or batch.plain:
        tokens, targets = batch
        return tokens, targets, {}
    assert batch.weights is None, "targets are not weighed by this engine"
    assert batch.position_ids is not None
    assert batch.document_ids is not None
    return batch.input_ids, batch.targets, {"positions": batch.position_ids, "documents": batch.document_ids}


def _draws(seed: int, step: int, rank: int) -> int:
    """Return the seed of a step's random numbers."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{step}/{rank}".encode(), digest_size=8).digest()) >> 1


def _with_last(batches: Iterable[Iterable[Tensor]]) -> Iterator[tuple[Iterable[Tensor], bool]]:
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
