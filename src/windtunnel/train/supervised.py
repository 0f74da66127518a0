"""One step of a recursive GPT: every supervision step of a batch is scored, and the weights follow once or after each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor

from windtunnel.model import Objective, RecursiveGPT, Replay, SupervisedSums, Supervision, cuda_recorder, objective_of
from windtunnel.recipe import Recipe

from .optimizer import Scalars
from .step import Moment, Pending, StepFunction, StepParts, Supervised, run_step, take


def step_function(recipe: Recipe, *, recorded: bool = False) -> StepFunction:
    """How a step of this recipe is done.

    Args:
        recorded: record a recursive model's passes as CUDA graphs, as the plan's layout says.
    """
    if recipe.trm is None:
        return run_step
    return SupervisedStep(objective_of(recipe.trm.resolved), recorded=recorded)


class SupervisedStep:
    """As `run_step`, with `objective` for the loss; `updates` says whether the weights follow once or N times.

    All updates of a step have the same learning rates: the schedule goes by batches.

    Args:
        recorded: the work of a micro-batch is recorded as a CUDA graph. The model is on a GPU and has no weights in fp8: their
            copies are made anew, elsewhere in memory, after each update.
    """

    def __init__(self, objective: Objective, *, recorded: bool = False) -> None:
        self._objective, self._recorded = objective, recorded
        self._work: Supervision | None = None

    def __call__(self, parts: StepParts, scalars: Scalars, step: int, since: Pending | None) -> Pending:
        """Do step number `step`; see `run_step`."""
        ranks, model = parts.ranks, cast(RecursiveGPT, parts.model)
        began = Moment(ranks.device)
        squares: list[Tensor] = []

        def update(_: int) -> None:
            parts.staging.before_update()
            squares.append(parts.optimizer.step(scalars))

        each = self._objective.updates == "each"
        found = self._supervision(model, 1.0 / parts.batch_tokens).step(take(parts.batches), update if each else None)
        if not each:
            update(0)
        sums = _packed(found, squares)
        if ranks.world > 1:
            dist.all_reduce(sums)
        reading = _reading(len(self._objective.weights), len(squares), model.recursion.halting)
        return Pending(step, sums, began, since, reading)

    def _supervision(self, model: RecursiveGPT, scale: float) -> Supervision:
        """Kept from step to step: what is recorded works on its sums."""
        if self._work is None or self._work.model is not model or self._work.scale != scale:
            self._work = Supervision(model, self._objective, scale, Replay(cuda_recorder() if self._recorded else None))
        return self._work


def _packed(found: SupervisedSums, squares: list[Tensor]) -> Tensor:
    """Everything in one float64 vector: one reduction, one copy to the host."""
    sequences = found.targets.new_full((1,), float(found.sequences))
    alone = torch.stack([found.targets.double(), found.objective.double(), *(square.double() for square in squares)])
    return torch.cat([alone, found.losses, found.halting, found.judged, found.solved, sequences])


def _reading(steps: int, updates: int, halting: bool) -> Callable[[list[float]], tuple[float, float, Supervised]]:
    def read(sums: list[float]) -> tuple[float, float, Supervised]:
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
