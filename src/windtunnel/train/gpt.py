"""The engine of our own GPT, plain or recursive: Muon and AdamW, their states sharded over data-parallel ranks (ZeRO-2).

Where the layout says so weights and gradients are sharded too; see `gpt_shards`.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from windtunnel.data import Batch, Batches
from windtunnel.evaluate import Validation, validation_loss
from windtunnel.model import (
    GPT,
    CudaRecorder,
    HyperParameters,
    Objective,
    RecursiveGPT,
    Replay,
    SupervisedSums,
    Supervision,
    build_model,
    derive,
    deterministic,
    objective_of,
    recipe_shape,
)
from windtunnel.recipe import Layout, Recipe

from .engine import COMPUTE, EngineState, Feed, Mark, Moment, Parameters, Pending, Reading, Supervised, adopt, nothing, read_plain
from .optimizer import MuonAdamW
from .ranks import Ranks
from .schedule import scalars


def build(recipe: Recipe, layout: Layout, ranks: Ranks, vocab: int) -> tuple[HyperParameters, GPT, MuonAdamW]:
    """Return learning rates, model and optimizer on this rank's device, compiled as the layout says."""
    assert recipe.gpt.depth != "auto"
    if ranks.device.type == "cuda":
        deterministic(recipe.pretrain.deterministic)
    # In fp32 every bit counts; else fp32 products, such as the head's gradient, may round to TF32.
    torch.set_float32_matmul_precision("highest" if layout.precision == "fp32" else "high")
    rates = derive(recipe, vocab)
    shape, sharded = recipe_shape(recipe, vocab), is_sharded(layout)
    if sharded:
        from .gpt_shards import build_sharded  # imports FSDP2, which takes seconds

        assert not layout.recorded
        model = build_sharded(shape, ranks, COMPUTE[layout.precision], recipe.seed)
    else:
        model = build_model(
            shape, device=ranks.device, compute=COMPUTE[layout.precision], seed=recipe.seed, recompute=layout.recompute
        )
    if layout.precision == "fp8":
        from windtunnel.model import enable_fp8, enable_gathered_fp8  # its kernels need a GPU's packages

        (enable_gathered_fp8 if sharded else enable_fp8)(model)
    optimizer = MuonAdamW(
        model, rates, rank=ranks.rank, world=ranks.world, compiled=layout.compile,
        clip=recipe.pretrain.optimizer.clip, ema=recipe.trm.ema if recipe.trm else None, sharded=sharded,
    )  # fmt: skip
    if layout.compile and not sharded:  # one graph of all blocks has no place for gathering them one by one
        model.compile()
    return rates, model, optimizer


def is_sharded(layout: Layout) -> bool:
    """Return whether ranks hold parts of weights and gradients; one rank has nobody to share with."""
    return layout.shard == "full" and layout.ranks > 1


@dataclass(frozen=True)
class Work:
    """What a step's loss works with: this rank's model, optimizer and batches, and the tokens of a step over all ranks."""

    model: GPT
    optimizer: MuonAdamW
    batches: Batches
    batch_tokens: int

    def take(self) -> Iterator[Batch]:
        """Yield the micro-batches of one step."""
        for _ in range(self.batches.accumulation):
            yield self.batches.next_batch()


class GPTEngine:
    """Steps of a GPT; see `Engine`. After construction parameters and gradients live in the optimizer's buffers.

    Args:
        recipe: its schedule, momentum and seed.
        layout: how the work is spread.
        ranks: this one and the others.
        feed: what it is fed with.
        rates, model, optimizer: as `build` makes them.
    """

    def __init__(
        self, recipe: Recipe, layout: Layout, ranks: Ranks, feed: Feed, rates: HyperParameters, model: GPT, optimizer: MuonAdamW
    ) -> None:
        self.layout, self.feed, self.model, self.optimizer = layout, feed, model, optimizer
        self.schedule = recipe.pretrain.schedule
        self.parameters = Parameters(model.shape.parameters, model.shape.parameters)
        self.before_update: Callable[[], None] = nothing
        self._ranks, self._seed = ranks, recipe.seed
        self._momentum, self._decay = recipe.pretrain.optimizer.momentum, rates.weight_decay.value
        self._loss: PlainLoss | SupervisedLoss = PlainLoss(Replay(CudaRecorder() if layout.recorded else None))
        if recipe.trm is not None:
            assert isinstance(model, RecursiveGPT)
            self._loss = SupervisedLoss(model, objective_of(recipe.trm.resolved), recorded=layout.recorded)
        self._token_bytes = torch.as_tensor(feed.token_bytes)
        gc.collect()
        gc.freeze()  # the collector need not look at long-lived objects again and stall a step

    def step(self, step: int, progress: float, since: Pending | None = None, mark: Mark | None = None) -> Pending:
        """Take one step; see `Engine.step`.

        Losses are summed over targets and divided by the tokens of the whole batch, so that gradients add up to the
        same whatever the ranks and micro-batches.
        """
        now = scalars(self.schedule, momentum=self._momentum, weight_decay=self._decay, step=step - 1, progress=progress)
        work = Work(self.model, self.optimizer, self.feed.batches, self.layout.batch_tokens)

        def update(tell: Mark) -> Tensor:
            tell("backward")
            square = self.optimizer.step(now, self.before_update)
            tell("optimizer")
            return square

        began = Moment(self._ranks.device)
        sums, read = self._loss(work, update, mark)
        if self._ranks.world > 1:
            dist.all_reduce(sums)
        return Pending(step, sums, began, since, read)

    def validate(self) -> Validation:
        """Score the held-out micro-batches; with the averaged weights, where these are kept."""
        self.before_update()  # weights are exchanged with their averages
        with self.optimizer.averaged():
            return validation_loss(self.model, self.feed.validation(), self._token_bytes, self._ranks.device)

    def state_dict(self) -> EngineState:
        """Return weights (their averages, where these are kept), this rank's optimizer states and the data's position."""
        facts = {"position": self.feed.batches.position, "updates": self.optimizer.adamw_steps}
        return EngineState(self.optimizer.state_dict(), facts)

    @torch.no_grad()
    def load_state_dict(self, state: EngineState) -> None:
        """Take over weights, states and position."""
        if is_sharded(self.layout):
            from .shards import reshard

            # What the last pass left gathered is in the products' dtype and would not follow the weights that are loaded.
            reshard(self.model)
        adopt(self.state_dict(), state)
        self.optimizer.adamw_steps = int(state.facts["updates"])
        self.optimizer.loaded()
        self.model.weights_changed()
        self.feed.batches.seek(int(state.facts["position"]))

    def start_over(self, position: int) -> None:
        """Return to initial weights and empty states."""
        if is_sharded(self.layout):
            from .gpt_shards import initialise_shards

            initialise_shards(self.model, self._seed)
        else:
            self.model.initialise(self._seed)
        self.optimizer.start_over()
        self.feed.batches.seek(position)

    @torch.no_grad()
    def export(self, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights, averaged where averages are kept."""
        with self.optimizer.averaged():
            for name, weight in self._weights():
                if self._ranks.first:
                    yield name, weight.to("cpu", dtype, copy=True)

    def close(self) -> None:
        """End the batches' thread."""
        self.feed.batches.close()

    def _weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every weight, whole; all ranks must iterate to the end together."""
        if is_sharded(self.layout):
            from .gpt_shards import whole_weights

            yield from whole_weights(self.model)
        else:
            yield from ((name, parameter.detach()) for name, parameter in self.model.named_parameters())


def build_gpt_engine(recipe: Recipe, layout: Layout, ranks: Ranks, feed: Feed) -> GPTEngine:
    """Return the engine of a recipe, its depth a number, with random weights."""
    return GPTEngine(recipe, layout, ranks, feed, *build(recipe, layout, ranks, feed.vocab))


Update = Callable[[Mark], Tensor]
"""Updates the weights and returns this rank's part of the squared gradient norm."""


class PlainLoss:
    """Cross-entropy of a plain GPT.

    Args:
        run: runs the passes of a micro-batch; see `windtunnel.model.recording`.
    """

    def __init__(self, run: Replay | None = None) -> None:
        self._run = run or Replay()
        # What is recorded adds to the same sums at every step.
        self._sums: Tensor | None = None

    def __call__(self, work: Work, update: Update, mark: Mark | None) -> tuple[Tensor, Reading]:
        """Go forward and backward over the micro-batches, then update; return the step's sums and how to read them.

        What is recorded goes by as a whole: a marked step is not, and no step after it.
        """
        if mark is not None:
            self._run = Replay()
        # Marks end phases: the backward pass of a micro-batch is over when the next one begins, or the update.
        tell, again = mark or nothing, False
        if self._sums is None:
            self._sums = torch.zeros(3, dtype=torch.float64, device=work.model.head.weight.device)
        self._sums.zero_()

        def passes(x: Tensor, y: Tensor) -> None:
            assert self._sums is not None
            loss = work.model(x, y, reduction="sum")
            tell("forward")
            (loss * (1.0 / work.batch_tokens)).backward()
            # On the device, in fp64: nothing is read by the host before the step has ended.
            self._sums[0] += loss.detach()
            self._sums[1] += (y >= 0).sum()

        for x, y in work.take():
            if again:
                tell("backward")
            again = True
            work.model.refresh()  # what is recorded finds weights quantised
            self._run("passes", passes, x, y)
        self._sums[2] = update(tell)
        return self._sums.clone(), read_plain


class SupervisedLoss:
    """The loss of a recursive GPT: every supervision step of a batch is scored; the weights follow once or after each.

    All updates of a step have the same learning rates: the schedule goes by batches.

    Args:
        recorded: the work of a micro-batch is recorded as a CUDA graph; the model is on a GPU.
    """

    def __init__(self, model: RecursiveGPT, objective: Objective, *, recorded: bool = False) -> None:
        self._model, self._objective, self._recorded = model, objective, recorded
        self._work: Supervision | None = None

    def __call__(self, work: Work, update: Update, mark: Mark | None) -> tuple[Tensor, Reading]:
        """Do as `PlainLoss`. What is recorded goes by as a whole: a marked step is not, and no step after it."""
        # A recorded graph has no place in it at which a phase could be told.
        if mark is not None and self._recorded:
            self._recorded, self._work = False, None
        tell = mark or nothing
        squares: list[Tensor] = []

        def update_now(_: int) -> None:
            squares.append(update(tell))

        each = self._objective.updates == "each"
        with _marked_backward(mark) if mark is not None else contextlib.nullcontext():
            found = self._supervision(1.0 / work.batch_tokens).step(work.take(), update_now if each else None)
        if not each:
            update_now(0)
        return _packed(found, squares), _reading(len(self._objective.weights), len(squares), self._model.recursion.halting)

    def _supervision(self, scale: float) -> Supervision:
        """Return the work that is kept from step to step: what is recorded works on its sums."""
        if self._work is None:
            replay = Replay(CudaRecorder() if self._recorded else None)
            self._work = Supervision(self._model, self._objective, scale, replay)
        return self._work


@contextlib.contextmanager
def _marked_backward(mark: Mark) -> Iterator[None]:
    """Mark the backward passes of a model that goes backward several times between its forward passes."""
    true = Tensor.backward

    def backward(loss: Tensor, *arguments: Any, **keywords: Any) -> None:
        mark("forward")
        true(loss, *arguments, **keywords)
        mark("backward")

    Tensor.backward = backward  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        Tensor.backward = true  # type: ignore[method-assign]


def _packed(found: SupervisedSums, squares: list[Tensor]) -> Tensor:
    """Put everything into one float64 vector: one reduction, one copy to the host."""
    sequences = found.targets.new_full((1,), float(found.sequences))
    alone = torch.stack([found.targets.double(), found.objective.double(), *(square.double() for square in squares)])
    return torch.cat([alone, found.losses, found.halting, found.judged, found.solved, sequences])


def _reading(steps: int, updates: int, halting: bool) -> Reading:
    def read(sums: list[float]) -> tuple[float, float, Supervised]:
        # A batch without any target has a loss of 0, not NaN.
        targets, objective = max(sums[0], 1.0), sums[1]
        squares, rest = sums[2 : 2 + updates], sums[2 + updates :]
        losses = tuple(nats / targets for nats in rest[:steps])
        norms = tuple(square**0.5 for square in squares)
        supervised = Supervised(losses, objective / targets, norms if updates > 1 else ())
        if halting:
            entropy, right, solved = (rest[i * steps : (i + 1) * steps] for i in (1, 2, 3))
            sequences = max(rest[-1], 1.0)
            head = sum(entropy) / (steps * sequences), sum(right) / (steps * sequences)
            supervised = replace(supervised, halting=head, solved=tuple(count / sequences for count in solved))
        return losses[-1], (sum(squares) / updates) ** 0.5, supervised

    return read
