"""The engine of Hugging Face causal language models: all weights or an adapter, by AdamW, on one rank or sharded by FSDP2."""

from __future__ import annotations

import gc
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from windtunnel.checkpoint import Slice
from windtunnel.data import Batch
from windtunnel.evaluate import Validation, validation_loss
from windtunnel.model import CudaRecorder, Replay
from windtunnel.recipe import Layout, Schedule

from ..engine import EngineState, Feed, Mark, Moment, Parameters, Pending, adopt, nothing, row_offset
from ..ranks import Ranks
from ..schedule import learning_rate_scale
from ..shards import reshard, sum_gradients
from .attention import Packed
from .loss import TokenObjective
from .network import Network
from .optimizer import AdamW

# Each takes some of the device's memory for its list of kernels, beside the pool that all share.
MOST_RECORDINGS = 16


class HFJob:
    """What `build_hf` makes. Its steps never wait for the device.

    Attributes:
        network: sharded; called with tokens and targets (B, T) it gives losses and their differentiable sum.
        optimizer: AdamW over the trained parameters.
        parameters: how many there are.
        sharded: each rank has a part of its own, not a copy.

    Args:
        recorded: the passes of a micro-batch are recorded as CUDA graphs; gradients then stay where they are.
    """

    def __init__(
        self, network: Network, optimizer: AdamW, parameters: Parameters, ranks: Ranks, *, sharded: bool, keep_gathered: bool,
        recorded: bool = False,
    ) -> None:  # fmt: skip
        self.network, self.optimizer, self.parameters, self.ranks = network, optimizer, parameters, ranks
        self.sharded, self._keep_gathered = sharded, keep_gathered
        recorder = CudaRecorder("stages.sft") if recorded else None
        # Whatever is not recorded runs in the recordings' memory, or both would be held side by side.
        self._run = Replay() if recorder is None else Replay(recorder, MOST_RECORDINGS, recorder.launch)
        # What is recorded adds to the same sums at every step.
        self._sums = torch.zeros(4, dtype=torch.float64, device=ranks.device)

    def step(
        self,
        batches: Iterable[Iterable[Tensor]],
        batch_tokens: int,
        learning_rate: float,
        mark: Mark | None = None,
        before_update: Callable[[], None] = nothing,
    ) -> Tensor:
        """Go forward and backward over this rank's micro-batches, then update.

        The gradient is that of the mean loss over the targets of the whole step, whatever the ranks and micro-batches
        they are in. How many there are is known only when all have been seen; so gradients add up unscaled but for a
        power of two, which costs no bit, and the optimizer multiplies them by what is missing. Of batches with an objective
        the sum is divided by that of their shares.

        Args:
            batches: this rank's `Batch`es, or (tokens, targets), each (micro_batch, sequence) on its device; targets < 0 are
                skipped.
            batch_tokens: tokens of the step over all ranks.
            learning_rate: of this update.
            mark: called on the host after each 'forward', 'backward' and 'optimizer'. What is recorded goes by as a whole: a
                marked step is not, and no step after it.
            before_update: called when the gradients are complete.

        Returns:
            (4,) fp64 on the device, over all ranks: sum of factor times loss in nats, sum of factors (of targets, where they
            have none) or shares, squared norm of the mean loss's gradient before clipping, targets.
        """
        if mark is not None:
            self._run = Replay()
        tell = mark or nothing
        # About one over the step's tokens, so that gradients are as small as a mean's.
        unit = 2.0 ** -math.ceil(math.log2(batch_tokens))
        sums = self._sums.zero_()
        for batch, last in _with_last(batches):
            # Weights stay gathered from one micro-batch to the next, and are let go after the last.
            if self._keep_gathered:
                assert isinstance(self.network, FSDPModule)
                self.network.set_reshard_after_backward(last)
            self._go_through(batch, unit, tell)
        if self.ranks.world > 1:
            dist.all_reduce(sums)
            if not self.sharded:
                # FSDP2 has summed the gradients of sharded models in the backward pass.
                sum_gradients(self.trained.values())
        before_update()
        # Without any target nothing is learned: the factor is 0.
        factor = torch.where(sums[1] > 0, 1.0 / (unit * sums[1]), 0.0)
        sums[2] = self.optimizer.step(learning_rate, factor.float())
        tell("optimizer")
        return sums.clone()

    def _go_through(self, batch: Iterable[Tensor], unit: float, tell: Mark) -> None:
        """Go forward and backward over a micro-batch, recorded where that is asked for, and add to the sums."""
        (tokens, targets), more = self.network.given(batch)
        packed: Packed | None = more.get("packed")
        known = {
            "tokens": tokens, "targets": targets, "positions": more.get("positions"), "factors": more.get("factors"),
            "rows": more.get("rows"), "starts": None if packed is None else packed.starts,
        }  # fmt: skip
        tensors = {name: tensor for name, tensor in known.items() if tensor is not None}

        # Recorded work reads its inputs where they were the first time: all that changes from batch to batch is an argument.
        def passes(*given: Tensor) -> None:
            here: dict[str, Any] = dict(zip(tensors, given, strict=True))
            starts, rest = here.pop("starts", None), {name: value for name, value in more.items() if name not in here}
            if packed is not None:
                rest["packed"] = replace(packed, starts=starts)
            self._passes(**here, **rest, unit=unit, tell=tell)

        # Part of the key: kernels are launched for so many documents of such a length, and a recording repeats that.
        extent = None if packed is None or packed.extent is None else tuple(packed.extent.tolist())
        # An objective is another one for each micro-batch.
        (Replay() if "objective" in more else self._run)(("passes", unit, extent), passes, *tensors.values())

    def _passes(
        self, tokens: Tensor, targets: Tensor, *, unit: float, tell: Mark, factors: Tensor | None = None,
        objective: TokenObjective | None = None, **more: Any,
    ) -> None:  # fmt: skip
        total = self.network(tokens, targets, factors=factors, objective=objective, **more)[1]
        tell("forward")
        (total * unit).backward()
        tell("backward")
        there, sums = targets >= 0, self._sums
        count = there.sum()
        sums[0] += total.detach()
        if objective is not None:
            sums[1] += objective.share
        else:
            sums[1] += count if factors is None else torch.where(there, factors, 0.0).sum(dtype=torch.float64)
        sums[3] += count

    def reshard(self) -> None:
        """Drop what a forward pass left gathered: it is in the products' dtype, not the weights' own."""
        reshard(self.network)

    @torch.no_grad()
    def score(self, batches: Iterable[Batch]) -> Iterator[Tensor]:
        """Yield the log-probability of each target (B, T) fp32 on the device, 0 where there is none, batch by batch.

        All ranks must call it together. As in a training step, but that nothing is dropped out.
        """
        training = self.network.training
        self.network.eval()
        try:
            for batch in batches:
                (tokens, targets), more = self.network.given(batch)
                losses: Tensor = self.network(tokens, targets, **(more | {"objective": None}))[0]
                yield -losses
        finally:
            self.network.train(training)

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        """Return the parameters that are trained, by transformers' names."""
        return {name: p for name, p in self.network.model.named_parameters() if p.requires_grad}


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
        began = Moment(self._ranks.device)
        sums = self.update(self._batches(), step, progress, mark)
        return Pending(step, sums, began, since)

    def update(self, batches: Iterable[Batch], step: int, progress: float, mark: Mark | None = None, part: int = 0) -> Tensor:
        """Take an optimizer step on given batches; see `HFJob.step`.

        Args:
            batches: this rank's micro-batches.
            step: number of this step, counted from 1.
            progress: share of the run done before it, 0 to 1.
            mark: told each phase; see `HFJob.step`.
            part: of the step, counted from 0, where it has several updates.
        """
        # From the step's number alone: a resumed run draws what the killed one would have drawn, with no state to save.
        torch.manual_seed(seed_of(self._seed, step, self._ranks.rank, *([part] if part else [])))
        rate = self._rate * learning_rate_scale(self.schedule, step - 1, progress)
        return self.job.step(batches, self.layout.batch_tokens, rate, mark, self.before_update)

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
                # In the weight's shape, as several ranks write it, so that either goes on with the other's checkpoint.
                whole = tensor if kind.endswith("_scale") else tensor.view(trained[name].shape)
                tensors[f"optimizer.{kind}.{name}"] = whole
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
        """End the batches' thread."""
        self.feed.batches.close()


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
        (tokens, targets), more = self._network.given(batch)
        losses: Tensor = self._network(tokens, targets, **more)[0]
        return losses


def seed_of(*parts: object) -> int:
    """Return the seed of random numbers that belong to these parts, and to nothing else, whatever was drawn before."""
    name = "/".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) >> 1  # PyTorch takes 63 bits


def _with_last(batches: Iterable[Iterable[Tensor]]) -> Iterator[tuple[Iterable[Tensor], bool]]:
    """Yield each batch, and whether it is the last."""
    iterator = iter(batches)
    try:
        current = next(iterator)
    except StopIteration:
        return
    for following in iterator:
        yield current, False
        current = following
    yield current, True
